"""Calls that are written out give eager's numbers, also those of special operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fusepass.inductor.faults.rewrites import rewrite_faulty_calls
from tests.inductor.faults.graphs import names, traced

INF, NAN = float("inf"), float("nan")
NUMBERS = torch.tensor([5.5, -5.5, 0.0, -0.0, 1e20, 2147483648.0, 7.0, 1.0, 0.5, INF, -INF, NAN])
LEFT = NUMBERS.repeat_interleave(len(NUMBERS))
RIGHT = torch.tensor([INF, -INF, 3.0, -3.0, 0.7, 0.1, -0.1, 1 / 3, 0.0, -0.0, NAN, 1e-3]).repeat(12)
OPS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "floor division": lambda a, b: a // b,
    "by a number": lambda a, b: (a // 0.1, a // -3, a // float("inf")),
    "of a number": lambda a, b: 7.3 // b,
    "div": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "remainder": lambda a, b: a % b,
    "remainder of numbers": lambda a, b: (a % 3.0, a % -0.1, a % float("inf")),
    "remainder for a number": lambda a, b: 7.3 % b,
}
SMALL = torch.tensor([1e-9, -1e-9, 1e-20, -0.0, 0.1, -0.29, 0.31, -2.0, 3.0, -INF, NAN]).repeat(3)
LARGE = torch.tensor([89.0, -89.0, 88.9, 80.5, -79.5, 1.0, -0.0, 1e-3, 91.0, INF, -INF, NAN])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", OPS)
def test_eager_numbers(name: str, dtype: torch.dtype) -> None:
    a, b = LEFT.to(dtype), RIGHT.to(dtype)
    gm = traced(OPS[name], a, b)
    found = rewrite_faulty_calls(gm.graph)
    gm.recompile()
    single = dtype is not torch.float64 or name[-1] != "h"
    assert bool(found) is single  # the ends of double precision are Inductor's, too
    wanted = OPS[name](a, b)
    torch.testing.assert_close(gm(a, b), wanted, equal_nan=True, rtol=1e-6, atol=0)
    for node in gm.graph.nodes:
        if node.op == "call_function":
            assert node.meta["val"].device == a.device


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("operator", [torch.expm1, lambda x: F.elu(x)])
def test_small_numbers(operator: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    gm = traced(operator, SMALL.to(dtype), decomposed=True)
    (decision,) = rewrite_faulty_calls(gm.graph)
    assert decision.rule == "expm1"
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.expm1.default):
        node.target = rounded  # what Inductor computes
    gm.recompile()
    wanted = operator(SMALL.to(dtype))
    tolerance = {torch.float64: 1e-14, torch.float32: 1e-6}.get(dtype, 1e-2)
    torch.testing.assert_close(gm(SMALL.to(dtype)), wanted, equal_nan=True, rtol=tolerance, atol=0)


def rounded(x: Tensor) -> Tensor:
    return x.exp() - 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("operator", [torch.sinh, torch.cosh])
def test_large_numbers(operator: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    """As exact as a number of the dtype can be: some of eager's kernels overflow themselves."""
    x = LARGE.to(dtype)
    gm = traced(operator, x)
    assert len(rewrite_faulty_calls(gm.graph)) == 1
    gm.recompile()
    wanted = operator(x.double()).to(dtype)
    tolerance = 1e-5 if dtype is torch.float32 else 1e-2
    torch.testing.assert_close(gm(x), wanted, equal_nan=True, rtol=tolerance, atol=0)


def test_signed_zeros_and_dtypes() -> None:
    a, b = torch.tensor([-0.0, 0.0, -1.0]), torch.tensor([1.0, -1.0, INF])
    gm = traced(lambda a, b: (a // b, a % b), a, b)
    rewrite_faulty_calls(gm.graph)
    gm.recompile()
    for mine, theirs in zip(gm(a, b), (a // b, a % b), strict=True):
        torch.testing.assert_close(1 / mine, 1 / theirs)


@pytest.mark.parametrize(
    "program",
    [
        lambda a: a.long() // 3,
        lambda a: a.long() % 3,
        lambda a: a / 3,
        lambda a: torch.div(a, 3, rounding_mode="trunc"),
        lambda a: torch.fmod(a, 3),
        lambda a: torch.tanh(a),
        lambda a: torch.sinh(a.double()),
    ],
)
def test_near_misses(program: Callable[[Tensor], Tensor]) -> None:
    gm = traced(program, torch.randn(4))
    before = names(gm)
    assert rewrite_faulty_calls(gm.graph) == []
    assert names(gm) == before


def test_mixed_operands() -> None:
    """Computed in the result's type, as eager promotes."""
    a, b = torch.tensor([7, -7, 9]), torch.tensor([0.7, 0.7, -0.3], dtype=torch.float64)
    gm = traced(lambda a, b: (a // b, a % b), a, b)
    assert len(rewrite_faulty_calls(gm.graph)) == 2
    gm.recompile()
    torch.testing.assert_close(gm(a, b), (a // b, a % b))


ODD = torch.tensor([NAN, INF, -INF, -0.0, 0.0, 2.0])
OTHERS: dict[str, tuple[str | None, Callable[[Tensor], Any], Tensor]] = {
    "times zero": ("zero_times", lambda x: x * 0, ODD),
    "times zero as a float": (None, lambda x: x * 0.0, ODD),
    "integers times zero": (None, lambda x: x.long() * 0, ODD),
    "plus zeros": ("sign_of_zero", lambda x: 1 / (x + torch.zeros_like(x)), ODD),
    "plus negative zeros": (None, lambda x: 1 / (x + torch.full_like(x, -0.0)), ODD),
    "plus zeros whose sign nobody sees": (None, lambda x: (x + torch.zeros_like(x)).exp(), ODD),
    "plus zeros of another shape": (None, lambda x: x + torch.zeros(2, 6), ODD),
    "inverse root": ("inverse_root", lambda x: x**-0.5, ODD),
    "root": (None, lambda x: x**0.5, ODD),
    "narrow": ("narrow_abs", torch.abs, torch.tensor([-128, 3, -3], dtype=torch.int8)),
    "wide": (None, torch.abs, torch.tensor([-128, 3, -3])),
    "acosh": ("large_acosh", torch.acosh, torch.tensor([1.0, 1.5, 1e14, 2e15, 3e38, NAN, 0.5])),
    "acosh of doubles": (None, lambda x: torch.acosh(x.double()), ODD),
}


@pytest.mark.parametrize("name", OTHERS)
def test_unaffected_calls_are_not_rewritten(name: str) -> None:
    rule, program, x = OTHERS[name]
    gm = traced(program, x, decomposed=True)
    found = rewrite_faulty_calls(gm.graph)
    gm.recompile()
    assert [one.rule for one in found] == ([rule] if rule else [])
    torch.testing.assert_close(gm(x), program(x), equal_nan=True, rtol=2e-6, atol=0)
