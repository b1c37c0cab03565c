"""Activation checkpointing in a frame that is compiled: values and gradients are eager's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import fusepass


def _saves_products(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    if op is torch.ops.aten.mm.default:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


_SELECTIVE = functools.partial(create_selective_checkpoint_contexts, _saves_products)


def dropped(y: Tensor) -> Tensor:
    return F.dropout(y, 0.5).exp()


def dropped_in_front_of_a_branch(y: Tensor) -> Tensor:
    y = F.dropout(y, 0.5)
    if y.max() > 1:
        y = y * 2
    return y.exp()


def nested(y: Tensor) -> Tensor:
    return _checkpointed(dropped_in_front_of_a_branch, F.dropout(y, 0.25)).sin()


def multiplied(y: Tensor) -> Tensor:
    y = (y @ y).tanh()
    if y.sum() > 0:
        y = y.cos()
    return y @ y


def _checkpointed(function: Callable[[Tensor], Tensor], x: Tensor, **kwargs: Any) -> Tensor:
    result = checkpoint(function, x, use_reentrant=False, **kwargs)
    assert isinstance(result, Tensor)
    return result


def _gradients(function: Callable[..., Tensor], x: Tensor, **kwargs: Any) -> list[Tensor]:
    torch.manual_seed(1)
    result = function(x, **kwargs)
    return [result.detach(), *torch.autograd.grad(result.square().sum(), [x])]


def _x(scale: float = 1.0) -> Tensor:
    made = torch.rand(8, 8, generator=torch.Generator().manual_seed(3)) + 0.1
    return (made * scale).requires_grad_()


@pytest.mark.parametrize("body", [dropped, dropped_in_front_of_a_branch, nested])
def test_op_by_op_the_backward_draws_what_the_forward_drew(
    body: Callable[[Tensor], Tensor],
) -> None:
    def program(x: Tensor) -> Tensor:
        return _checkpointed(body, x * 1.0)

    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for scale in (1.0, 0.1):
        want = _gradients(program, _x(scale))
        torch.testing.assert_close(_gradients(compiled, _x(scale)), want, rtol=0, atol=0)
    assert fusepass.last_report(compiled).graph_breaks == ()


def test_op_by_op_random_numbers_are_drawn_anew_where_the_program_says_so() -> None:
    def program(x: Tensor) -> Tensor:
        return _checkpointed(dropped, x * 1.0, preserve_rng_state=False)

    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    torch.testing.assert_close(_gradients(compiled, _x()), _gradients(program, _x()))


def test_op_by_op_a_policy_decides_what_is_computed_again() -> None:
    def program(x: Tensor) -> Tensor:
        return _checkpointed(multiplied, x * 1.0, context_fn=_SELECTIVE)

    def products(function: Callable[..., Tensor]) -> tuple[list[Tensor], int]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            found = _gradients(function, _x())
        return found, sum(e.count for e in profile.key_averages() if e.key == "aten::mm")

    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    compiled(_x())
    want, count = products(program)
    found, made = products(compiled)
    torch.testing.assert_close(found, want, rtol=0, atol=0)
    assert made == count
    assert fusepass.last_report(compiled).graph_breaks == ()


class Counted(torch.nn.Module):
    """Writes buffers in a checkpointed function: eager writes them in the recomputation, too."""

    def __init__(self, rows: bool) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(8)
        self.register_buffer("steps", torch.zeros(()))
        self.steps: Tensor
        self.rows = rows

    def body(self, y: Tensor) -> Tensor:
        y = self.norm(y.sin())
        if self.rows:
            y = torch.vmap(lambda row: row * row.sum())(y)
        y = y.cos()
        self.steps.add_(1)
        return y

    def forward(self, x: Tensor) -> Tensor:
        return _checkpointed(self.body, x * 1.0)


@pytest.mark.parametrize("rows", [False, True])
def test_op_by_op_a_checkpoint_writes_buffers_as_eager_does(rows: bool) -> None:
    torch.manual_seed(0)
    module, other = Counted(rows), Counted(rows)
    compiled = torch.compile(other, backend="fusepass", options={"codegen": "eager"})
    for _ in range(2):
        want, got = _gradients(module, _x()), _gradients(compiled, _x())
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        if not rows:  # levels of torch.func are left by computing to the end
            torch.testing.assert_close(dict(other.named_buffers()), dict(module.named_buffers()))
