"""Malformed rules are refused when they are registered; rules that go wrong later cost only themselves."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import fusepass
from fusepass import errors
from fusepass.report.decision import Decision

X = torch.randn(3, 4)
ELSEWHERE = torch.ones(4)


class Doubled(torch.autograd.Function):
    """A backward that a recorded call would lose."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


def pattern(x: Tensor) -> Tensor:
    return x * 2


def good(x: Tensor) -> Tensor:
    return x + x


def tanh(x: Tensor) -> Tensor:
    return torch.tanh(x)


def branching(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x


def rule(**changes: Any) -> fusepass.Rule:
    given = {"pattern": pattern, "replacement": good, "example": (X,)} | changes
    return fusepass.Rule(**{"name": "tried", **given})


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


# --- rules that are well formed, and go wrong at a match ------------------------------------------


def program(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The pattern stands in the second line; the rest must come out right whatever happens."""
    h = torch.tanh(x @ w)
    y = h * 2
    return y.sum(0), F.gelu(y)


def inputs(rows: int = 5) -> tuple[Tensor, Tensor]:
    """More rows than the example has: that is what the rules below stumble over."""
    return torch.randn(rows, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)


def decisions(
    *rules: fusepass.Rule,
    function: Callable[..., Any] = program,
    given: tuple[Tensor, ...] | None = None,
    **options: Any,
) -> list[Decision]:
    """Compile, hold results and gradients against eager, and return what the rules have on record."""
    given = inputs() if given is None else given
    compiled = torch.compile(function, backend="fusepass", options={"codegen": "eager"} | options)
    with fusepass.rules(*rules):
        for call in (compiled, compiled):  # the second time nothing is compiled
            copies = [t.detach().clone().requires_grad_(t.requires_grad) for t in given]
            results, expected = call(*copies), function(*given)
            torch.testing.assert_close(results, expected)
            for ours, eager in zip(
                gradients(results, copies), gradients(expected, given), strict=True
            ):
                torch.testing.assert_close(ours, eager)
    names = {r.name for r in rules}
    return [d for d in fusepass.last_report(compiled).decisions if d.rule in names]


def gradients(results: Any, leaves: Any) -> list[Tensor]:
    tensors = results if isinstance(results, tuple) else (results,)
    total = sum((t.float() ** 2).sum() for t in tensors)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if not isinstance(total, Tensor) or not wanted:
        return []
    return list(torch.autograd.grad(total, wanted))


def raises(*_: Any) -> Any:
    raise ZeroDivisionError("in the rule")


CHECKS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "raises": (raises, "ZeroDivisionError: in the rule"),
    "returns True": (lambda match: True, "check returned True, neither None nor"),
    "returns False": (lambda match: False, "check returned False"),
    "returns a text": (lambda match: "no", "check returned 'no'"),
    "unknown reason code": (
        lambda match: fusepass.Reject("because", "no"),  # type: ignore[arg-type]
        "'because' is not a valid Reason",
    ),
    "unknown parameter": (lambda match: match["y"], "KeyError: 'y'"),
}


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("codegen", ["eager", "inductor"])
def test_check_that_fails(name: str, codegen: str) -> None:
    """One warning that names the rule; the report says the same."""
    check, words = CHECKS[name]
    with pytest.warns(errors.RewriteFault, match=re.escape(words)) as caught:
        found = decisions(rule(check=check), codegen=codegen)
    assert len(caught) == 1
    assert "'tried'" in str(caught[0].message)
    assert {(d.outcome, d.reason_code) for d in found} == {("rejected", "internal")}
    assert words in found[0].reason


def test_check_that_fails_after_autograd() -> None:
    with pytest.warns(errors.RewriteFault, match="'tried'"):
        found = decisions(rule(check=raises, place="after"), codegen="eager-decomposed")
    assert {d.reason_code for d in found} == {"internal"}


def test_check_that_fails_does_not_reach_other_rules() -> None:
    other = fusepass.Rule("other", tanh, lambda x: 2 * torch.sigmoid(2 * x) - 1, (X,))
    with pytest.warns(errors.RewriteFault):
        found = decisions(rule(check=raises), other)
    assert [(d.rule, d.outcome) for d in found if d.outcome == "applied"] == [("other", "applied")]


def elsewhere(wrong: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """A replacement that is right for the example, and wrong for any other number of rows."""
    return lambda x: x + x if x.shape[0] == 3 else wrong(x)


@torch.library.custom_op("fusepass_test_malformed::double", mutates_args=())
def without_backward(x: Tensor) -> Tensor:
    return x + x


@without_backward.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("fusepass_test_malformed::write", mutates_args=("x",))
def writing(x: Tensor) -> Tensor:
    return x.mul_(2).clone()


@writing.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def with_no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x + x


REPLACEMENTS: dict[str, tuple[Callable[[Tensor], Any], str, str]] = {
    "raises": (raises, "shape_mismatch", "ZeroDivisionError: in the rule"),
    "returns nothing": (lambda x: None, "shape_mismatch", "returns NoneType"),
    "returns more": (lambda x: (x + x, x + x), "shape_mismatch", "returns 2 tensors"),
    "another dtype": (lambda x: (x + x).double(), "dtype_mismatch", "is torch.float64, was"),
    "another shape": (lambda x: (x + x)[1:], "shape_mismatch", r"shape \(4, 4\), had \(5, 4\)"),
    "other strides": (lambda x: (x + x).t().contiguous().t(), "stride_mismatch", "has strides"),
    "another device": (lambda x: (x + x).to("meta"), "device_mismatch", "is on meta, was on cpu"),
    "hands its input on": (lambda x: x, "alias", "shares memory"),
    "hands a view on": (lambda x: x.view_as(x), "alias", "shares memory"),
    "writes to its input": (lambda x: x.mul_(2).clone(), "side_effect", "writes to its operands"),
    "operator that writes": (writing, "side_effect", "writes to its operands"),
    "operator without backward": (without_backward, "no_gradient", "register_autograd"),
    "detaches": (lambda x: (x + x).detach(), "no_gradient", "has no gradient"),
    "detaches its input": (lambda x: x.detach() + x.detach(), "no_gradient", "gradient"),
    "without grad mode": (with_no_grad, "no_gradient", "gradient"),
    "autograd.Function": (Doubled.apply, "no_gradient", "register_autograd"),
    "another tensor": (lambda x: x * ELSEWHERE * 2, "other_op", "inputs"),
    "reads a value back": (lambda x: x + x.sum().item(), "other_op", "reads a tensor's value"),
}


@pytest.mark.parametrize("name", REPLACEMENTS)
def test_replacement_that_does_not_fit(name: str) -> None:
    """The match is turned down with a reason; that is no fault, so nothing is warned of."""
    replacement, code, words = REPLACEMENTS[name]
    (found,) = decisions(rule(replacement=elsewhere(replacement)))
    assert (found.outcome, found.reason_code) == ("rejected", code), found.reason
    assert re.search(words, found.reason), found.reason
    assert "\n" not in found.reason
    assert found.file == __file__
    assert "y = h * 2" in Path(__file__).read_text().splitlines()[found.line - 1]


@pytest.mark.parametrize("name", ["raises", "another dtype", "hands its input on", "returns more"])
def test_replacement_that_does_not_fit_after_autograd(name: str) -> None:
    replacement, code, words = REPLACEMENTS[name]
    found = decisions(
        rule(replacement=elsewhere(replacement), place="after"), codegen="eager-decomposed"
    )
    assert {(d.outcome, d.reason_code) for d in found} == {("rejected", code)}
    assert re.search(words, found[0].reason), found[0].reason


def test_replacement_without_backward_is_fine_in_inference() -> None:
    x, w = inputs()
    (found,) = decisions(
        rule(replacement=without_backward), given=(x.detach(), w.detach()), codegen="inductor"
    )
    assert found.outcome == "applied"


# --- rules that would never end -------------------------------------------------------------------


def added(x: Tensor, y: Tensor) -> Tensor:
    return (x + y) * 3


@pytest.mark.parametrize("place", ["before", "after"])
def test_rule_that_matches_what_it_makes_is_applied_once(place: str) -> None:
    swap = fusepass.Rule(
        "swap", lambda a, b: a + b, lambda a, b: b + a, (X, torch.randn(3, 4)), place=place
    )
    x, y = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    codegen = "eager" if place == "before" else "eager-decomposed"
    found = decisions(swap, function=added, given=(x, y), codegen=codegen)
    assert [(d.outcome, d.reason_code) for d in found] == [
        ("applied", "proved"),
        ("rejected", "repeat"),
    ]
    assert "its own replacement matches its pattern again" in found[1].reason


def test_rule_that_grows_the_graph_ends() -> None:
    grows = fusepass.Rule("grows", tanh, lambda x: torch.tanh(torch.tanh(x) * 0 + x), (X,))
    found = decisions(grows)
    assert sum(d.outcome == "applied" for d in found) == 1
    assert "repeat" in {d.reason_code for d in found}


def test_two_rules_that_undo_each_other_end() -> None:
    there = fusepass.Rule("there", pattern, good, (X,))
    back = fusepass.Rule("back", good, pattern, (X,))
    found = decisions(there, back)
    assert [d.rule for d in found if d.outcome == "applied"] == ["there", "back"]
    assert {d.reason_code for d in found if d.outcome != "applied"} == {"repeat"}


# --- rules that want the same operations ----------------------------------------------------------


def doubled_tanh(x: Tensor) -> Tensor:
    return torch.tanh(x) * 2


def tanh_by_sigmoid(x: Tensor) -> Tensor:
    return (2 * torch.sigmoid(2 * x) - 1) * 2


SMALL = {"pattern": tanh, "replacement": lambda x: 2 * torch.sigmoid(2 * x) - 1}
LARGE = {"pattern": doubled_tanh, "replacement": tanh_by_sigmoid}


def outcomes(found: list[Decision]) -> dict[str, tuple[str, str]]:
    return {d.rule: (d.outcome.value, d.reason_code.value) for d in found}


def test_two_rules_with_one_pattern() -> None:
    """One of them acts; the report says which one stood in the other's way."""
    found = decisions(rule(name="one"), rule(name="two"))
    by_outcome = sorted(outcomes(found).values())
    assert by_outcome == [("applied", "proved"), ("rejected", "overlap")]
    (winner,) = (d.rule for d in found if d.outcome == "applied")
    (loser,) = (d for d in found if d.outcome != "applied")
    assert repr(winner) in loser.reason


@pytest.mark.parametrize("order", [1, -1])
def test_larger_saving_wins(order: int) -> None:
    both = [rule(name="small", **SMALL), rule(name="large", **LARGE)][::order]
    assert outcomes(decisions(*both)) == {
        "large": ("applied", "proved"),
        "small": ("rejected", "overlap"),
    }


@pytest.mark.parametrize("order", [1, -1])
def test_priority_wins_over_saving(order: int) -> None:
    both = [rule(name="small", priority=1, **SMALL), rule(name="large", **LARGE)][::order]
    assert outcomes(decisions(*both))["small"] == ("applied", "proved")
    assert outcomes(decisions(*both))["large"] == ("rejected", "overlap")


def test_two_small_ones_win_over_the_one_between() -> None:
    """The set with the greatest saving, not the best match first."""

    def chain(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = (x @ w).sigmoid().tanh().exp().relu()
        return y.sum(0), y

    given = (torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True))
    example = (torch.rand(3, 4),)
    middle = rule(
        name="middle",
        pattern=lambda x: x.tanh().exp(),
        replacement=lambda x: torch.tanh(x).exp(),
        example=example,
    )
    left = rule(
        name="left",
        pattern=lambda x: x.sigmoid().tanh(),
        replacement=lambda x: torch.sigmoid(x).tanh(),
        example=example,
    )
    right = rule(
        name="right",
        pattern=lambda x: x.exp().relu(),
        replacement=lambda x: torch.exp(x).relu(),
        example=example,
    )
    found = decisions(middle, left, right, function=chain, given=given)
    first = {d.rule: d.outcome for d in reversed(found)}
    assert first["left"] == first["right"] == "applied"
    assert ("middle", "overlap") in {(d.rule, d.reason_code) for d in found}


def test_rules_conflict_after_autograd() -> None:
    both = [rule(name=n, place="after") for n in ("one", "two")]
    found = decisions(*both, codegen="eager-decomposed")
    assert {d.reason_code for d in found if d.rule == "two"} | {
        d.reason_code for d in found if d.rule == "one"
    } == {"proved", "overlap"}
