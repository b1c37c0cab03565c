"""Decisions of passes inside Inductor, carried in its counters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fusepass.report import cached_decisions
from fusepass.report.decision import Decision, Outcome, Reason, Station, in_short
from fusepass.torch_private.inductor.compile import inductor_counters


@pytest.fixture(autouse=True)
def counters() -> Iterator[dict[str, int]]:
    found = inductor_counters()
    before = dict(found)
    yield found
    found.clear()
    found.update(before)


def decision(rule: str) -> Decision:
    return Decision(Station.AFTER, rule, Outcome.APPLIED, Reason.MEASURED, "faster", file="a.py")


def test_what_was_noted_since_comes_back() -> None:
    cached_decisions.note([decision("old")])
    before = cached_decisions.snapshot()
    cached_decisions.note([decision("one"), decision("other")])
    cached_decisions.note([decision("old")])  # a second time
    found = {one.rule: one for one in cached_decisions.decisions_since(before)}
    assert found == {name: decision(name) for name in ("one", "other", "old")}


def test_what_is_noted_meanwhile_is_forgotten(counters: dict[str, int]) -> None:
    cached_decisions.note([decision("before")])
    before = cached_decisions.snapshot()
    counters["theirs"] = 1
    with cached_decisions.forgotten():
        cached_decisions.note([decision("before")])
        cached_decisions.note([decision("meanwhile")])
        counters["theirs"] += 1
    assert cached_decisions.snapshot() == before
    assert counters["theirs"] == 2  # what Inductor counts is left to it
    cached_decisions.note([decision("meanwhile")])
    assert cached_decisions.decisions_since(before) == [decision("meanwhile")]


def test_forgotten_after_an_error_too() -> None:
    before = cached_decisions.snapshot()
    with pytest.raises(ZeroDivisionError), cached_decisions.forgotten():
        cached_decisions.note([decision("meanwhile")])
        raise ZeroDivisionError
    assert cached_decisions.snapshot() == before


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
