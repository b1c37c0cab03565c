"""Programs in other surroundings: no gradients, another default dtype, code made by Inductor."""

from __future__ import annotations

import pytest

from .harness import check, check_decisions
from .pending import PENDING
from .program import Program
from .table import TABLE

CONTEXTS = [
    (program, context)
    for program in TABLE
    for tag, contexts in (("contexts", ("no_grad", "inference")), ("float64", ("float64",)))
    for context in contexts
    if tag in program.tags
]
COMPILED = [program for program in TABLE if "inductor" in program.tags]


@pytest.mark.parametrize(("program", "context"), CONTEXTS, ids=lambda p: getattr(p, "name", p))
def test_in_context(program: Program, context: str) -> None:
    draw = next(iter(program.draws))
    report = check(program, draw, context)
    if program.name not in PENDING:
        check_decisions(program, draw, context, report)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("program", COMPILED, ids=lambda program: program.name)
def test_through_inductor(program: Program) -> None:
    draw = next(iter(program.draws))
    pending = program.name in PENDING  # printed from a broken graph, a history is the compiler's
    for context in ("plain", "grad")[: 1 + (program.grad and not pending)]:
        report = check(program, draw, context, codegen="inductor")
        if not pending:
            check_decisions(program, draw, context, report)
