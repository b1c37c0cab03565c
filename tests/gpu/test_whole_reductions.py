"""Reductions over few numbers in one kernel on a CUDA device: numbers, gradients, launches."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code
from torch.nn import functional as F

import fusepass
from fusepass.numerics import rms, rms_error

pytestmark = pytest.mark.gpu
RULE = "whole_reductions"
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: x.softmax(0),
    "log softmax": lambda x: F.log_softmax(x.sin(), 0),
    "weight norm": lambda x: x / x.norm(dim=0, keepdim=True),
    "standardised": lambda x: (x - x.mean(0)) / (x.std(0) + 1e-3),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True).relu(),
    "both ways": lambda x: x.logsumexp(0).mean() + x.logsumexp(1).mean(),
    "between": lambda x: (x - x.amin(0)) / (x.amax(0) - x.amin(0)),
    "cubes": lambda x: x.pow(3).sum(0),
}


def close(made: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    limit = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    assert rms_error(made, exact) <= limit * max(rms(exact), 1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(150, 300), (192, 77), (512, 1000)], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_and_gradients(name: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    program = PROGRAMS[name]
    x = torch.randn(shape, device="cuda").to(dtype)
    mine, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    made, want = torch.compile(program, backend="fusepass")(mine), program(exact)
    close(made, want, dtype)
    along = torch.randn_like(want)
    made.backward(along.to(dtype))
    want.backward(along.to(dtype).double())
    assert mine.grad is not None
    assert exact.grad is not None
    close(mine.grad, exact.grad, dtype)


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_reductions_of_nonfinite_values(special: float) -> None:
    x = torch.randn(300, 200, device="cuda")
    x[7, 3] = x[100, 5] = special
    for program in (lambda x: x.sum(0), lambda x: x.amax(0), lambda x: x.softmax(0)):
        compiled = torch.compile(program, backend="fusepass")
        torch.testing.assert_close(compiled(x), program(x), equal_nan=True)


@pytest.mark.skipif(not HOPPER, reason="measured on compute capability 9.0 only")
def test_one_launch_and_what_is_said() -> None:
    compiled = torch.compile(lambda x: x.softmax(0), backend="fusepass")
    x = torch.randn(512, 1024, device="cuda")
    _, codes = run_and_get_code(compiled, x)
    assert codes[0].count(".run(") == 1
    (one,) = (d for d in fusepass.last_report(compiled).decisions if d.rule == RULE)
    assert (one.outcome, one.reason_code) == ("applied", "measured")
    assert "512 numbers for each of 1024 results" in one.reason


@pytest.mark.skipif(not HOPPER, reason="measured on compute capability 9.0 only")
def test_in_a_backward_and_with_sizes_that_change() -> None:
    layer = torch.nn.Linear(64, 256, device="cuda")
    compiled = torch.compile(layer, backend="fusepass", dynamic=False)
    for rows in (256, 300):
        x, along = torch.randn(rows, 64, device="cuda"), torch.randn(rows, 256, device="cuda")
        layer.zero_grad()
        compiled(x).backward(along)
        mine = layer.bias.grad.clone()
        torch.testing.assert_close(mine, along.sum(0), rtol=1e-4, atol=1e-4)
    found = [d for d in fusepass.last_report(compiled).decisions if d.rule == RULE]
    assert {d.outcome for d in found} == {"applied"}
    varying = torch.compile(lambda x: x.sum(0), backend="fusepass", dynamic=True)
    for rows in (200, 5000):
        x = torch.randn(rows, 64, device="cuda")
        torch.testing.assert_close(varying(x), x.sum(0), rtol=1e-4, atol=1e-3)
    assert not [
        d
        for d in fusepass.last_report(varying).decisions
        if (d.rule, d.outcome) == (RULE, "applied")
    ]
