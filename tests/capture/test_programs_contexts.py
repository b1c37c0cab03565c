"""Programs under no_grad, inference_mode and autocast, and one callable used under all in turn."""

from __future__ import annotations

import pytest

from tests.harness.call import call
from tests.harness.same_call import assert_same_call

from .support.check import build, check, compile_for, fresh_compiler, prepare
from .support.corpus import CORPUS
from .support.program import Program

CHOSEN = [program for program in CORPUS if "contexts" in program.tags]
# What is decided differently with and without gradients: a stale decision would show.
SWITCHED = [program for program in CORPUS if program.grad and program.expect_grad]
SWITCHED += [program for program in CHOSEN if program.grad][::4]
UNIQUE = list({program.name: program for program in SWITCHED}.values())


@pytest.mark.sampled(7)
@pytest.mark.parametrize("context", ["no_grad", "inference", "autocast"])
@pytest.mark.parametrize("program", CHOSEN, ids=lambda program: program.name)
def test_context(program: Program, context: str) -> None:
    check(program, context)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("program", UNIQUE, ids=lambda program: program.name)
def test_one_callable_in_all_contexts(program: Program) -> None:
    with fresh_compiler():
        eager, module = build(program, "grad"), build(program, "grad")
        compiled = compile_for(program, module)
        for context in ("no_grad", "grad", "inference", "autocast", "plain", "grad"):
            sets = [prepare(program, 0, grad=context == "grad") for _ in range(2)]
            for index, (one, other) in enumerate(zip(*sets, strict=True)):
                wanted = call(eager, one, eager, context, program.state)
                got = call(compiled, other, module, context, program.state)
                where = f"{program.name} ({context}), input set {index}"
                assert_same_call(wanted, got, where=where)
