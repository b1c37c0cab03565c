"""An operator that becomes a call of a function that fills its outputs; one that runs anywhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch._inductor.lowering  # the rewrite has imported it when it asks
from torch import Tensor
from torch._inductor.utils import run_and_get_code

from fusepass.fusion.extern_calls import stays_inside
from fusepass.torch_private.inductor.host_call import HostCall, lower_to_host_call

CALLS: list[list[Tensor]] = []
OWN: list[list[Tensor]] = []


def make_launcher(factor: float, device: str) -> Callable[..., None]:
    """Fill two outputs: the first tensor times a factor, and the sum of the others."""
    assert device == "cpu"

    def fill(rows: int, x: Tensor, *rest: Tensor) -> None:
        *others, first, second = rest
        assert rows == first.shape[0]
        CALLS.append([x, *rest])
        flat = torch.as_strided(x, first.shape, first.stride())  # x may be what it is a view of
        first.copy_(flat * factor)
        second.zero_()
        for one in others:
            second += one.flatten()[: second.numel()].view(second.shape)

    return fill


def giver(factor: float) -> Callable[..., list[Tensor]]:
    """The same with memory of its own for its first output, the same in each call."""
    kept: list[Tensor] = []
    OWN.append(kept)

    def fill(rows: int, x: Tensor, *rest: Tensor) -> list[Tensor]:
        if not kept:
            kept.append(torch.empty(x.shape))
        *others, second = rest
        make_launcher(factor, "cpu")(rows, x, *others, kept[0], second)
        return kept

    return fill


def _reference(x: Tensor, others: Sequence[Tensor], factor: float) -> list[Tensor]:
    total = torch.zeros_like(others[0])
    for one in others:
        total += one
    return [x * factor, total]


def _fake(x: Tensor, others: Sequence[Tensor], factor: float) -> list[Tensor]:
    return [torch.empty_like(x), torch.empty_like(others[0])]


def _plan(x: Tensor, others: Sequence[Tensor], factor: float) -> HostCall | None:
    if factor == 0.0:
        return None
    outputs = [(one.dtype, one.shape, one.stride()) for one in (x, others[0])]
    return HostCall(__name__, "make_launcher", (factor, "cpu"), outputs, x.shape[:1])


def _own_plan(
    x: Tensor, others: Sequence[Tensor], factor: float, own: Collection[int]
) -> HostCall | None:
    outputs = [(one.dtype, one.shape, one.stride()) for one in (x, others[0])]
    if 0 not in own:
        return HostCall(__name__, "make_launcher", (factor, "cpu"), outputs, x.shape[:1])
    return HostCall(__name__, "giver", (factor,), outputs, x.shape[:1], returned=[0])


@pytest.fixture(scope="module")
def operator() -> Iterator[Any]:
    library = torch.library.Library("fusepass", "FRAGMENT")
    library.define(
        "test_fill(Tensor x, Tensor[] others, float factor) -> Tensor[]",
        tags=(torch.Tag.needs_exact_strides,),
    )
    library.impl("test_fill", _reference, "CompositeExplicitAutograd")
    torch.library.register_fake("fusepass::test_fill", _fake, lib=library)
    found = torch.ops.fusepass.test_fill.default
    lower_to_host_call(found, _plan)
    yield found
    library._destroy()


@pytest.fixture
def with_own(operator: Any) -> Iterator[Any]:
    OWN.clear()
    lower_to_host_call(operator, _own_plan, stays_inside)
    yield operator
    lower_to_host_call(operator, _plan)


def compiled_code(function: Callable[..., Any], *inputs: Tensor, **how: Any) -> tuple[Any, str]:
    torch._dynamo.reset()
    CALLS.clear()
    with torch.no_grad():
        results, (code,) = run_and_get_code(torch.compile(function, **how), *inputs)
    for one, expected in zip(results, function(*inputs), strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-6, atol=1e-6)
        assert one.stride() == expected.stride()
    return results, code
