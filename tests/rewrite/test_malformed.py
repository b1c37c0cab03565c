"""Malformed rules are refused when they are registered, with their name, place and what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass import errors
from fusepass.rewrite.registry import active_rules

X = torch.randn(3, 4)
ELSEWHERE = torch.ones(4)


def pattern(x: Tensor) -> Tensor:
    return x * 2


def good(x: Tensor) -> Tensor:
    return x + x


def branching(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x


def rule(**changes: Any) -> fusepass.Rule:
    given = {"pattern": pattern, "replacement": good, "example": (X,)} | changes
    return fusepass.Rule(**{"name": "tried", **given})


def branching_late(x: Tensor) -> Tensor:
    return x.sin() if x.sum() > 0 else x.cos()


LAYER = torch.nn.Linear(4, 4)
TWO = {"pattern": lambda x, n: x * 2 + n, "replacement": lambda x, n: x + x + n}
MALFORMED: dict[str, tuple[dict[str, Any], str]] = {
    "name is no text": ({"name": 3}, "its name must be a text, not 3"),
    "name is empty": ({"name": " "}, "its name must be a text"),
    "name of a built-in rule": ({"name": "joined_reductions"}, "has this name"),
    "name of capture": ({"name": "branch"}, "has this name"),
    "place": ({"place": "during"}, "its place is 'during'; allowed: 'before', 'after'"),
    "priority": ({"priority": "high"}, "its priority must be an int, not 'high'"),
    "priority is a bool": ({"priority": True}, "its priority must be an int"),
    "devices": ({"devices": "cuda"}, "its devices must be a tuple of device types"),
    "pattern is no function": ({"pattern": None}, "its pattern is no function"),
    "replacement is no function": ({"replacement": "x + x"}, "its replacement is no function"),
    "check is no function": ({"check": True}, "its check is no function"),
    "pattern is a builtin": ({"pattern": torch.tanh}, "its pattern cannot be read: no signature"),
    "pattern takes *": ({"pattern": lambda *x: x[0] * 2}, "name the parameters"),
    "pattern takes **": ({"pattern": lambda x, **_: x * 2}, "name the parameters"),
    "example is too long": ({"example": (X, X)}, "its example has 2 values, its pattern takes 1"),
    "example is one tensor": ({"example": X}, "its example"),
    "example returns a tensor": (
        {"example": lambda: torch.randn(4, 4)},
        "what its example returns is a tensor; it must be a tuple",
    ),
    "example is None": ({"example": None}, "its example is None; it must be a tuple"),
    "example is a dict": ({"example": {"x": X}}, "its example is a dict; it must be a tuple"),
    "example is a set": ({"example": {X}}, "its example is a set; it must be a tuple"),
    "example is no sequence": ({"example": 3}, "its example fails: TypeError"),
    "example raises": ({"example": lambda: 1 / 0}, "its example fails: ZeroDivisionError"),
    "example holds a list": ({"example": ([X],)}, "its example holds a list; allowed: tensors"),
    "example holds None": (TWO | {"example": (X, None)}, "its example holds a NoneType"),
    "example has no tensor": ({"example": (3,)}, "its example holds no tensor"),
    "pattern raises": ({"pattern": lambda x: x @ x}, "its pattern fails on the example"),
    "pattern returns nothing": ({"pattern": lambda x: None}, "it returns NoneType, not a tensor"),
    "pattern returns a dict": ({"pattern": lambda x: {"y": x * 2}}, "it returns dict"),
    "pattern returns its input": ({"pattern": lambda x: x}, "returns one of its inputs"),
    "pattern does not use an input": (
        {"pattern": lambda x, y: x * 2, "replacement": torch.add, "example": (X, X)},
        "its pattern does not use y",
    ),
    "pattern uses another tensor": ({"pattern": lambda x: x * ELSEWHERE}, "its pattern"),
    "pattern closes over a tensor": (
        {"pattern": lambda x: x * ELSEWHERE},
        "its pattern cannot be used: it uses a tensor that is none .* make it a parameter",
    ),
    "pattern closes over a module": (
        {"pattern": lambda x: LAYER(x)},
        "its pattern cannot be used: .* as a module's weights are; make it a parameter",
    ),
    "replacement closes over a tensor": (
        {"replacement": lambda x: x * (ELSEWHERE * 2)},
        "its replacement cannot be used: it uses a tensor that is none .* make it a parameter",
    ),
    "pattern branches late": (
        {"pattern": branching_late},
        "its pattern cannot be used: it reads a tensor's value",
    ),
    "replacement branches": (
        {"replacement": branching_late},
        "its replacement cannot be used: it reads a tensor's value",
    ),
    "another device": (
        {"replacement": lambda x: (x + x).to("meta")},
        "its pattern returns a tensor on cpu, its replacement one on meta",
    ),
    "pattern selects by a mask": ({"pattern": lambda x: x[x > 0] * 2}, "reads a tensor's value"),
    "replacement asks where": (
        {"replacement": lambda x: x * x.nonzero().sum()},
        "its replacement cannot be used: it reads a tensor's value",
    ),
    "pattern reads a value back": ({"pattern": lambda x: x * x.sum().item()}, "reads a tensor's"),
    "pattern branches on a tensor": ({"pattern": branching}, "its pattern"),
    "pattern writes to its input": ({"pattern": lambda x: x.mul_(2)}, "writes to memory"),
    "scalar decides": (
        {"pattern": lambda x, n: x * 2 if n else x + 1, "example": (X, True)}
        | {"replacement": lambda x, n: x + x},
        "a scalar of its example decides which operations it has",
    ),
    "scalar is computed with": (
        {"pattern": lambda x, n: x * (n + 1), "example": (X, 2.5)}
        | {"replacement": lambda x, n: x * (n + 1)},
        "it computes with its scalar 'n' before using it; pass the result",
    ),
    "replacement takes more": (
        {"replacement": lambda x, y: x + y},
        r"its pattern takes \(x\), its replacement \(x, y\)",
    ),
    "replacement raises": ({"replacement": lambda x: x @ x}, "its replacement fails on the"),
    "replacement returns nothing": ({"replacement": lambda x: None}, "its replacement"),
    "replacement returns more": (
        {"replacement": lambda x: (x, x + x)},
        "its pattern returns 1 tensors, its replacement 2",
    ),
    "another dtype": (
        {"replacement": lambda x: (x + x).double()},
        "its pattern returns torch.float32, its replacement torch.float64",
    ),
    "another shape": (
        {"replacement": lambda x: x.sum(0)},
        r"its pattern returns shape \(3, 4\), its replacement \(4,\)",
    ),
    "replacement writes to its input": (
        {"replacement": lambda x: x.mul_(2)},
        "its replacement writes to its inputs",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("place", ["before", "after"])
def test_malformed_rule_is_refused(name: str, place: str) -> None:
    """With its name, where it was made, and what is wrong; in one line."""
    changes, problem = MALFORMED[name]
    wrong = rule(**{"place": place} | changes)
    if place == "after" and name == "pattern reads a value back":
        problem = "its pattern"
    with pytest.raises(errors.RuleError, match=problem) as caught:
        fusepass.register(wrong)
    text = str(caught.value)
    assert text.startswith(f"fusepass: rule {str(wrong.name)!r} ({wrong.location}): ")
    assert "\n" not in text
    assert wrong.location.startswith(f"{__file__}:")
    with pytest.raises(errors.RuleError), fusepass.rules(wrong):
        pytest.fail("entered")
    with pytest.raises(errors.RuleError):
        fusepass.unregister("tried")


@pytest.mark.parametrize("thing", [None, pattern, {"name": "tried"}])
def test_what_is_no_rule_is_refused(thing: Any) -> None:
    with pytest.raises(errors.RuleError, match=r"is no fusepass\.Rule"):
        fusepass.register(thing)


def test_location_is_where_the_rule_was_made() -> None:
    here = rule.__code__.co_firstlineno + 2
    assert rule().location == f"{__file__}:{here}"
    made = fusepass.Rule("tried", pattern, good, (X,))
    line = Path(__file__).read_text().splitlines()[int(made.location.rpartition(":")[2]) - 1]
    assert "made = fusepass.Rule" in line


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan"), 1e308])
@pytest.mark.parametrize("place", ["before", "after"])
def test_a_scalar_of_the_example_may_be_any_number(number: float, place: str) -> None:
    given = rule(
        pattern=lambda x, n: x + n, replacement=lambda x, n: n + x, example=(X, number), place=place
    )
    with fusepass.rules(given):
        assert given in active_rules()
