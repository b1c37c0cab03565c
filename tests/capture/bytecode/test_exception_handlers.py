"""Errors that nothing in the program acts on, or that no call raises: all stays in one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ..support.tried import Quiet, bare, ends, matrices, places


def passed_by_class(x: Tensor, i: Tensor) -> Tensor:
    y = x * 2
    try:
        y = y[i] + 1
    except (KeyError, RuntimeError):
        y = y.new_zeros(2)
    return y * 3


def raised_again(x: Tensor, i: Tensor) -> Tensor:
    y = x * 2
    try:
        y = y[i] + 1
    except IndexError:
        raise
    return y * 3


def raised_again_by_name(x: Tensor, i: Tensor) -> Tensor:
    try:
        y = x[i] + 1
    except LookupError as error:  # noqa: F841
        raise
    return y * 3


def under_modes(x: Tensor, i: Tensor) -> Tensor:
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        return x[i] * 2


def under_a_quiet_block(x: Tensor, i: Tensor) -> Tensor:
    with Quiet():
        y = x[i]
    return y * 2


def under_a_bare_generator(x: Tensor, i: Tensor) -> Tensor:
    with bare():
        y = x[i]
    return y * 2


def under_a_decorator(x: Tensor, i: Tensor) -> Tensor:
    @torch.no_grad()
    def inner() -> Tensor:
        return x[i] * 2

    return inner()


def outside(x: Tensor, i: Tensor) -> Tensor:
    y = x[i]
    try:
        y = y.sqrt() + x.sum()
    except Exception:  # noqa: BLE001
        y = x - 1
    return y + x[i]


def in_the_handler(x: Tensor, i: Tensor) -> Tensor:
    try:
        raise KeyError("a")
    except KeyError as error:  # noqa: F841
        y = x[i]
    return y + 1


def finally_does_nothing(x: Tensor, i: Tensor) -> Tensor:
    try:
        y = x[i]
    finally:
        pass
    return y + 1


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_forward_hook(lambda *_: None)

    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        return x[i] * 2


def in_a_list(x: Tensor, i: Tensor) -> Tensor:
    return torch.stack([x[i] * n for n in range(3)])


def over_rows(x: Tensor, i: Tensor) -> Tensor:
    return torch.func.vmap(lambda row: row.sin())(x[i])


PASSING = [
    passed_by_class,
    raised_again,
    raised_again_by_name,
    under_modes,
    under_a_quiet_block,
    under_a_bare_generator,
    under_a_decorator,
    outside,
    in_the_handler,
    finally_does_nothing,
    Hooked(),
    in_a_list,
    over_rows,
]


@pytest.mark.parametrize("program", PASSING, ids=lambda p: getattr(p, "__name__", "module"))
def test_an_error_that_nothing_acts_on_stays_in_the_graph(program: Callable[..., Any]) -> None:
    outcome = places(program)
    assert outcome.decisions == []
    assert outcome.breaks == []
    assert len(outcome.graphs) == 1


def decomposed_with_info(x: Tensor) -> Tensor:
    try:
        factor, info = torch.linalg.cholesky_ex(x)
    except RuntimeError:
        factor, info = x, torch.zeros(())
    return torch.where(info > 0, 0.0, factor)


def decomposed_by_another(x: Tensor) -> Tensor:
    try:
        factor = torch.linalg.cholesky(x)
    except (torch.OutOfMemoryError, IndexError, ValueError):
        factor = x
    return factor + 1


def test_no_error_of_a_decomposition_is_handled() -> None:
    for program in (decomposed_with_info, decomposed_by_another):
        outcome = matrices(program)
        assert ends(outcome) == []
        assert len(outcome.graphs) == 1


def in_range(x: Tensor, i: Tensor) -> Tensor:
    try:
        y = x[x.argsort()] + x.gather(0, x.topk(4).indices)
    except Exception:  # noqa: BLE001
        y = x
    return y


def by_mask(x: Tensor, i: Tensor) -> Tensor:
    try:
        y = x.clone()
        y[x > 2] = 0.0
        z = y[x > 2].sum() + torch.rand(())
    except Exception:  # noqa: BLE001
        z = x.sum()
    return z + y


def with_numbers(x: Tensor, i: Tensor) -> Tensor:
    try:
        y = x / x.norm().item() + torch.fft.rfft(x).abs().sum()
        if y.sum() > 0:
            y = y * 2
        print("sum", y.sum().item())  # noqa: T201
    except Exception:  # noqa: BLE001
        y = x
    return y


@pytest.mark.parametrize("program", [in_range, by_mask, with_numbers], ids=lambda p: p.__name__)
def test_what_raises_for_no_value_stays(program: Callable[..., Any]) -> None:
    outcome = places(program)
    assert ends(outcome) == []
    assert outcome.breaks == []
