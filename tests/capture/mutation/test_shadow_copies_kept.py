"""Writes in an arm that a shadow cannot stand in for, and what is checked about the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ..support.side_by_side import side_by_side, signed
from .test_shadow_copies import in_one_arm

NAN, INF = float("nan"), float("inf")
TURNS = signed(1.0, -0.5, 2.0, 0.25)
ROWS = [(x.repeat(3, 1),) for (x,) in TURNS]


# What must not be done: kept, and right.
def two_views_of_one_memory(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0:
        x.add_(1)
    return x + y


def test_inputs_that_share_memory() -> None:
    base = torch.tensor([1.0, -0.5, 2.0, 0.25])
    calls = []
    for sign in (1, -1, 1):
        memory = base * sign
        calls.append((memory[:3], memory[1:]))
    outcome = side_by_side(two_views_of_one_memory, *calls)
    assert outcome.treatments in ([("keep", "alias")], [("where", "pure_total")])


def saved_for_backward(x: Tensor) -> Tensor:
    h = x * 2
    y = h.exp()
    k = y.sin()
    if x.sum() > 0:
        y.add_(1)
    return y + k


def its_result_saved(x: Tensor) -> Tensor:
    # sin saves what it reads, exp what it returns: y may be written here.
    y = (x * 2).sin()
    k = y.exp()
    if x.sum() > 0:
        y.add_(1)
    return y + k


def test_a_value_that_nothing_saved_may_be_written() -> None:
    side_by_side(its_result_saved, *TURNS, grad=True).only("where", "pure_total")


def changes_its_shape(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0:
        h.unsqueeze_(0)
    return h * 2


def with_and_without_autograd(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0:
        h.add_(1)
        with torch.no_grad():
            h.mul_(2)
    return h * 3


def arms_differ_in_autograd(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0:
        h.add_(1)
    else:
        with torch.no_grad():
            h.mul_(2)
    return h * 3


@pytest.mark.parametrize(
    ("program", "grad", "codes"),
    [
        (changes_its_shape, False, {"side_effect", "shape_mismatch"}),
        (saved_for_backward, True, {"side_effect"}),
        (with_and_without_autograd, True, {"side_effect"}),
        (arms_differ_in_autograd, True, {"side_effect"}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_kept(program: Callable[[Tensor], Tensor], grad: bool, codes: set[str]) -> None:
    outcome = side_by_side(program, *TURNS, grad=grad)
    assert {treatment for treatment, _ in outcome.treatments} == {"keep"}
    assert {code for _, code in outcome.treatments} <= codes, outcome.decisions


def test_a_tensor_with_gaps_is_copied_without_them() -> None:
    """Views of the copy would be other views; mere order of elements, a copy has, too."""
    calls = [((sign * torch.arange(-2.0, 6.0))[::2],) for sign in (1, -1)]
    side_by_side(in_one_arm, *calls).only("keep", "stride_mismatch")
    turned = [((sign * torch.arange(-2.0, 4.0)).reshape(2, 3).t(),) for sign in (1, -1)]
    side_by_side(in_one_arm, *turned).only("where", "pure_total")


@pytest.mark.parametrize("program", [with_and_without_autograd, arms_differ_in_autograd])
def test_modes_of_autograd_do_not_matter_where_there_is_none(
    program: Callable[[Tensor], Tensor],
) -> None:
    side_by_side(program, *TURNS).only("where", "pure_total")


def test_a_write_before_the_branch_and_one_behind_it() -> None:
    def program(x: Tensor) -> Tensor:
        h = x * 2
        row = h[0]
        h.add_(1)
        if x.sum() > 0:
            h.mul_(3)
        row.sub_(1)
        return h + 0

    side_by_side(program, *ROWS).only("where", "pure_total")
    side_by_side(program, *ROWS, grad=True).only("where", "pure_total")


def test_the_version_of_an_older_tensor_moves_on() -> None:
    """Autograd finds out that what it saved was written, as in eager."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        if x.sum() > 0:
            x.add_(1)
        return x * w

    x, w = torch.ones(4), torch.ones(4, requires_grad=True)
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    kept = x * w
    compiled(x, w)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.sum().backward()
