"""Failing programs become short: through Hypothesis, and by leaving out of the text."""

from __future__ import annotations

import ast

from hypothesis import HealthCheck, Phase, find, settings

from tests.fuzz.generate import seeded
from tests.fuzz.program import Program, loaded
from tests.fuzz.run import call, side
from tests.fuzz.shrink import shrink
from tests.fuzz.strategy import programs


def body_of(program: Program) -> list[str]:
    """The lines of the program proper, without imports and inputs."""
    for node in ast.walk(ast.parse(program.source)):
        if isinstance(node, ast.FunctionDef) and node.name in ("program", "forward"):
            return ast.unparse(node).splitlines()[1:]
    return []


def shortest(shape: str) -> Program:
    return find(
        programs(),
        lambda program: any(shape in site.shapes for site in program.sites),
        settings=settings(
            max_examples=1000,
            database=None,
            derandomize=True,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_hypothesis_shrinks_to_one_plain_site() -> None:
    program = shortest("if_else")
    assert len(program.sites) == 1
    assert len(body_of(program)) <= 6, program.source
    assert "nn.Module" not in program.source


def test_hypothesis_shrinks_around_what_matters() -> None:
    program = shortest("early_return")
    assert len(program.sites) <= 2
    assert len(body_of(program)) <= 10, program.source


def raises_unstable(program: Program) -> bool:
    with loaded(program) as names:
        one = side(names, "inference")
        seen = [call(one, index, "inference") for index in range(len(one.sets))]
    return any(each.error is not None and each.error[0].__name__ == "Unstable" for each in seen)


def test_a_text_is_shortened_by_leaving_out() -> None:
    long = next(
        program
        for program in (seeded(0, index) for index in range(500))
        if len(program.sites) > 3 and "Unstable(" in program.source and raises_unstable(program)
    )
    short = shrink(long, raises_unstable)
    assert raises_unstable(short)
    assert len(body_of(short)) <= 3, short.source
    with loaded(short) as names:
        assert len(names.inputs()) == 1
        assert len(names.inputs()[0]) <= 2


def test_shrinking_ends_where_nothing_is_left_out() -> None:
    program = seeded(0, 0)
    assert shrink(program, lambda simpler: False) == program
    calls = []
    shrink(program, lambda simpler: bool(calls.append(simpler)), tries=5)
    assert len(calls) == 5
