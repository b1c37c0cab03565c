"""Programs through Inductor: decided as promised, and within the error rule.

The error rule (docs/design/index.md): RMS error against a float64 run of the eager program at most
max(2 × eager's, 1.1 × Inductor's own, half an ulp of the dtype at the result's RMS). Gradients,
too.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusepass.testing.compare import tensors

from .corpus import CORPUS
from .harness import Seen, build, call, check_report, fresh_compiler, prepare
from .program import Program

CHOSEN = [program for program in CORPUS if "inductor" in program.tags]
# Backward graphs cost as much again to compile: one in four.
WITH_GRAD = [program for program in CHOSEN if program.grad and program.captured(grad=True)][::4]
Runs = list[list[Tensor | None]]


def runs(program: Program, target: Any, owner: Any, context: str, *, double: bool = False) -> Runs:
    """Results (and gradients) of all input sets, one flat list per set."""
    found: Runs = []
    for args in prepare(program, 0, grad=False):
        ready = tuple(_double(arg) if double else arg for arg in args)
        for position, tensor in enumerate(tensors(ready)):
            if context == "grad" and tensor.is_floating_point() and position not in program.frozen:
                tensor.requires_grad_()
        seen: Seen = call(target, ready, owner, context)
        assert seen.error is None, seen.error
        found.append([*tensors(seen.result), *seen.grads])
    return found


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def rms(value: Tensor) -> float:
    """Root mean square, of numbers only: infinities and NaN are compared apart."""
    return float(value.detach().double().square().nanmean().sqrt()) if value.numel() else 0.0


def error(found: Tensor, exact: Tensor) -> float:
    """RMS distance to the float64 result; infinite where one is NaN or infinite and the other not."""
    found, exact = found.double(), exact.to(torch.float64)
    same = (found == exact) | (found.isnan() & exact.isnan())
    return rms(torch.where(same, 0.0, found - exact).nan_to_num(nan=float("inf")))


def half_ulp(exact: Tensor, dtype: torch.dtype) -> float:
    """Half a unit in the last place of ``dtype`` at the RMS of the exact result."""
    return 0.5 * torch.finfo(dtype).eps * rms(exact)


def hold(program: Program, context: str) -> None:
    """Compile through Inductor and hold every result to the error rule."""
    import fusepass

    exact = _reference(program, context)
    eager_target = build(program, context)
    eager = runs(program, eager_target, eager_target, context)
    with fresh_compiler():
        module = build(program, context)
        compiled = torch.compile(module, backend="fusepass", options=dict(program.options) or None)
        found = runs(program, compiled, module, context)
        grad = context == "grad"
        check_report(program, compiled, program.verdicts(grad=grad), grad=grad)
        assert fusepass.last_report(compiled).to_dict()["graphs"] >= 1
    inductor: Runs | None = None
    for index, rows in enumerate(zip(exact, eager, found, strict=True)):
        for place, (true, plain, ours) in enumerate(zip(*rows, strict=True)):
            assert (plain is None) == (ours is None), f"{program.name}: None, set {index}, {place}"
            if true is None or plain is None or ours is None:
                continue
            assert (plain.dtype, plain.shape, plain.stride()) == (
                ours.dtype,
                ours.shape,
                ours.stride(),
            )
            if not plain.is_floating_point():
                assert torch.equal(plain, ours), f"{program.name}: set {index}, result {place}"
                continue
            allowed = max(2 * error(plain, true), half_ulp(true, plain.dtype))
            if error(ours, true) > allowed:
                inductor = inductor or _inductor(program, context)
                theirs = inductor[index][place]
                assert theirs is not None
                allowed = max(allowed, 1.1 * error(theirs, true))
            assert error(ours, true) <= allowed, (
                f"{program.name} ({context}), set {index}, result {place}: error "
                f"{error(ours, true):.3e}, allowed {allowed:.3e}"
            )


def _reference(program: Program, context: str) -> Runs:
    target = build(program, context)
    if isinstance(target, nn.Module):
        target.double()
    return runs(program, target, target, context, double=True)


def _inductor(program: Program, context: str) -> Runs:
    with fresh_compiler():
        module = build(program, context)
        return runs(program, torch.compile(module), module, context)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("program", CHOSEN, ids=lambda program: program.name)
def test_results(program: Program) -> None:
    hold(program, "plain")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("program", WITH_GRAD, ids=lambda program: program.name)
def test_gradients(program: Program) -> None:
    hold(program, "grad")
