"""docs/rules.md: its code runs from top to bottom, and prints what the page says."""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass.errors import RuleCheckFailed
from fusepass.rewrite.registry import active_rules
from fusepass.testing import assert_rewrites, check_rule

PAGE = Path(__file__).resolve().parents[2] / "docs" / "rules.md"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[int, str, str | None]]:
    """Line, code and expected output of each block of Python."""
    text = PAGE.read_text()
    found: list[tuple[int, str, str | None]] = []
    for match in BLOCK.finditer(text):
        kind, body = match.groups()
        if kind == "python":
            found.append((text[: match.start()].count("\n") + 1, body, None))
        else:
            line, code, _ = found.pop()
            found.append((line, code, body))
    return found


@pytest.fixture
def as_before() -> Iterator[None]:
    """Rules in force are those from before, whatever the page registers."""
    names = {rule.name for rule in active_rules()}
    yield
    fusepass.reset()
    for rule in active_rules():
        if rule.name not in names:
            fusepass.unregister(rule)


def test_page_runs_and_prints_what_it_says(
    as_before: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("rules_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # Dynamo looks modules up by name
    printed = 0
    for line, code, expected in blocks():
        name = f"<docs/rules.md:{line}>"
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(code, name, "exec"), vars(module))
        if expected is not None:
            assert output.getvalue() == expected, name
            printed += 1
    assert len(blocks()) > 10
    assert printed >= 4
    found = {held.name: held for held in vars(module).values() if isinstance(held, fusepass.Rule)}
    assert len(found) >= 6
    for rule in found.values():  # what a reader copies must be right
        check_rule(rule)


@pytest.mark.slow
def test_rules_of_the_other_pages() -> None:
    """The first program of testing.md, and each rule of the examples in reasons.md."""
    pages = [PAGE.parent / "testing.md", PAGE.parent / "reasons.md"]
    rules: list[fusepass.Rule] = []
    for page in pages:
        for match in BLOCK.finditer(page.read_text()):
            code = match.group(2)
            if "Rule(" in code and match.group(1) == "python":
                scope = {"torch": torch, "fusepass": fusepass}
                name = f"<{page.name}:{match.start()}>"
                linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
                exec(compile(code.replace("print(check_rule", "(check_rule"), name, "exec"), scope)
                held = [*scope.values(), *scope.get("rules", ())]  # type: ignore[misc]
                rules += [value for value in held if isinstance(value, fusepass.Rule)]
    assert len(rules) >= 10
    failed = {}
    for rule in rules:
        try:
            check_rule(rule, fires_in=0.0)
        except RuleCheckFailed as error:
            if error.snippet:  # else it was turned down, which is what some examples show
                failed[rule.name] = str(error)
    assert not failed


def test_links_lead_somewhere() -> None:
    """To sections of this page, and to pages and sections beside it."""
    text = PAGE.read_text()
    for target in re.findall(r"\]\(([^)h][^)]*)\)", text):
        file, _, anchor = target.partition("#")
        page = (PAGE.parent / file) if file else PAGE
        assert page.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
            assert anchor in slugs, target


def test_every_field_of_a_rule_is_documented() -> None:
    text = PAGE.read_text()
    fields = [name for name in fusepass.Rule.__dataclass_fields__ if name != "location"]
    assert [name for name in fields if f"| `{name}` |" not in text] == []
    shown = [name for name in fusepass.Match.__dataclass_fields__ if name != "values"]
    assert [name for name in shown if f"`match.{name}`" not in text] == []


def test_rule_of_the_readme(as_before: None) -> None:
    """It fires on the same computation in other words."""
    text = (PAGE.parents[1] / "README.md").read_text()
    (code,) = (b for b in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "Rule(" in b)
    exec(compile(code, "<README.md>", "exec"), {})

    def normed(x: Tensor, scale: Tensor) -> Tensor:
        inverse = (x.pow(2).mean(dim=-1, keepdim=True) + 1e-5).rsqrt()
        return scale * (inverse * x)

    x, scale = torch.randn(2, 3, 16, requires_grad=True), torch.rand(16, requires_grad=True)
    assert_rewrites(normed, x, scale, rules={"my_rms_norm": 1})
