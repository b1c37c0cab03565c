"""Decisions of passes inside Inductor, carried in its counters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fusepass import torch_private
from fusepass.report import artifact
from fusepass.report.decision import Decision, Outcome, Reason, Station, in_short


@pytest.fixture(autouse=True)
def counters() -> Iterator[dict[str, int]]:
    found = torch_private.inductor_counters()
    before = dict(found)
    yield found
    found.clear()
    found.update(before)


def decision(rule: str) -> Decision:
    return Decision(Station.AFTER, rule, Outcome.APPLIED, Reason.MEASURED, "faster", file="a.py")


def test_what_was_noted_since_comes_back() -> None:
    artifact.note([decision("old")])
    before = artifact.snapshot()
    artifact.note([decision("one"), decision("other")])
    artifact.note([decision("old")])  # a second time
    found = {one.rule: one for one in artifact.decisions_since(before)}
    assert found == {name: decision(name) for name in ("one", "other", "old")}


def test_what_is_noted_meanwhile_is_forgotten(counters: dict[str, int]) -> None:
    artifact.note([decision("before")])
    before = artifact.snapshot()
    counters["theirs"] = 1
    with artifact.forgotten():
        artifact.note([decision("before")])
        artifact.note([decision("meanwhile")])
        counters["theirs"] += 1
    assert artifact.snapshot() == before
    assert counters["theirs"] == 2  # what Inductor counts is left to it
    artifact.note([decision("meanwhile")])
    assert artifact.decisions_since(before) == [decision("meanwhile")]


def test_forgotten_after_an_error_too() -> None:
    before = artifact.snapshot()
    with pytest.raises(ZeroDivisionError), artifact.forgotten():
        artifact.note([decision("meanwhile")])
        raise ZeroDivisionError
    assert artifact.snapshot() == before


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("first\nsecond"), "ValueError: first"),
        (RuntimeError("\n  \nafter a gap\n"), "RuntimeError: after a gap"),
        (AssertionError(), "AssertionError: no text"),
    ],
)
def test_an_error_in_short(error: Exception, text: str) -> None:
    assert in_short(error) == text
