"""Writes of an arm into older memory: one selection, one write-back, every alias as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusepass.capture.mutation.shadow_copies import _root
from fusepass.capture.refusal import Refusal

from ..support.side_by_side import side_by_side, signed

NAN, INF = float("nan"), float("inf")
TURNS = signed(1.0, -0.5, 2.0, 0.25)
ROWS = [(x.repeat(3, 1),) for (x,) in TURNS]


def in_one_arm(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x.add_(1)
    return x * 2


def in_both_arms(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0:
        h.add_(1)
    else:
        h.mul_(3)
    return h


def twice_in_one_arm(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x.add_(1)
        x.mul_(x)
    return x * 2


def in_two_branches(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0:
        h.add_(1)
    if h.sum() > 1:
        h.mul_(2)
    return h


def nested(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0:
        h.add_(1)
        if h.sum() > 5:
            h.sub_(3)
    return h


def read_in_the_arm_after_it(x: Tensor) -> tuple[Tensor, Tensor]:
    h, k = x * 2, x + 0
    if x.sum() > 0:
        h.add_(1)
        k = h * 3
    return h + 0, k + 0


def a_view_read_afterwards(x: Tensor) -> tuple[Tensor, Tensor]:
    h = x * 2
    part = h[1:]
    if x.sum() > 0:
        h.add_(1)
    return part * 2, h.sum()


def through_a_view(x: Tensor) -> Tensor:
    h = x * 2
    part = h[1:]
    if x.sum() > 0:
        part.add_(1)
    return h * 2


def through_a_view_of_a_view(x: Tensor) -> tuple[Tensor, Tensor]:
    h = x * 2
    part = h.view(2, 2)[0]
    if x.sum() > 0:
        part[1:].fill_(7)
        h[0] = 5
    return h * 2, part + 0


def through_a_view_made_in_the_arm(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0:
        h[:2].neg_()
    else:
        h[2:].zero_()
    return h


def the_caller_sees_the_base(x: Tensor) -> Tensor:
    part = x[1:]
    if x.sum() > 0:
        part.mul_(2)
    return part.sum()


def both_arms_through_other_views(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0:
        h[::2] = 1
    else:
        h[1::2] = h[::2]
    return h + 0


def two_tensors(x: Tensor) -> tuple[Tensor, Tensor]:
    h, k = x * 2, x + 1
    if x.sum() > 0:
        h.add_(k)
        k.mul_(h)
    else:
        k.sub_(1)
    return h, k


def two_inputs(x: Tensor) -> Tensor:
    y = x.clone()
    if x.sum() > 0:
        x.add_(y)
        y.copy_(x)
    return x - y


def setitem(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0:
        h[1] = h[2]
        h[0] += 4
    return h


def bound_to_its_operand(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0:
        y = h.add_(1)
    else:
        y = h.mul_(2)
    return y + h


def by_out(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0:
        torch.add(x, 1, out=h)
    return h


def without_gradients(x: Tensor) -> Tensor:
    h = x.detach() * 2
    if x.sum() > 0:
        with torch.no_grad():
            h.add_(1)
    return h * x


CAPTURED: list[Callable[[Tensor], Any]] = [
    in_one_arm,
    in_both_arms,
    twice_in_one_arm,
    in_two_branches,
    nested,
    read_in_the_arm_after_it,
    a_view_read_afterwards,
    through_a_view,
    through_a_view_of_a_view,
    through_a_view_made_in_the_arm,
    the_caller_sees_the_base,
    both_arms_through_other_views,
    two_tensors,
    two_inputs,
    setitem,
    bound_to_its_operand,
    without_gradients,
]
WRITES_ITS_INPUT = {in_one_arm, twice_in_one_arm, the_caller_sees_the_base, two_inputs}


@pytest.mark.parametrize("program", CAPTURED, ids=lambda program: program.__name__)
def test_written_once_where_the_arms_meet(program: Callable[[Tensor], Any]) -> None:
    side_by_side(program, *TURNS).only("where", "pure_total")


@pytest.mark.parametrize(
    "program",
    [p for p in CAPTURED if p not in WRITES_ITS_INPUT],  # a leaf that requires grad is not written
    ids=lambda program: program.__name__,
)
def test_gradients(program: Callable[[Tensor], Any]) -> None:
    side_by_side(program, *TURNS, grad=True).only("where", "pure_total")


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int8]
)
def test_dtypes(dtype: torch.dtype) -> None:
    inputs = signed(2, -1, 3, 1, dtype=dtype)
    side_by_side(in_both_arms, *inputs).only("where", "pure_total")
    side_by_side(in_one_arm, *inputs).only("where", "pure_total")


def test_truth_values_are_written_too() -> None:
    def program(x: Tensor, m: Tensor) -> Tensor:
        if x.sum() > 0:
            m.logical_not_()
        return m & (x > -1)

    mask = torch.tensor([True, False, True, False])
    side_by_side(program, *[(x, mask.clone()) for (x,) in TURNS]).only("where", "pure_total")


def test_nan_and_infinity_pass_through_unharmed() -> None:
    x = torch.tensor([NAN, INF, -INF, -0.0])
    inputs = [(x.clone(), torch.tensor(flag)) for flag in (True, False, True)]

    def program(x: Tensor, flag: Tensor) -> Tensor:
        if flag:
            x.mul_(0)
        return x + 0

    side_by_side(program, *inputs).only("where", "pure_total")


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4)])
def test_in_place_writes_to_empty_tensors(shape: tuple[int, ...]) -> None:
    def program(x: Tensor, flag: Tensor) -> Tensor:
        if flag:
            x.add_(1)
        return x * 2

    inputs = [(torch.zeros(shape), torch.tensor(flag)) for flag in (True, False)]
    side_by_side(program, *inputs).only("where", "pure_total")


def test_dynamic_shapes() -> None:
    inputs = [(s * torch.arange(-1.0, n),) for n in (5, 7, 6) for s in (1, -1)]
    assert side_by_side(in_one_arm, *inputs, dynamic=True).treatments == [("where", "pure_total")]


def test_one_copy_back_per_memory() -> None:
    """However often an arm writes, and through however many views."""
    outcome = side_by_side(through_a_view_of_a_view, *TURNS)
    assert outcome.ops["copy_"] == 1
    assert outcome.ops["where"] == 1
    assert side_by_side(two_tensors, *TURNS).ops["copy_"] == 2


def test_an_arm_of_its_own_memory_needs_no_copy() -> None:
    def program(x: Tensor) -> Tensor:
        h = x * 2
        if x.sum() > 0:
            h = (x + 1).mul_(3)
        return h

    outcome = side_by_side(program, *TURNS)
    outcome.only("where", "pure_total")
    assert outcome.ops["copy_"] == outcome.ops["clone"] == 0


class Running(nn.Module):
    """Lowest and highest so far, begun on the first call, in buffers."""

    low: Tensor
    high: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.tensor(INF))
        self.register_buffer("high", torch.tensor(-INF))

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach()
        if torch.isinf(self.low):
            self.low.copy_(x.min())
            self.high.copy_(x.max())
        else:
            self.low.copy_(torch.minimum(self.low, x.min()))
            self.high.copy_(torch.maximum(self.high, x.max()))
        return x.clamp(self.low, self.high)


@pytest.mark.parametrize("grad", [False, True])
def test_buffers_that_decide_the_next_call(grad: bool) -> None:
    assert ("where", "pure_total") in side_by_side(Running(), *TURNS, grad=grad).treatments


class Steps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            with torch.no_grad():
                self.weight.mul_(0.5)
        return self.weight * x


def test_a_parameter_written_without_autograd_stays_a_leaf() -> None:
    module = Steps()
    side_by_side(module, *TURNS, grad=True).only("where", "pure_total")
    assert module.weight.is_leaf
    assert module.weight.requires_grad


def test_memory_that_no_older_tensor_has_is_kept() -> None:
    with pytest.raises(Refusal, match="the other arm made"):
        _root([], None)
