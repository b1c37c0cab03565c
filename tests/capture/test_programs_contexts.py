"""Programs under no_grad, inference_mode and autocast: the same results as eager there."""

from __future__ import annotations

import pytest

from .corpus import CORPUS
from .harness import check
from .program import Program

CHOSEN = [program for program in CORPUS if "contexts" in program.tags]


@pytest.mark.parametrize("context", ["no_grad", "inference", "autocast"])
@pytest.mark.parametrize("program", CHOSEN, ids=lambda program: program.name)
def test_context(program: Program, context: str) -> None:
    check(program, context)
