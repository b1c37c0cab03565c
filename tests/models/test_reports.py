"""Programs modelled on public reports: each equals eager, and many are one graph."""

from __future__ import annotations

import pytest

from .reports.report import Report
from .reports.run import cases, load, outcome_of

# Something in these is a graph break, or is compiled again, with some version of torch.
NOT_WHOLE = frozenset(
    """
    AcceptanceRate AccumulatedDistance CountsEpisodes CumulativeAverage DAdaptation EarlyStopping
    Greedy GrowingCache HitExperts IndexForTimestep IndexedExperts KeepsHistory MaskedExperts
    MinMaxObserver Multistep Plateau ScalerStep SkipsNan accuracy_as_a_number
    asks_for_a_gradient_by_value curvature_update rolls_out safe_mean_of_both splits_by_counts
    """.split()
)
CASES = [pytest.param(*one, id=f"{one[0].name}-{one[1]}") for one in cases()]


def test_there_are_enough_and_each_names_its_report() -> None:
    names = [one.name for one in load()]
    assert len(names) == len(set(names)) >= 90
    assert all(one.url.startswith("https://") for one in load())


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("report", "context"), CASES)
def test_report_equals_eager(report: Report, context: str) -> None:
    outcome = outcome_of(report, context)
    assert outcome.difference is None
    assert outcome.one_graph or report.name in NOT_WHOLE, outcome.kept
