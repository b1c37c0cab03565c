"""The rules that docs/reasons.md and the README show, and the table of a rule's fields."""

from __future__ import annotations

import linecache
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass.errors import RuleCheckFailed
from fusepass.testing import assert_rewrites, check_rule

PAGE = Path(__file__).resolve().parents[2] / "docs" / "rules.md"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_rules_of_the_reasons() -> None:
    """Each rule of the examples in reasons.md."""
    pages = [PAGE.parent / "reasons.md"]
    rules: list[fusepass.Rule] = []
    for page in pages:
        for match in BLOCK.finditer(page.read_text()):
            code = match.group(2)
            if "Rule(" in code and match.group(1) == "python":
                scope = {"torch": torch, "fusepass": fusepass}
                name = f"<{page.name}:{match.start()}>"
                linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
                exec(compile(code, name, "exec"), scope)
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


def test_every_field_of_a_rule_is_documented() -> None:
    text = PAGE.read_text()
    fields = [name for name in fusepass.Rule.__dataclass_fields__ if name != "location"]
    assert [name for name in fields if f"| `{name}` |" not in text] == []
    shown = [name for name in fusepass.Match.__dataclass_fields__ if name != "values"]
    assert [name for name in shown if f"`match.{name}`" not in text] == []


def test_rule_of_the_readme() -> None:
    """It fires on the same computation in other words."""
    text = (PAGE.parents[1] / "README.md").read_text()
    (code,) = (b for b in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "Rule(" in b)
    exec(compile(code, "<README.md>", "exec"), {})

    def normed(x: Tensor, scale: Tensor) -> Tensor:
        inverse = (x.pow(2).mean(dim=-1, keepdim=True) + 1e-5).rsqrt()
        return scale * (inverse * x)

    x, scale = torch.randn(2, 3, 16, requires_grad=True), torch.rand(16, requires_grad=True)
    try:
        assert_rewrites(normed, x, scale, rules={"my_rms_norm": 1})
    finally:
        fusepass.unregister("my_rms_norm")
