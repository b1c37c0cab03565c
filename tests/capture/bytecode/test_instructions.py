"""Truth values that a helper returns: they stay on the device where the caller only tests them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ..support.side_by_side import side_by_side, signed

TURNS = [*signed(1.0, -0.5, 2.0, 0.25), *signed(1.0, float("nan"), 2.0, 0.25)]


def not_all(x: Tensor) -> bool:
    return not (x > 0).all()


def as_bool(x: Tensor) -> bool:
    return bool(x.isnan().any())


def as_item(x: Tensor) -> bool:
    return x.isnan().any().item()  # type: ignore[return-value]


def any_of_two(x: Tensor) -> bool:
    return x.isnan().any().item() or x.max().gt(1).item()  # type: ignore[return-value]


def compared(x: Tensor, bound: float = 1.0) -> bool:
    return float(x.max()) > bound


def of_a_helper(x: Tensor) -> bool:
    return not as_bool(x)


def early(x: Tensor) -> bool:
    if x.isnan().any():
        return False
    return (x.sum() > 0).item()  # type: ignore[return-value]


@pytest.mark.parametrize(
    "helper",
    [not_all, as_bool, as_item, any_of_two, compared, of_a_helper],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("grad", [False, True])
def test_a_result_used_only_as_a_condition_stays_a_tensor(
    helper: Callable[[Tensor], bool], grad: bool
) -> None:
    def program(x: Tensor) -> Tensor:
        if helper(x):
            x = x * 2
        y = x - 1 if not helper(x) else x + 1
        return y + 0

    side_by_side(program, *TURNS, grad=grad).only("where", "pure_total")


class Guard(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.checks = (as_item, compared)

    def bad(self, x: Tensor) -> bool:
        return not torch.isfinite(x).all()

    @staticmethod
    def large(x: Tensor) -> bool:
        return x.max().item() > 1

    def forward(self, x: Tensor) -> Tensor:
        is_nan = lambda t: bool(t.isnan().any())  # noqa: E731
        if self.bad(x):
            x = x.nan_to_num()
        if self.large(x) and not is_nan(x):
            x = x / 2
        return x + 0


def test_methods_and_lambdas() -> None:
    side_by_side(Guard(), *TURNS).only("where", "pure_total")


def test_a_constant_on_another_way_out() -> None:
    def program(x: Tensor) -> Tensor:
        return x * 2 if early(x) else x - 1

    assert side_by_side(program, *TURNS).decisions


def stored(x: Tensor) -> Any:
    return as_item(x), x * 2


def counted(x: Tensor) -> Any:
    return sum([as_item(x), compared(x)]), x * 2


def mapped(x: Tensor) -> Any:
    found = list(map(as_item, (x, x + 1)))
    return found.count(True), x * 2


def picked(x: Tensor) -> Any:
    return {True: x * 2, False: x + 1}[not_all(x)]


def typed(x: Tensor) -> Any:
    flag = as_bool(x)
    return type(flag) is bool, x * (2 if flag else 3)


def identical(x: Tensor) -> Any:
    return x * 2 if not_all(x) is True else x + 1


@pytest.mark.parametrize(
    "program", [stored, counted, mapped, picked, typed, identical], ids=lambda f: f.__name__
)
def test_a_result_used_beyond_a_condition_is_a_bool(program: Any) -> None:
    side_by_side(program, *TURNS)


def test_kept_truth_values_are_stored_and_tested() -> None:
    def program(x: Tensor) -> Tensor:
        fine = not x.isnan().any()
        if fine:
            x = x + 1
        return x * 1

    side_by_side(program, *TURNS).only("where", "pure_total")
