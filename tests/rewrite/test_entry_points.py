"""Rules that installed packages offer: found by themselves; a broken package costs a warning."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass import errors
from fusepass.rewrite import registry

MODULE = """
import torch
import fusepass

def pattern(x):
    return x * 2

def replacement(x):
    return x + x

def rule(name):
    return fusepass.Rule(name, pattern, replacement, (torch.randn(3, 4),))

SINGLE = rule("packaged_single")
SEVERAL = [rule("packaged_one"), rule("packaged_two")]
HALF_BROKEN = [rule("packaged_good"), fusepass.Rule("packaged_bad", pattern, None, (1,))]
TAKEN = rule("linear_relu")
NUMBER = 3

def made():
    return (rule(f"packaged_{name}") for name in ("three", "four"))

def failing():
    raise ZeroDivisionError("in the package")
"""

Offer = Callable[..., None]


def program(x: Tensor) -> Tensor:
    return (x * 2).cos()


def names() -> list[str]:
    return [r.name for r in registry.active_rules() if r.name.startswith("packaged_")]


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Offer]:
    """A function that installs a package with these objects as its entry points."""

    def install(*objects: str, package: str = "fusepass_test_rules", text: str = MODULE) -> None:
        (tmp_path / f"{package}.py").write_text(text)
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name} = {package}:{name}" for name in objects]
        (info / "entry_points.txt").write_text("\n".join(["[fusepass_rules]", *lines, ""]))
        monkeypatch.delitem(sys.modules, package, raising=False)
        registry._package_rules.cache_clear()

    monkeypatch.syspath_prepend(str(tmp_path))
    yield install
    monkeypatch.undo()
    registry._package_rules.cache_clear()
    sys.modules.pop("fusepass_test_rules", None)
    assert names() == []


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("SINGLE", ["packaged_single"]),
        ("SEVERAL", ["packaged_one", "packaged_two"]),
        ("made", ["packaged_three", "packaged_four"]),
    ],
)
def test_rule_list_or_function(entry: str, expected: list[str], offer: Offer) -> None:
    offer(entry)
    assert names() == expected


def test_rule_acts_without_an_import(offer: Offer) -> None:
    offer("SINGLE")
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(x), program(x))
    found = [d for d in fusepass.last_report(compiled).decisions if d.rule == "packaged_single"]
    assert [d.outcome for d in found] == ["applied"]


def test_rule_can_be_switched_off(offer: Offer) -> None:
    offer("SINGLE")
    options = {"codegen": "eager", "rules": {"packaged_single": False}}
    compiled = torch.compile(program, backend="fusepass", options=options)
    compiled(torch.randn(3, 4))
    found = [d for d in fusepass.last_report(compiled).decisions if d.rule == "packaged_single"]
    assert [d.reason_code for d in found] == ["rule_off"]


def test_its_name_is_taken(offer: Offer) -> None:
    offer("SINGLE")
    mine = fusepass.Rule("packaged_single", lambda x: x * 2, lambda x: x + x, (torch.ones(2),))
    with pytest.raises(errors.RuleError, match="has this name"):
        fusepass.register(mine)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("failing", "ZeroDivisionError: in the package"),
        ("missing", "AttributeError"),
        ("NUMBER", "TypeError"),
        ("TAKEN", "another rule in force has this name"),
        ("HALF_BROKEN", "'packaged_bad'.*its replacement is no function"),
    ],
)
def test_broken_one_costs_a_warning(entry: str, words: str, offer: Offer) -> None:
    """It names the package and what is wrong; the rules of others and the program are there."""
    offer(entry, "SINGLE")
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    x = torch.randn(3, 4)
    with pytest.warns(errors.RulePackageFault, match=words) as caught:
        torch.testing.assert_close(compiled(x), program(x))
    (warned,) = (w.message for w in caught if isinstance(w.message, errors.RulePackageFault))
    assert f"{entry!r} (fusepass_test_rules:{entry})" in str(warned)
    assert "packaged_single" in names()
    found = [d for d in fusepass.last_report(compiled).decisions if d.rule == "packaged_single"]
    assert len(found) == 1


def test_module_that_cannot_be_imported(offer: Offer) -> None:
    offer("SINGLE", text="import a_module_that_is_not_there")
    with pytest.warns(errors.RulePackageFault, match="ModuleNotFoundError"):
        assert names() == []


def test_warned_once(offer: Offer) -> None:
    offer("failing")
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    with pytest.warns(errors.RulePackageFault) as caught:
        for rows in (2, 3, 4):
            compiled(torch.randn(rows, 4))
            fusepass.explain(program, torch.randn(rows, 4))
    assert sum(isinstance(w.message, errors.RulePackageFault) for w in caught) == 1
