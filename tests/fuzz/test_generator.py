"""What is drawn: every shape often enough, valid Python, programs that run in eager mode."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
import torch
from torch.overrides import TorchFunctionMode

from tests.fuzz.examine import meant
from tests.fuzz.generate import seeded
from tests.fuzz.program import Program, loaded
from tests.fuzz.run import CONTEXTS, call, side
from tests.fuzz.shapes import LOOPS, MECHANISMS, SHAPES, TRIPS

DRAWN = 2000
RUN = 400


@pytest.fixture(scope="module")
def drawn() -> list[Program]:
    return [seeded(0, index) for index in range(DRAWN)]


def test_every_shape_is_drawn_often(drawn: list[Program]) -> None:
    every = [site for program in drawn for site in program.sites]
    loops = [site for site in every if "tensor_loop" in site.shapes]
    for known, counts, sites in (
        (SHAPES, {*SHAPES, *LOOPS}, [site for site in every if not site.trip]),
        (LOOPS, {*SHAPES, *LOOPS}, loops),
        (TRIPS, set(TRIPS), [site for site in every if site.trip]),
    ):
        counted = Counter(shape for site in sites for shape in site.shapes)
        assert set(known) <= set(counted) <= counts, "a shape without description, or never drawn"
        shares = {shape: counted[shape] / len(sites) for shape in known}
        assert not {shape: share for shape, share in shares.items() if share < 0.03}


def test_every_mechanism_serves_many_of_all_sites(drawn: list[Program]) -> None:
    sites = [site.shapes for program in drawn for site in program.sites]
    for name, shapes in MECHANISMS.items():
        assert sum(not shapes.isdisjoint(one) for one in sites) >= 0.03 * len(sites), name


def test_every_kind_of_argument_is_drawn(drawn: list[Program]) -> None:
    texts = ["base[:]", "base[1 :", ".detach()", "base.data", ".expand(", "base.as_strided("]
    texts += ["HELD.seen", "HELD.weight", "class Two", "class Tagged", "layout=torch.jagged"]
    missing = [text for text in texts if not any(text in one.source for one in drawn)]
    assert not missing


def test_programs_are_short_and_name_their_sites(drawn: list[Program]) -> None:
    for program in drawn:
        compile(program.source, "<program>", "exec")
        assert 1 <= len(program.sites) <= 12
        lines = program.source.splitlines()
        assert all(
            re.search(r"\b(if|elif|while|and|or|assert)\b", lines[s.line - 1])
            for s in program.sites
            if not s.trip
        )
        assert "#@" not in program.source
    bodies = [len(program.source.splitlines()) for program in drawn]
    assert sum(bodies) / len(bodies) < 60


def test_equal_seeds_draw_equal_programs(drawn: list[Program]) -> None:
    assert [seeded(0, index) for index in range(50)] == drawn[:50]
    assert seeded(1, 0) != drawn[0]


def test_programs_run_in_eager_mode(drawn: list[Program]) -> None:
    unintended, refused, calls = [], 0, 0
    for program in drawn[:RUN]:
        with loaded(program) as names:
            for context in CONTEXTS[: 1 + program.training]:
                one = side(names, context)
                seen = [call(one, index, context) for index in range(len(one.sets))]
                calls += len(seen)
                refused += sum(each.backward_error is not None for each in seen)
                unintended += [
                    (program.name, repr(each.raised))
                    for each in seen
                    if each.raised is not None and not meant(each.raised, names.file)
                ]
    assert len({name for name, _ in unintended}) <= 0.05 * RUN, unintended
    assert refused <= 0.05 * calls


def test_many_loops_make_no_round_in_one_call_and_several_in_another(drawn: list[Program]) -> None:
    found = []
    for program in drawn[:RUN]:
        lines = {site.line for site in program.sites if "tensor_loop" in site.shapes}
        with loaded(program) as names, contextlib.redirect_stdout(io.StringIO()):
            one = side(names, "inference")
            calls = [_times_met(names.file, one.target, args) for args in one.sets if lines]
        found += [{met[line] for met in calls} for line in lines]
    assert len(found) > 20
    assert sum({0, 1} & met != set() and max(met) > 2 for met in found) >= 0.5 * len(found)


def _times_met(
    file: str, function: Callable[..., object], args: tuple[object, ...]
) -> Counter[int]:
    """How often a call came to each line of a program."""
    met: Counter[int] = Counter()

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., object] | None:
        met[frame.f_lineno] += event == "line"
        return trace if frame.f_code.co_filename == file else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with contextlib.suppress(Exception):
            function(*args)
    finally:
        sys.settrace(before)
    return met


class _Tests(TorchFunctionMode):
    """Which lines of a program tested a tensor, and how it came out."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = file
        self.met: dict[int, set[bool]] = {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        outcome = func(*args, **(kwargs or {}))
        if func is torch.Tensor.__bool__:
            frame = sys._getframe(1)
            while frame.f_back and frame.f_code.co_filename != self.file:
                frame = frame.f_back
            self.met.setdefault(frame.f_lineno, set()).add(outcome)
        return outcome


def test_most_branches_go_both_ways(drawn: list[Program]) -> None:
    met: list[set[bool]] = []
    for program in drawn[:RUN]:
        with loaded(program) as names, contextlib.redirect_stdout(io.StringIO()):
            tests = _Tests(names.file)
            one = side(names, "inference")
            for args in one.sets:
                with tests, contextlib.suppress(Exception):
                    one.target(*args)
            met += tests.met.values()
    both = sum(len(outcomes) == 2 for outcomes in met)
    assert both >= 0.7 * len(met)


def test_nothing_of_a_program_is_left_behind() -> None:
    import linecache

    before = set(linecache.cache)
    with loaded(seeded(0, 0)) as names:
        assert linecache.getline(names.file, 1).startswith("# tests.fuzz")
        assert not Path(names.file).exists()
    assert set(linecache.cache) == before
