"""``fusepass.syncs`` sees the lines of the table, and what becomes of them.

Here the CPU stands in for a device; programs that raise in their first call show nothing.
"""

from __future__ import annotations

import contextlib

import pytest

import fusepass
from fusepass.report.host_syncs import residence
from fusepass.report.host_syncs.api import listed
from fusepass.report.host_syncs.kinds import READ, Kind
from fusepass.report.host_syncs.result import Sync
from tests.harness.transcript import recorded

from .pending import PENDING, WRONG
from .program import Program
from .table import TABLE

HERE = [program for program in TABLE if program.device != "cuda"]
DECIDED = [
    program
    for program in HERE
    if program.name not in (*PENDING, *WRONG) and program.name.startswith(("item", "masks"))
]


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residence, "no_device", lambda: True)


def rows(program: Program, *, with_fusepass: bool) -> dict[tuple[str, int], list[Sync]]:
    """Rows of the first call of the first draw, by place; none if the program raises."""
    args = next(iter(program.draws.values()))()[0]
    found: dict[tuple[str, int], list[Sync]] = {}
    # What a program writes and raises is its own business, and compared elsewhere.
    with (
        recorded(),
        contextlib.suppress(Exception),
        fusepass.options(codegen="eager", **program.options),
    ):
        for row in listed(program.make(), args, {}, with_fusepass=with_fusepass):
            found.setdefault((row.file, row.line), []).append(row)
    return found


def wanted(program: Program) -> dict[tuple[str, int], tuple[str, str]]:
    """Rule and treatment of the lines that become one thing only."""
    expected = program.expected(next(iter(program.draws)), "plain")
    found = {}
    for place, alternatives in expected.items():
        if len(alternatives) == 1 and len(alternatives[0]) == 1:
            ((rule, treatment, _),) = alternatives[0]
            found[place] = rule, treatment
    return found


def test_each_number_that_is_read_is_found() -> None:
    missing, tagged = [], 0
    for program in HERE:
        found = rows(program, with_fusepass=False)
        for place, (rule, _) in wanted(program).items() if found else ():
            kinds = {row.kind for row in found.get(place, ())}
            tagged += rule == "item"
            if rule == "item" and not kinds & {*READ, Kind.COPY_OUT}:
                missing.append((program.name, place[1], kinds))
    assert not missing
    assert tagged > 50


@pytest.mark.parametrize("program", DECIDED[::4], ids=lambda program: program.name)
def test_what_becomes_of_it(program: Program) -> None:
    found = rows(program, with_fusepass=True)
    for place, (rule, treatment) in wanted(program).items() if found else ():
        for row in found.get(place, ()):
            where = f"line {place[1]}: {row}"
            gone = treatment == "device" or (rule, treatment) == ("print", "late")
            assert (row.removed is True) == gone, where
            assert (row.remaining == 0) == gone, where
            assert row.treatment in ("", treatment), where
