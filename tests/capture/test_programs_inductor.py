"""Programs through Inductor: decided as promised, and within the error rule, gradients too."""

from __future__ import annotations

import functools

import pytest
import torch

import fusepass
from tests.harness.call import call
from tests.harness.precision import doubled, in_precision
from tests.harness.same_call import assert_same_call

from .support.check import build, check_report, fresh_compiler, prepare
from .support.corpus import CORPUS
from .support.program import Program
from .support.side_by_side import ROUNDINGS

CHOSEN = [program for program in CORPUS if "inductor" in program.tags]
# Backward graphs cost as much again to compile: one in four.
WITH_GRAD = [program for program in CHOSEN if program.grad and program.captured(grad=True)][::4]
FLOAT64 = functools.partial(in_precision, torch.float64, same_draws=True)


def hold(program: Program, context: str) -> None:
    """Compile through Inductor and hold every call to the error rule."""
    grad = context == "grad"
    exact, eager = doubled(build(program, context)), build(program, context)
    sets = (prepare(program, 0, grad=grad, exact=True), prepare(program, 0, grad=grad))
    true = [call(exact, args, exact, context, around=FLOAT64) for args in sets[0]]
    wanted = [call(eager, args, eager, context) for args in sets[1]]
    with fresh_compiler():
        module = build(program, context)
        compiled = torch.compile(module, backend="fusepass", options=dict(program.options) or None)
        given = prepare(program, 0, grad=grad)
        found = [call(compiled, args, module, context) for args in given]
        check_report(program, compiled, program.verdicts(grad=grad), grad=grad)
        assert fusepass.last_report(compiled).to_dict()["graphs"] >= 1
    for index, (one, other, reference) in enumerate(zip(wanted, found, true, strict=True)):
        assert one.error is None
        where = f"{program.name} ({context}), input set {index}"
        assert_same_call(one, other, reference, where=where, roundings=ROUNDINGS)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("program", CHOSEN, ids=lambda program: program.name)
def test_results(program: Program) -> None:
    hold(program, "plain")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("program", WITH_GRAD, ids=lambda program: program.name)
def test_gradients(program: Program) -> None:
    hold(program, "grad")
