"""Numbers read from tensors: kept on the device where only tensor work uses them, else read."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fusepass.torch_private.versions import clamp_gradients, clamps_to_nan

from ..support.side_by_side import Outcome, side_by_side, signed

TURNS = signed(1.0, -0.5, 2.0, 0.25, 3.0)


def items(outcome: Outcome) -> list[tuple[str, str]]:
    return [(d["treatment"], d["reason_code"]) for d in outcome.decisions if d["rule"] == "item"]


def stays(outcome: Outcome) -> None:
    """Every number stays on the device, in one graph."""
    assert items(outcome)
    assert set(items(outcome)) == {("device", "on_device")}, outcome.decisions
    assert outcome.ops["item"] == 0
    assert outcome.breaks == []
    assert len(outcome.graphs) == 1


def is_read(outcome: Outcome, reason: str) -> None:
    """A number is read, for a reason."""
    assert ("keep", reason) in items(outcome), outcome.decisions
    assert outcome.breaks


def normalised(x: Tensor) -> Tensor:
    return x / x.norm().item()


def by_float(x: Tensor) -> Tensor:
    return x * float(x.sum())


def by_int(x: Tensor) -> Tensor:
    return x * int((x > 0).sum())


def by_bool(x: Tensor) -> Tensor:
    return x * bool(x.sum() > 0) + (x.max() > 1).item()


def arithmetic(x: Tensor) -> Tensor:
    s, n = x.sum().item(), (x > 0).sum().item()
    return x * (2 * s - 1) + abs(-s) / 3 + (n + 1) ** 2 - n // 2


def cancelled(x: Tensor) -> Tensor:
    s = x.max().item()
    return x * (s + 1e20 - 1e20) + (s - s) * 2


def not_a_number(x: Tensor) -> Tensor:
    s = (x - x).div(0).sum().item()
    return x * (s != s) + (s - s)


def largest_of(x: Tensor) -> Tensor:
    s = x.sum().item()
    return x / max(s, 1e-6) + min(0.5, s, 3.0) + max(1.0, s)


def square_root(x: Tensor) -> Tensor:
    return x * math.sqrt(x.square().sum().item()) + x.abs().sum().item() ** 0.5


def inverse(x: Tensor) -> Tensor:
    return x * (1.0 / (x.norm().item() + 1e-6))


def negated_truth(x: Tensor) -> Tensor:
    flag = (x.sum() > 0).item()
    return x * (not flag)


def in_place(x: Tensor) -> Tensor:
    y = x * 2
    s = y.sum().item()
    y += s
    y.mul_(s).clamp_(max=s)
    y[1] = s
    return y


def at_the_call(x: Tensor) -> Tensor:
    y = x * 2
    first = y[0].item()
    y.zero_()
    return y + first


def its_own_memory(x: Tensor) -> Tensor:
    y = x * 2
    y.mul_(y[1].item())
    return y


def made(x: Tensor) -> tuple[Any, ...]:
    s = x.sum().item()
    return (
        torch.full((2, 3), s),
        torch.full_like(x, s),
        x.new_full((2,), s),
        torch.tensor(s),
        torch.tensor([s, 1.0]),
        torch.maximum(x, torch.tensor(s)),
    )


def new_tensor(x: Tensor) -> Tensor:
    return x.new_tensor([x.sum().item()])


def listed(x: Tensor) -> Tensor:
    a, b = x[:2].tolist()
    ((c,),) = (x[:1] > 0).reshape(1, 1).tolist()
    return x * a + b + x * c + x[2].tolist()


def asked_for_its_kind(x: Tensor) -> Tensor:
    s = x.sum().item()
    return x * math.isfinite(s) + math.isnan(s) + (not math.isinf(s))


def copied_to_the_host(x: Tensor) -> Tensor:
    return x * x.sum().detach().cpu().item()


def of_one_element(x: Tensor) -> Tensor:
    return x + x[:1].reshape(1, 1, 1).item()


def helper(x: Tensor) -> float:
    return x.abs().max().item()


def of_a_helper(x: Tensor) -> Tensor:
    return x / helper(x)


def scaled(x: Tensor) -> Tensor:
    return torch.lerp(x, x * 2, x.sum().item()) + torch.add(x, x, alpha=x.max().item())


DEVICE = [
    normalised,
    by_float,
    by_int,
    by_bool,
    arithmetic,
    cancelled,
    not_a_number,
    largest_of,
    square_root,
    inverse,
    negated_truth,
    in_place,
    at_the_call,
    its_own_memory,
    made,
    listed,
    asked_for_its_kind,
    copied_to_the_host,
    of_one_element,
    of_a_helper,
    scaled,
]


# Where a clamp by a number and one by a tensor differ, in their gradients (torch 2.15) or if it is
# NaN (before 2.13), there is no form of an in-place clamp on the device: in training it is kept.
CLAMPS_ALIKE = clamps_to_nan() and clamp_gradients() is None


@pytest.mark.parametrize("program", DEVICE)
@pytest.mark.parametrize("grad", [False, True])
def test_stays_on_the_device(program: Callable[[Tensor], Any], grad: bool) -> None:
    outcome = side_by_side(program, *TURNS, grad=grad)
    if CLAMPS_ALIKE or program is not in_place or not grad:
        stays(outcome)


def test_new_tensor() -> None:
    outcome = side_by_side(new_tensor, *TURNS)
    if torch.__version__ >= "2.12":  # before, Dynamo asks for the value
        stays(outcome)


@pytest.mark.parametrize("program", [normalised, by_float, inverse, largest_of, in_place])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_items_of_other_dtypes(program: Callable[[Tensor], Any], dtype: torch.dtype) -> None:
    turns = signed(1.0, -0.5, 2.0, 0.25, 3.0, dtype=dtype)
    outcome = side_by_side(program, *turns, grad=True)
    if CLAMPS_ALIKE or program is not in_place:
        stays(outcome)


def test_tiny_numbers_are_not_rounded_to_the_dtype() -> None:
    def program(x: Tensor, tiny: Tensor) -> Tensor:
        return x * tiny.item()

    x = torch.tensor([1000.0, 3.0], dtype=torch.float16)
    for shaped in (x, x[0]):
        stays(side_by_side(program, (shaped, torch.tensor(1e-8)), (shaped, torch.tensor(1e5))))


class Layers(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
            x = x / x.norm().item()
        return x


def test_24_layers_are_one_graph() -> None:
    outcome = side_by_side(Layers(24), (torch.randn(3, 4),), grad=True)
    stays(outcome)
    assert outcome.ops["div"] == 24


def branched_on_and_used(x: Tensor) -> Tensor:
    n = x.norm().item()
    if n > 1:
        x = x / n
    return x + n


def used_in_both_arms(x: Tensor) -> Tensor:
    s = x.sum().item()
    return x * s if s > 0 else x - s


def read_in_an_arm(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x / x.norm().item()
    return x * 2


def truth_stored(x: Tensor) -> Tensor:
    flag = bool(x.sum().item())
    h = x * flag
    if flag:
        h = h + 1
    return h


@pytest.mark.parametrize(
    "program", [branched_on_and_used, used_in_both_arms, read_in_an_arm, truth_stored]
)
@pytest.mark.parametrize("grad", [False, True])
def test_items_beside_captured_branches(program: Callable[[Tensor], Any], grad: bool) -> None:
    outcome = side_by_side(program, *TURNS, grad=grad)
    stays(outcome)
    assert ("where", "pure_total") in outcome.treatments


def sliced(x: Tensor) -> Tensor:
    return x[: int((x > 0).sum())]


def indexed(x: Tensor) -> Tensor:
    return x * x[x.argmax().item()]


def counted(x: Tensor) -> Tensor:
    for _ in range((x > 0).sum().item()):
        x = x + 1
    return x


def as_a_key(x: Tensor) -> Tensor:
    return x * {0: 1.0, 1: 2.0, 2: 3.0}.get((x > 1).sum().item(), 4.0)


def rounded_to_an_integer(x: Tensor) -> Tensor:
    return x * int(x.max())


def root_of_a_negative_softplus(x: Tensor) -> Tensor:
    return x * math.sqrt(functional.softplus(x.sum(), beta=-1).item())


def root_of_minus_infinity(x: Tensor) -> Tensor:
    return x * math.sqrt((x[0] * -0.0).rsqrt().item())


def may_divide_by_zero(x: Tensor) -> Tensor:
    return x * (1.0 / (x.sum().item() + 5))


def may_overflow(x: Tensor) -> Tensor:
    return x * (x.long().sum().item() + 1)


def fills_an_integer(x: Tensor) -> Tensor:
    return torch.zeros(3, dtype=torch.int8).fill_(x.long().sum().item()) + x[:3]


def one_of_a_list(x: Tensor) -> Tensor:
    sizes = (x > 0).long().tolist()
    return x[: sizes[0]] * sizes[1]


def a_long_list(x: Tensor) -> Tensor:
    return x * x.repeat(7).tolist()[3]


def a_power_of_two(x: Tensor) -> Tensor:
    return x * 2 ** (x > 0).sum().item()


def to_a_power_that_may_be_odd(x: Tensor) -> Tensor:
    return x ** x.long().sum().item()


def complex_number(x: Tensor) -> Tensor:
    return x * (x.sum() * 1j).item()


def compared_in_a_loop(x: Tensor) -> Tensor:
    while x.sum().item() < 10:
        x = x.abs() + 1
    return x


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (sliced, "size"),
        (indexed, "size"),
        (counted, "size"),
        (as_a_key, "python_value"),
        (rounded_to_an_integer, "partial_op"),
        (may_divide_by_zero, "partial_op"),
        (root_of_a_negative_softplus, "partial_op"),
        (root_of_minus_infinity, "partial_op"),
        (may_overflow, "overflow"),
        (fills_an_integer, "overflow"),
        (one_of_a_list, "size"),
        (a_long_list, "python_value"),
        (a_power_of_two, "python_value"),
        (complex_number, "python_value"),
        (to_a_power_that_may_be_odd, "inexact"),
    ],
)
def test_read(program: Callable[[Tensor], Any], reason: str) -> None:
    is_read(side_by_side(program, *TURNS), reason)
