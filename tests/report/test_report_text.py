"""The text of a report: each reason once, equal ones together, with what to do about them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass.report.advice import advice_for
from fusepass.report.decision import Decision, Outcome, Reason, Station
from fusepass.report.report import Report


def kept(
    line: int, reason: str = "why", code: Reason = Reason.SIZE, rule: str = "item"
) -> Decision:
    return Decision(
        Station.CAPTURE, rule, Outcome.REJECTED, code, reason, "keep", "/a/b/model.py", line
    )


def broken(line: int, reason: str) -> dict[str, Any]:
    return {"reason": reason, "file": "/a/b/model.py", "line": line}


def text_of(decisions: list[Decision], breaks: list[dict[str, Any]]) -> str:
    return str(Report((1,), tuple(breaks), 1, tuple(decisions)))


def test_forty_breaks_of_one_kind_are_one_entry() -> None:
    lines = range(1, 41)
    text = text_of([kept(n) for n in lines], [broken(n, "read there: why") for n in lines])
    assert text.count("why") == 1
    assert "   40  a/b/model.py:1, 2, 3, 4, 5, 6 and 34 more" in text


def test_breaks_of_two_reasons_are_two_entries_under_one_code() -> None:
    decisions = [kept(1, "one"), kept(2, "two"), kept(3, "three", Reason.ALIAS)]
    breaks = [broken(1, "one"), broken(2, "two"), broken(3, "three")]
    text = text_of(decisions, breaks)
    assert text.count("  size: ") == text.count("  alias: ") == 1
    assert text.count(advice_for(decisions[0])) == 1
    assert [text.count(word) for word in ("    one", "    two", "    three")] == [1, 1, 1]


def test_a_kept_place_without_a_break_stays_in_the_table() -> None:
    text = text_of([kept(1, "one"), kept(2, "two")], [broken(1, "one")])
    assert text.count("keep (rejected)") == 1
    assert text.count("one") == text.count("two") == 1


def test_a_break_without_a_decision_has_its_reason() -> None:
    assert "    unknown" in text_of([], [broken(1, "unknown")])


def test_places_of_equal_decisions_are_one_row() -> None:
    def program(x: Tensor) -> Tensor:
        x = x * 2 if x.sum() > 0 else x - 1
        return x * 2 if x.sum() > 0 else x - 1

    with fusepass.options(codegen="eager"):
        text = str(fusepass.explain(program, torch.ones(2)))
    first = program.__code__.co_firstlineno + 1
    (row,) = [line for line in text.splitlines() if "capture" in line]
    assert row.endswith(f"test_report_text.py:{first}, {first + 1}")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("an arm only raises, and so on", "flag of Python"),
        ("an arm writes", "write it behind the branch"),
        ("an arm writes something that requires grad into a tensor", "write in both arms"),
    ],
)
def test_advice_about_a_check_is_about_the_check(reason: str, words: str) -> None:
    assert words in advice_for(kept(1, reason, Reason.SIDE_EFFECT, "branch"))
