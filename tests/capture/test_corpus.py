"""The corpus itself: big enough, distinct names, and inputs that take every branch both ways."""

from __future__ import annotations

import pytest

from .support.check import tensor_tests
from .support.corpus import CORPUS
from .support.program import Program


def test_size_and_names() -> None:
    names = [program.name for program in CORPUS]
    assert len(names) == len(set(names))
    assert sum("inductor" in program.tags for program in CORPUS) >= 60


@pytest.mark.parametrize("program", CORPUS, ids=lambda program: program.name)
def test_corpus_program_equals_eager_for_both_outcomes(program: Program) -> None:
    sites = tensor_tests(program)
    lines = {(file, line) for file, line, _ in sites}
    assert len(lines) == len(program.expect), f"tensor tests at {sorted(lines)}"
    if not program.one_sided:
        for (file, line, _), outcomes in sites.items():
            assert outcomes == {True, False}, f"{file}:{line} only ever came out {outcomes}"
