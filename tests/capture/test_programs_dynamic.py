"""Dynamic batch: one compile serves every batch size and both outcomes, without a recompile."""

from __future__ import annotations

import pytest
import torch

from fusepass.testing.compare import tensors
from tests.harness.call import call
from tests.harness.same_call import assert_same_call

from .support.check import BACKEND, build, check_report, compile_for, prepare
from .support.corpus import CORPUS
from .support.inputs import B, Signs
from .support.program import Program

# Everything with a batch dimension whose every site must be captured; every third, for time. What
# keeps state outside its arguments would hand it on from eager's call to the compiled one.
NUMBERS_THAT_VARY = {"sink_after.dropoutineval"}  # p is a symbol there, and may be out of range
QUALIFIED = [
    program
    for program in CORPUS
    if isinstance(program.inputs, Signs)
    and program.inputs.dynamic
    and program.captured(grad=False)
    and program.state is None
    and program.name not in NUMBERS_THAT_VARY
]
# Captured otherwise where sizes and numbers are symbols: a slope or bound may overflow, and how many
# numbers a list has is not known.
OTHERWISE = {
    "boolean_logic.optionalattributeandtensor",
    "hidden_tests.read_and_no_raise",
    "modules.activationfromattribute",
    "untraceable.tolist_in_arm",
}
CHOSEN = [program for program in QUALIFIED[::3] if program.name not in OTHERWISE]
# Two marked dimensions that turn out equal are an error in torch itself.
MARKED = [
    program
    for program in QUALIFIED[1::5]
    if len(program.inputs.shapes) == 1 and program.name not in OTHERWISE
]
# No fixed size of any program: Dynamo gives equal sizes one symbol on first sight, and a later
# batch would then recompile, captured or not.
BATCHES = (13, 3, 11)


def check_batches(program: Program, *, grad: bool, marked: bool) -> None:
    """Hold one compiled callable to eager over three batch sizes."""
    context = "grad" if grad else "plain"
    eager, module = build(program, context), build(program, context)
    compiled = compile_for(program, module, **({} if marked else {"dynamic": True}))
    shapes = program.inputs.shapes  # type: ignore[attr-defined]  # chosen for being Signs
    assert not {size for shape in shapes for size in shape} & set(BATCHES)
    first = True
    for batch in BATCHES:
        sized = _sized(program, batch)
        eager_sets = prepare(sized, 0, grad=grad)
        for index, args in enumerate(prepare(sized, 0, grad=grad)):
            for tensor, shape in zip(tensors(args), shapes, strict=True) if marked else ():
                if shape[:1] == (B,):
                    torch._dynamo.mark_dynamic(tensor, 0)
            wanted = call(eager, eager_sets[index], eager, context)
            strict = not first and BACKEND == "fusepass"
            with torch._dynamo.config.patch(error_on_recompile=strict):
                got = call(compiled, args, module, context)
            assert_same_call(wanted, got, where=f"{program.name}, batch {batch}, {index}")
            first = False
    if BACKEND == "fusepass":
        check_report(program, compiled, program.verdicts(grad=grad), grad=grad)


def _sized(program: Program, batch: int) -> Program:
    inputs = program.inputs.with_batch(batch)  # type: ignore[attr-defined]
    return Program(**{**program.__dict__, "inputs": inputs})


@pytest.mark.sampled(3)
@pytest.mark.parametrize("program", CHOSEN, ids=lambda program: program.name)
def test_dynamic_true(program: Program) -> None:
    check_batches(program, grad=program.grad and program.captured(grad=True), marked=False)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("program", MARKED, ids=lambda program: program.name)
def test_mark_dynamic(program: Program) -> None:
    check_batches(program, grad=False, marked=True)
