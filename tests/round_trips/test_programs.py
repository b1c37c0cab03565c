"""Every program under ``codegen="eager"``: equal to eager bit for bit, and decided as promised."""

from __future__ import annotations

import pytest

from .harness import check, check_decisions
from .pending import PENDING, WRONG
from .program import Program
from .table import TABLE

HERE = [program for program in TABLE if program.device != "cuda"]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("program", HERE, ids=lambda program: program.name)
def test_program(program: Program) -> None:
    wrong, undecided = [], []
    for draw in program.draws:
        for context in ("plain", "grad")[: 1 + program.grad]:
            try:
                report = check(program, draw, context)
            except AssertionError as error:
                if not program.dynamo:
                    wrong.append(str(error))
                    continue
                with pytest.raises(AssertionError):
                    check(program, draw, context, backend="eager")
                continue
            try:
                check_decisions(program, draw, context, report)
            except AssertionError as error:
                undecided.append(str(error))
    if program.name in WRONG:
        assert wrong, f"{program.name} does what eager does: take it from WRONG"
    else:
        assert not wrong, "\n".join(wrong)
    if program.name in PENDING:
        assert undecided, f"{program.name} is decided as promised: take it from PENDING"
    else:
        assert not undecided, "\n".join(undecided)
