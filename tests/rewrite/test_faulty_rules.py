"""Rules that go wrong at a match, never end or want the same operations: the program stays right."""

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


def rule(**changes: Any) -> fusepass.Rule:
    given = {"pattern": pattern, "replacement": good, "example": (X,)} | changes
    return fusepass.Rule(**{"name": "tried", **given})


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
    "returns True": (lambda match: True, "check returned True, not None"),
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
    (warned,) = (w.message for w in caught if isinstance(w.message, errors.RewriteFault))
    assert f"'tried' ({rule().location.rpartition(':')[0]}:" in str(warned)
    assert "report this" not in str(warned)
    assert "rule.py" not in str(warned)  # of fusepass, where `match[…]` is looked up
    assert "Mend the check" in str(warned)
    assert Path(caught[0].filename) == Path(__file__)  # the rule's line, not one of fusepass
    assert {(d.outcome, d.reason_code) for d in found} == {("rejected", "internal")}
    assert words in found[0].reason


def test_check_that_fails_after_autograd() -> None:
    with pytest.warns(errors.RewriteFault, match="'tried'"):
        found = decisions(rule(check=raises, place="after"), codegen="eager-decomposed")
    assert {d.reason_code for d in found} == {"internal"}


def test_check_that_fails_does_not_reach_other_rules() -> None:
    other = fusepass.Rule("other", tanh, lambda x: -torch.tanh(-x), (X,))
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


def written_first(x: Tensor) -> Tensor:
    x.detach().mul_(2)  # torch itself refuses to write to x where it requires grad
    return x + 0


REPLACEMENTS: dict[str, tuple[Callable[[Tensor], Any], str, str]] = {
    "raises": (raises, "shape_mismatch", "ZeroDivisionError: in the rule"),
    "returns nothing": (lambda x: None, "untraceable", "returns NoneType"),
    "returns more": (lambda x: (x + x, x + x), "shape_mismatch", "returns 2 tensors"),
    "another dtype": (lambda x: (x + x).double(), "dtype_mismatch", "is torch.float64, was"),
    "another shape": (lambda x: (x + x)[1:], "shape_mismatch", r"shape \(4, 4\), had \(5, 4\)"),
    "other strides": (lambda x: (x + x).t().contiguous().t(), "stride_mismatch", "has strides"),
    "another device": (lambda x: (x + x).to("meta"), "device_mismatch", "is on meta, was on cpu"),
    "hands its input on": (lambda x: x, "alias", "shares memory"),
    "hands a view on": (lambda x: x.view_as(x), "alias", "shares memory"),
    "writes to its input": (written_first, "side_effect", "writes to its operands"),
    "operator that writes": (writing, "side_effect", "writes to its operands"),
    "operator without backward": (without_backward, "no_gradient", "register_autograd"),
    "detaches": (lambda x: (x + x).detach(), "no_gradient", "has no gradient"),
    "detaches its input": (lambda x: x.detach() + x.detach(), "no_gradient", "gradient"),
    "without grad mode": (with_no_grad, "no_gradient", "gradient"),
    "autograd.Function": (Doubled.apply, "untraceable", "register_autograd"),
    "another tensor": (lambda x: x * ELSEWHERE * 2, "shape_mismatch", "does not take these"),
    "reads a value back": (lambda x: x + x.sum().item(), "shape_mismatch", "does not take these"),
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


def positive(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).abs() * 2


SMALL = {"pattern": lambda x: x.abs(), "replacement": lambda x: torch.maximum(x, -x)}
LARGE = {"pattern": lambda x: x.abs() * 2, "replacement": lambda x: torch.maximum(x, -x) / 0.5}


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
    assert outcomes(decisions(*both, function=positive)) == {
        "large": ("applied", "proved"),
        "small": ("rejected", "overlap"),
    }


@pytest.mark.parametrize("order", [1, -1])
def test_priority_wins_over_saving(order: int) -> None:
    both = [rule(name="small", priority=1, **SMALL), rule(name="large", **LARGE)][::order]
    found = decisions(*both, function=positive)
    assert [d.rule for d in found if d.outcome == "applied"] == ["small"]
    assert ("large", "overlap") in {(d.rule, d.reason_code) for d in found}


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


def switches_off(x: Tensor) -> Tensor:
    torch.set_grad_enabled(False)
    return x + x


def check_that_switches_off(match: fusepass.Match) -> None:
    torch.set_grad_enabled(False)


def test_a_rule_that_leaves_gradients_switched_off() -> None:
    """Neither the rest of the graph nor the process may be left without gradients."""
    for wrong in ({"replacement": switches_off}, {"pattern": switches_off}):
        with pytest.raises(errors.RuleError, match=r"gradients switched off.*torch\.no_grad"):
            decisions(rule(**wrong))
        assert torch.is_grad_enabled()
    decisions(rule(check=check_that_switches_off))
    assert torch.is_grad_enabled()
