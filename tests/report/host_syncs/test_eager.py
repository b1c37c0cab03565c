"""Eager programs on a machine without a device: each wait, at its line, and nothing else."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fusepass.report.host_syncs.kinds import Kind
from fusepass.report.host_syncs.observe import Wait, Watch
from fusepass.report.host_syncs.residence import AsIf

logger = logging.Logger("tests.report.host_syncs")  # noqa: LOG001 - no parent, one handler
logger.addHandler(logging.StreamHandler(io.StringIO()))


def watched(fn: Callable[..., Any], *args: Any) -> list[Wait]:
    watch = Watch(as_if=AsIf())
    watch.call(fn, args, {}, eager=True)
    return watch.waits


def kinds(fn: Callable[..., Any], *args: Any) -> list[tuple[str, int]]:
    return [(wait.kind.value, wait.times) for wait in watched(fn, *args)]


def x() -> Tensor:
    return torch.tensor([1.0, -2.0, 3.0, 0.5])


def chained(t: Tensor) -> Any:
    return t.any() and t.all()


def ternary(t: Tensor) -> Any:
    return 1 if t.sum() > 0 else 2


def loop(t: Tensor) -> Any:
    while t.sum() < 10:
        t = t * 2 + 3
    return t


def checked(t: Tensor) -> Any:
    assert t.isfinite().all(), "not finite"


def compared(t: Tensor) -> Any:
    if t.sum().item() > 0 and float(t[0]) < 5:
        return t
    return None


def comprehended(t: Tensor) -> Any:
    return [i for i in range(4) if t[i] > 0]


def negated(t: Tensor) -> Any:
    if not t.any():
        return t
    return None


def matched(t: Tensor) -> Any:
    match int(t[0]):
        case 1:
            return t
    return None


def logged(t: Tensor) -> Any:
    logger.warning("loss %s", t.sum())


def warned(t: Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn(f"{t.sum().item():.3f}", stacklevel=1)


def masked_write(t: Tensor) -> Any:
    t = t.clone()
    t[t > 0] = t[t > 0] * 2


def back_and_forth(t: Tensor) -> Any:
    host = t.cpu()
    host.add_(1)
    if host[0] > 0:  # on the host already
        host = host * 2
    return host.to(t.device), host.tolist()


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda t: t.sum().item(), [("item", 1)]),
        (lambda t: t.tolist(), [("item", 1)]),
        (lambda t: list(range(int(t[0]))), [("item", 1)]),
        (lambda t: bool(t[0] > 0), [("item", 1)]),
        (lambda t: {float(t[0]): 1}, [("item", 1)]),
        (lambda t: 3 in t, [("item", 1)]),
        (lambda t: torch.full((2,), t[0]), [("item", 1)]),
        (lambda t: torch.tensor([t[0], t[1], 2.0]), [("item", 2)]),
        (chained, [("branch", 1)]),
        (ternary, [("branch", 1)]),
        (loop, [("branch", 1)] * 2),
        (checked, [("branch", 1)]),
        (compared, [("branch", 1)] * 2),
        (comprehended, [("branch", 1)] * 4),
        (negated, [("branch", 1)]),
        (matched, [("branch", 1)]),
        (lambda t: f"{t}", [("print", 1)]),
        (lambda t: f"{t.sum()}", [("print", 1)]),
        (lambda t: f"{t.sum().item():.2f}", [("print", 1)]),
        (lambda t: str([t, 1]), [("print", 1)]),
        (logged, [("print", 1)]),
        (warned, [("print", 1)]),
        (lambda t: t.cpu(), [("copy_out", 1)]),
        (lambda t: t.to("cpu"), [("copy_out", 1)]),
        (lambda t: t.to(torch.device("cpu")), [("copy_out", 1)]),
        (lambda t: t.numpy(), [("copy_out", 1)]),
        (back_and_forth, [("copy_out", 1), ("copy_in", 1)]),
        (lambda t: torch.tensor([1.0], device=t.device), [("copy_in", 1)]),
        (lambda t: torch.as_tensor([1.0], device=t.device), [("copy_in", 1)]),
        (lambda t: t.new_tensor([1.0]), [("copy_in", 1)]),
        (lambda t: torch.arange(4).to(t.device), [("copy_in", 1)]),
        (lambda t: torch.zeros(4).to(t), [("copy_in", 1)]),
        (lambda t: t[[0, 2]], [("copy_in", 1)]),
        (lambda t: t[torch.tensor([0, 2])], [("copy_in", 1)]),
        (lambda t: t.nonzero(), [("nonzero", 1)]),
        (lambda t: torch.where(t > 0), [("nonzero", 1)]),
        (lambda t: torch.argwhere(t > 0), [("nonzero", 1)]),
        (lambda t: t[t > 0].sum(), [("nonzero", 1)]),
        (lambda t: t.masked_select(t > 0), [("nonzero", 1)]),
        (masked_write, [("nonzero", 1), ("nonzero", 1)]),
        (lambda t: t.unique(), [("size", 1)]),
        (lambda t: t.long().abs().bincount(), [("size", 2)]),
        (lambda t: t.repeat_interleave(t.long().abs()), [("size", 1)]),
        (lambda t: F.one_hot(t.long().abs()), [("size", 1)]),
        (lambda t: torch.equal(t, t), [("operation", 1)]),
        (lambda t: torch.allclose(t, t + 1), [("operation", 1)]),
        (lambda t: t.abs().multinomial(1), []),  # checks on the device since torch 2.11
        (lambda t: torch.linalg.inv(torch.diag(t)), [("operation", 1)]),
    ],
)
def test_each_wait(fn: Callable[..., Any], expected: list[tuple[str, int]]) -> None:
    assert kinds(fn, x()) == expected


def host_only(t: Tensor) -> Any:
    table = torch.tensor([1.0, 2.0])
    if table.sum() > 0:
        table = table[table > 1] * 2
    text = f"{table}"
    return table.tolist(), text, torch.equal(table, table), t * 2


def attributes(t: Tensor) -> Any:
    if t.shape[0] > 2 and t.requires_grad is False and t.dtype == torch.float32:
        return t.reshape(t.numel() // 2, 2)
    return t


class Caches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(4, 4).tril().bool())

    def forward(self, t: Tensor) -> Tensor:
        scores = t[:, None] * t[None]
        return scores.masked_fill(~self.mask, float("-inf")).softmax(-1)


def empty_copy(t: Tensor) -> Any:
    return torch.zeros(0).to(t.device), t[:0].cpu()


@pytest.mark.parametrize(
    "fn",
    [
        lambda t: t * 2 + t.sum(),
        lambda t: t.clamp(min=0.0).softmax(-1).argmax(),
        host_only,
        attributes,
        Caches(),
        empty_copy,
        lambda t: torch.where(t > 0, t, 0.0),
        lambda t: t.masked_fill(t > 0, 1.0),
        lambda t: t.clone().index_put_((t > 0,), torch.tensor(1.0)),
        lambda t: t[1:3] + t[..., None].squeeze(-1)[:2],
        lambda t: torch.zeros(3, device=t.device) + 1,
        lambda t: torch.arange(4, device=t.device)[t.argsort()],
        lambda t: torch.full((2,), 3.0, device=t.device),
        lambda t: torch.zeros_like(t).copy_(t),
        lambda t: t.to(torch.float64).to(t.dtype),
        lambda t: t.to(t.device),
        lambda t: torch.zeros(3).to(t.device, non_blocking=True),
        lambda t: t.to("cpu", non_blocking=True),
        lambda t: F.one_hot(t.long().abs(), 5),
        lambda t: t.quantile(0.5),
        lambda t: t.repeat_interleave(2),
        lambda t: t.repeat_interleave(t.long().abs(), output_size=6),
        lambda t: torch.linalg.inv_ex(torch.diag(t)),
        lambda t: torch.stack([t[0], t[1]]),
        lambda t: torch.eye(3).sum().item(),
        lambda t: torch.ones(3, device="cpu").sum().item(),
        lambda t: torch.randn(4).max().item() > 0,
        lambda t: len(t) + t.dim(),
        lambda t: "text" if t is not None else t,
    ],
)
def test_nothing_waits(fn: Callable[..., Any]) -> None:
    assert kinds(fn, x()) == []


def test_masked_fill_through_a_mask_does_not_wait() -> None:
    def fill(t: Tensor) -> None:
        t[t > 0] = 1.0

    assert kinds(fill, x()) == []


def test_arguments_by_keyword() -> None:
    def called(t: Tensor) -> None:
        put = torch.ops.aten.index_put_
        put(t.clone(), indices=[t > 0], values=t[t > 0])
        torch.ops.aten.copy_(self=t.clone(), src=torch.zeros(4))
        torch.ops.aten.nonzero(self=t)

    assert kinds(called, x()) == [("nonzero", 1), ("nonzero", 1), ("copy_in", 1), ("nonzero", 1)]


def helper(t: Tensor) -> float:
    return t.sum().item()


def test_line_and_caller() -> None:
    def outer(t: Tensor) -> float:
        return helper(t) + 1

    (wait,) = watched(outer, x())
    assert (wait.place.file, wait.place.line) == (__file__, helper.__code__.co_firstlineno + 1)
    assert wait.place.caller_line == outer.__code__.co_firstlineno + 1


def test_line_in_torch_is_the_line_that_calls_torch() -> None:
    def clip(w: Tensor) -> None:
        w.grad = torch.ones_like(w)
        nn.utils.clip_grad_norm_([w], 1.0, error_if_nonfinite=True)

    (wait,) = watched(clip, x().requires_grad_())
    assert wait.kind is Kind.BRANCH
    assert wait.place.line == clip.__code__.co_firstlineno + 2


def test_expression_over_several_lines() -> None:
    def spread(t: Tensor) -> float:
        return t.sum().mul(2).item()

    (wait,) = watched(spread, x())
    first = spread.__code__.co_firstlineno
    assert first < wait.place.line <= first + 4


def test_backward_waits_at_the_line_that_starts_it() -> None:
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            return t * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * grad.sum().item()

    def step(t: Tensor) -> None:
        Reads.apply(t).sum().backward()

    (wait,) = watched(step, x().requires_grad_())
    assert wait.kind is Kind.ITEM
    assert wait.place.function == "backward"
    assert wait.place.caller_line in (
        step.__code__.co_firstlineno + 1,
        Reads.backward.__code__.co_firstlineno + 2,
    )


def test_optimizer_counts_its_steps_on_the_host() -> None:
    w = nn.Parameter(x())
    optimizer = torch.optim.AdamW([w], foreach=False)

    def step() -> None:
        w.grad = torch.ones_like(w)
        optimizer.step()

    step()
    assert kinds(step) == []


def test_device_of_an_argument_is_the_device() -> None:
    def made(t: Tensor, device: torch.device) -> Tensor:
        return torch.ones(2, device=device)[0].item() + t

    assert kinds(made, x(), torch.device("cpu")) == [("item", 1)]


def test_what_the_program_raises_is_raised() -> None:
    def fails(t: Tensor) -> None:
        raise KeyError("theirs")

    with pytest.raises(KeyError, match="theirs"):
        watched(fails, x())


def test_compiled_parts_of_an_eager_program_run_eagerly() -> None:
    inner = torch.compile(lambda t: t * 2 if t.sum() > 0 else t, backend="eager")
    assert kinds(lambda t: inner(t) + 1, x()) == [("branch", 1)]
