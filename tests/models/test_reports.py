"""Programs modelled on public reports: each equals eager, and many are one graph."""

from __future__ import annotations

import pytest

from .reports.report import Report
from .reports.run import cases, load, outcome_of

CASES = [pytest.param(*one, id=f"{one[0].name}-{one[1]}") for one in cases()]


def test_there_are_enough_and_each_names_its_report() -> None:
    names = [one.name for one in load()]
    assert len(names) == len(set(names)) >= 90
    assert all(one.url.startswith("https://") for one in load())


@pytest.mark.parametrize(("report", "context"), CASES)
def test_report_equals_eager(report: Report, context: str) -> None:
    assert outcome_of(report, context).difference is None
