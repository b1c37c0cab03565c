"""Every program on CUDA: equal to eager up to the rounding of quotients, and decided as promised.

There a tensor made on the host really crosses over, and half precision is computed otherwise.
"""

from __future__ import annotations

import pytest

from .harness import check, check_decisions
from .pending import PENDING
from .program import Program
from .table import TABLE

pytestmark = pytest.mark.gpu
ANYWHERE = [program for program in TABLE if program.device != "cpu"]


@pytest.mark.parametrize("program", ANYWHERE, ids=lambda program: program.name)
def test_program(program: Program) -> None:
    for draw in program.draws:
        for context in ("plain", "grad")[: 1 + program.grad]:
            try:
                report = check(program, draw, context, device="cuda")
            except AssertionError:
                if not program.dynamo:
                    raise
                with pytest.raises(AssertionError):
                    check(program, draw, context, device="cuda", backend="eager")
                continue
            if program.name not in PENDING:
                check_decisions(program, draw, context, report, "cuda")
