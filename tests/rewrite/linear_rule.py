"""A rule for linear + ReLU with its own operator, and the comparison with eager."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import fusepass

from .linear_programs import Spelling, Weights

EXAMPLE = (torch.randn(4, 6), torch.randn(8, 6), torch.randn(8))


@torch.library.custom_op("fusepass_test::linear_relu", mutates_args=())
def linear_relu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.relu(F.linear(x, w, b))


@linear_relu.register_fake
def _(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], w.shape[0]))


def _setup(ctx: Any, inputs: Any, output: Tensor) -> None:
    x, w, _ = inputs
    ctx.save_for_backward(x, w, output)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, w, out = ctx.saved_tensors
    grad = grad * (out > 0)
    rows = grad.reshape(-1, grad.shape[-1])
    return grad @ w, rows.t() @ x.reshape(-1, x.shape[-1]), rows.sum(0)


linear_relu.register_autograd(_backward, setup_context=_setup)
linear_relu.register_autocast("cpu", torch.bfloat16)

RULE = fusepass.Rule(
    "test_linear_relu",
    lambda x, w, b: F.relu(F.linear(x, w, b)),
    lambda x, w, b: linear_relu(x, w, b),
    EXAMPLE,
)


def compare(spelling: Spelling, *, grad: bool) -> Any:
    """Run eager and compiled; return the report."""
    model, other = Weights(spelling.run), Weights(spelling.run)
    options = {"codegen": "eager"}
    dynamic = True if spelling.dynamic else None
    compiled = torch.compile(other, backend="fusepass", options=options, dynamic=dynamic)
    sizes = [spelling.shape]
    if spelling.dynamic:
        sizes.append((spelling.shape[0] + 3, *spelling.shape[1:]))
    for size in sizes:
        x = torch.randn(size, generator=torch.Generator().manual_seed(0))
        inputs = [x.clone().requires_grad_(grad) for _ in range(2)]
        context = (
            torch.autocast("cpu", dtype=torch.bfloat16)
            if spelling.autocast
            else contextlib.nullcontext()
        )
        with context, torch.set_grad_enabled(grad):
            torch.manual_seed(3)
            wanted = model(inputs[0])
            torch.manual_seed(3)
            got = compiled(inputs[1])
        same(got, wanted)
        if grad:
            total(wanted).backward()
            total(got).backward()
            same(inputs[1].grad, inputs[0].grad, exact=False)
            for a, b in zip(other.parameters(), model.parameters(), strict=True):
                assert (a.grad is None) == (b.grad is None)
                same(a.grad, b.grad, exact=False)
    return fusepass.last_report(compiled)


def total(value: Any) -> Tensor:
    parts = value if isinstance(value, tuple) else (value,)
    return sum(part.float().sin().sum() for part in parts)  # type: ignore[return-value]


def same(got: Any, wanted: Any, *, exact: bool = True) -> None:
    if wanted is None:
        return
    for a, b in zip(*((v if isinstance(v, tuple) else (v,)) for v in (got, wanted)), strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        tolerance = {"rtol": 1e-5, "atol": 1e-5} if not exact else {}
        torch.testing.assert_close(a, b, **tolerance)
