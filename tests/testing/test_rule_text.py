"""A rule as text: of one written inline, with all that its functions name; it runs by itself."""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusepass
from fusepass.errors import RuleCheckFailed
from fusepass.testing import check_rule
from fusepass.testing.rule_text import rule_text

SCALE = 2.0
TABLE = {"a": (1, 2)}


def helper(x: Tensor) -> Tensor:
    return x * SCALE * TABLE["a"][0]


def made(rule: fusepass.Rule) -> fusepass.Rule:
    """The rule that the text of another gives."""
    scope: dict[str, object] = {"torch": torch, "fusepass": fusepass}
    exec(rule_text(rule), scope)
    found = scope["rule"]
    assert isinstance(found, fusepass.Rule)
    return found


def by_helper() -> fusepass.Rule:
    times = 3

    def pattern(x: Tensor, *, eps: float = math.pi) -> Tensor:
        return F.relu(helper(x)) * times + eps

    def replacement(x: Tensor) -> Tensor:
        return helper(x) * times + math.pi

    return fusepass.Rule("by_helper", pattern, replacement, (torch.ones(4),))


def several_lambdas() -> fusepass.Rule:
    # fmt: off
    return fusepass.Rule("lambdas", lambda x, y: (
        torch.sin(x)
        + y
    ), lambda x, y: torch.sin(x), example=(torch.ones(4), torch.ones(4)), check=lambda m: None)
    # fmt: on


def lambdas_of_constants() -> fusepass.Rule:
    # fmt: off
    return fusepass.Rule("constants", lambda x: x * 2, lambda x: x + x, (torch.ones(4),),
        check=(lambda m: True, lambda m: "1", lambda m: None, lambda n: None, lambda m: 1)[2])
    # fmt: on


def test_a_constant_of_several_in_a_line() -> None:
    assert "check = lambda m: None\n" in rule_text(lambdas_of_constants())


def test_constants_that_cannot_be_told_apart() -> None:
    checks = (lambda m, n=1: None, lambda m, n=2: None)  # fmt: skip
    rule = fusepass.Rule("alike", lambda x: x * 2, lambda x: x + x, (torch.ones(4),), checks[1])
    if any(end for *_, end in checks[1].__code__.co_positions()):  # before Python 3.12
        assert "check = lambda m, n=2: None\n" in rule_text(rule)
    else:
        assert "No text is known of a lambda" in rule_text(rule)


@pytest.mark.parametrize("make", [by_helper, several_lambdas, lambdas_of_constants])
def test_functions_compute_the_same(make: object) -> None:
    rule = make()  # type: ignore[operator]
    again = made(rule)
    given = [torch.randn(4) for _ in rule.inputs()]
    assert torch.equal(again.pattern(*given), rule.pattern(*given))
    assert torch.equal(again.replacement(*given), rule.replacement(*given))
    assert (again.name, again.place, again.devices) == (rule.name, rule.place, rule.devices)
    assert (again.check is None) == (rule.check is None)


def test_place_and_devices() -> None:
    rule = fusepass.Rule(
        "placed",
        lambda x: x + 1,
        lambda x: 1 + x,
        (torch.ones(4),),
        place="after",
        devices=("cuda",),
    )
    assert (made(rule).place, made(rule).devices) == ("after", ("cuda",))


def test_no_text_is_said() -> None:
    scope: dict[str, object] = {"fusepass": fusepass, "torch": torch}
    code = "rule = fusepass.Rule('r', lambda x: x + 1, lambda x: 1 + x, (torch.ones(2),))"
    exec(compile(code, "<nowhere>", "exec"), scope)
    text = rule_text(scope["rule"])  # type: ignore[arg-type]
    assert "No text is known" in text
    assert "rule = ..." in text


def test_two_things_of_one_name_are_not_mixed_up() -> None:
    def one() -> object:
        k = 2
        return lambda x: x * k

    def other() -> object:
        k = 3
        return lambda x: x * k

    rule = fusepass.Rule("k", one(), other(), (torch.ones(4),))  # type: ignore[arg-type]
    assert "No text is known" in rule_text(rule)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("example", "replacement", "said"),
    [
        # Whose numbers are all positive is asked for positive ones only, and infinities.
        ("[0.5, 2.0]", "lambda x: x.abs()", "infinity stands elsewhere"),
        ("[0.5, -2.0]", "lambda x: torch.relu(x) * scale", "Tensor-likes are not"),
    ],
)
def test_snippet_of_a_script_runs_and_fails(
    tmp_path: Path, example: str, replacement: str, said: str
) -> None:
    """As a user meets it: the rule is written in the program that calls ``check_rule``."""
    script = f"""
import torch, fusepass
from fusepass.testing import check_rule

scale = 1.5
rule = fusepass.Rule("mine", lambda x: torch.relu(x), {replacement}, (torch.tensor({example}),))
try:
    check_rule(rule)
except AssertionError as error:
    print(error.snippet)
"""
    (tmp_path / "script.py").write_text(script)
    shown = run(tmp_path / "script.py")
    assert shown.returncode == 0, shown.stderr
    (tmp_path / "snippet.py").write_text(shown.stdout)
    done = run(tmp_path / "snippet.py")
    assert done.returncode == 1
    assert f"AssertionError: {said}" in done.stderr, done.stderr


def run(file: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=file.parent)


def test_snippet_of_a_rule_made_in_a_function() -> None:
    with pytest.raises(RuleCheckFailed) as caught:
        check_rule(by_helper_wrong())
    with contextlib.redirect_stdout(None), pytest.raises(AssertionError, match="not"):
        exec(compile(caught.value.snippet, "<snippet>", "exec"), {})


def by_helper_wrong() -> fusepass.Rule:
    def pattern(x: Tensor) -> Tensor:
        return F.relu(helper(x))

    def replacement(x: Tensor) -> Tensor:
        return F.relu(helper(x)) * SCALE

    return fusepass.Rule("wrong_helper", pattern, replacement, (torch.ones(4),))
