"""Branches of which only one arm may run, one inside the other: their cost grows with their number.

``torch.cond`` is traced again for each one around it, in each backward or in each compilation.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fusepass

INDEX = torch.arange(8).flip(0)


def returns_early(rounds: int) -> Callable[[Tensor], Tensor]:
    """What follows a round is the other arm of its branch."""

    def program(x: Tensor) -> Tensor:
        for i in range(rounds):
            x = x.gather(0, INDEX) * 1.5  # an index could be out of range
            if x.sum() > 100 * (i + 1):
                return x
        return x * 2

    return program


def elif_chain(rounds: int) -> Callable[[Tensor], Tensor]:
    lines = [
        f"    {'el' * bool(i)}if t < {i}: y = x.gather(0, INDEX) * {i}.5" for i in range(rounds)
    ]
    text = ["def program(x):", "    t = x.sum()", *lines, "    else: y = x.gather(0, INDEX)"]
    names = {"INDEX": INDEX}
    exec(compile("\n".join([*text, "    return y + 1"]), __file__, "exec"), names)
    return names["program"]  # type: ignore[return-value]


def result(program: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = program(x)
    (grad,) = torch.autograd.grad(y.square().sum(), x)
    return y.detach(), grad


@pytest.mark.parametrize("rounds", [2, 20])
@pytest.mark.parametrize("made", [returns_early, elif_chain])
def test_op_by_op_in_training(
    made: Callable[[int], Callable[[Tensor], Tensor]], rounds: int
) -> None:
    program = made(rounds)
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    begun = time.process_time()
    for size in (0.01, 0.1, 0.5, 1.0, 5.0, 50.0, -1.0):
        x = torch.linspace(0, size, 8)
        for got, want in zip(result(compiled, x), result(program, x), strict=True):
            assert torch.equal(got, want)
    assert time.process_time() - begun < 60, "twice as long for each of 20 would be hours"
    report = fusepass.last_report(compiled)
    treatments = [d.treatment for d in report.decisions if d.rule == "branch"]
    assert not report.graph_breaks
    assert treatments.count("cond") >= rounds - 1


def test_the_predicate_alone_decides_what_gets_a_gradient() -> None:
    """Eager leaves None what only the other arm reads; so does the arm that runs."""

    def program(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        y = a.gather(0, INDEX) if x.sum() > 0 else b.gather(0, INDEX)
        return y * x

    options = {"codegen": "eager", "allow_zero_grad": True}
    compiled = torch.compile(program, backend="fusepass", options=options)
    for sign in (1.0, -1.0):
        x = torch.full((8,), sign)
        grads = []
        for run in (compiled, program):
            a, b = (torch.rand(8, requires_grad=True) for _ in range(2))
            run(x, a, b).sum().backward()
            grads.append([t.grad is None for t in (a, b)])
        assert grads[0] == grads[1]
    assert "cond" in {d.treatment for d in fusepass.last_report(compiled).decisions}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("rounds", "kept"), [(5, 0), (6, 1)])
def test_compiled_in_training_up_to_a_number(rounds: int, kept: int) -> None:
    """The innermost branch runs both arms: 5 rounds are 4 in one another."""
    program = returns_early(rounds)
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager-decomposed"})
    for size in (0.01, 50.0):
        x = torch.linspace(0, size, 8)
        for got, want in zip(result(compiled, x), result(program, x), strict=True):
            assert torch.equal(got, want)
    decisions = fusepass.last_report(compiled).decisions
    costs = [d for d in decisions if d.treatment == "keep"]
    assert bool(costs) is bool(kept)
    assert all("5 branches of which only one arm may run" in d.reason for d in costs)


def test_compiled_without_gradients_more_are_allowed() -> None:
    program = returns_early(6)
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager-decomposed"})
    for size in (0.01, 50.0):
        x = torch.linspace(0, size, 8)
        assert torch.equal(compiled(x), program(x))
    treatments = [d.treatment for d in fusepass.last_report(compiled).decisions]
    assert treatments.count("cond") == 5
    assert "keep" not in treatments
