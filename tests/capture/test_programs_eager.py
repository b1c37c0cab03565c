"""Every program under ``codegen="eager"``: equal to eager bit for bit, and decided as promised."""

from __future__ import annotations

import pytest

from .support.check import check
from .support.corpus import CORPUS
from .support.program import Program

WITH_GRAD = [program for program in CORPUS if program.grad]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("program", CORPUS, ids=lambda program: program.name)
def test_values(program: Program) -> None:
    check(program)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("program", WITH_GRAD, ids=lambda program: program.name)
def test_gradients(program: Program) -> None:
    check(program, "grad")
