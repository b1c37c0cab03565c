"""Results in memory of the called function: which, and that none is overwritten too early."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch._inductor.lowering  # the rewrite has imported it when it asks
from torch import Tensor

from tests.torch_private.host_operator import CALLS, OWN, compiled_code, operator, with_own

__all__ = ["operator", "with_own"]


def _multiplied(operator: Any, x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
    """What is made of x goes into products alone, one of them of a view."""
    weight, total = operator(x, [y], 3.0)
    again = weight.view(-1).view(x.shape)
    made = (weight @ z).relu() + (z @ again).sum()
    return [made, made * total[0]]


def test_memory_of_the_functions_own(with_own: Any) -> None:
    def program(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
        return _multiplied(with_own, x, y, z)

    torch._dynamo.reset()
    CALLS.clear()
    compiled = torch.compile(program)
    for _ in range(3):
        given = torch.randn(6, 6), torch.randn(11), torch.randn(6, 6)
        with torch.no_grad():
            got = compiled(*given)
        for one, expected in zip(got, program(*given), strict=True):
            torch.testing.assert_close(one, expected, rtol=1e-5, atol=1e-5)
    assert len(CALLS) == 3
    (kept,) = OWN
    assert {one[2].data_ptr() for one in CALLS} == {kept[0].data_ptr()}
    torch.testing.assert_close(kept[0], given[0] * 3)  # nothing else was written there


def _before_both(operator: Any, x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
    one, _ = operator(x, [y], 3.0)
    other, total = operator(x + 1, [y], 3.0)
    return [z @ one, z @ other, total]


def _one_of_the_other(operator: Any, x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
    one, _ = operator(x, [y], 3.0)
    other, total = operator(z @ one, [y], 3.0)
    return [z @ other @ one, total]


def _in_an_arm(operator: Any, x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
    one, total = operator(x, [y], 3.0)
    made = torch.cond(
        x.sum() < torch.inf, lambda z, y: z @ operator(z, [y], 3.0)[0], lambda z, y: z + 1, (z, y)
    )
    return [made @ one, total]


@pytest.mark.parametrize("program", [_before_both, _one_of_the_other, _in_an_arm])
def test_two_equal_calls_do_not_share_memory(with_own: Any, program: Callable[..., Any]) -> None:
    """One function each: what the first has made is still to be read when the second comes."""
    given = torch.randn(6, 6), torch.randn(11), torch.randn(6, 6)
    compiled_code(partial(program, with_own), *given)
    assert len(OWN) == len({kept[0].data_ptr() for kept in OWN}) == 2


def test_nothing_is_kept_under_cuda_graphs(with_own: Any) -> None:
    """On the CPU that setting changes nothing else."""
    from torch._inductor import config

    given = torch.randn(6, 6), torch.randn(11), torch.randn(6, 6)
    with config.patch({"triton.cudagraphs": True}):
        _, code = compiled_code(partial(_before_both, with_own), *given)
    assert "make_launcher(3.0, 'cpu')" in code
    assert not OWN


NOT_ITS_OWN: dict[str, Callable[..., Any]] = {
    "it leaves the graph": lambda w, z: (w @ z, w),
    "a view of it leaves the graph": lambda w, z: (w @ z, w.t()),
    "element by element": lambda w, z: (w @ z, w.sin()),
    "nothing reads it": lambda w, z: (z @ z, z),
}


@pytest.mark.parametrize("name", NOT_ITS_OWN)
def test_what_the_function_may_not_keep(with_own: Any, name: str) -> None:
    def program(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
        weight, total = with_own(x, [y], 3.0)
        return [*NOT_ITS_OWN[name](weight, z), total]

    _, code = compiled_code(program, torch.randn(6, 6), torch.randn(11), torch.randn(6, 6))
    assert "make_launcher(3.0, 'cpu')" in code
    assert not OWN


def test_not_where_code_of_the_users_comes_between(with_own: Any) -> None:
    """It could run the same compiled code, which would write the same memory."""

    @torch.library.custom_op("fusepass_test::between", mutates_args=())
    def between(z: Tensor) -> Tensor:
        return z + 1

    @between.register_fake
    def _(z: Tensor) -> Tensor:
        return torch.empty_like(z)

    def program(x: Tensor, y: Tensor, z: Tensor, *, nested: bool) -> list[Tensor]:
        weight, total = with_own(x, [y], 3.0)
        if nested:
            z = torch.cond(z.sum() > 0, lambda z: between(z), lambda z: z * 2, (z,))
        else:
            z = between(z)
        return [z @ weight, total]

    given = torch.randn(6, 6), torch.randn(11), torch.randn(6, 6)
    for nested in (False, True):
        _, code = compiled_code(partial(program, nested=nested), *given)
        assert "make_launcher(3.0, 'cpu')" in code
        assert not OWN


def test_what_autograd_saves_is_not_kept(with_own: Any) -> None:
    def program(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        weight, _ = with_own(x, [y], 3.0)
        return (weight @ z).sum()

    torch._dynamo.reset()
    z = torch.randn(6, 6, requires_grad=True)
    x, y = torch.randn(6, 6), torch.randn(11)
    torch.compile(program)(x, y, z).backward()
    assert not OWN
    assert z.grad is not None
    torch.testing.assert_close(z.grad, (x * 3).t() @ torch.ones(6, 6))
