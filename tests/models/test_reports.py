"""Programs modelled on public reports: each equals eager, and many are one graph."""

from __future__ import annotations

import pytest

from .reports.report import Report
from .reports.run import cases, load, outcome_of

# Something in these is a graph break, or is compiled again, with some version of torch.
NOT_WHOLE = frozenset(
    """
    AcceptanceRate AccumulatedDistance AdaptiveKL CartPole CountsEpisodes CountsThenRaises
    CumulativeAverage MaskedExperts Plateau ScalerStep SkipsNan safe_mean_of_both
    DAdaptation DDIM EMAWithWarmup EarlyStop EarlyStopping FIRE GradientHarmonizing Greedy
    GrowingCache HitExperts IndexForTimestep IndexedExperts KeepsHistory LRFinder
    LearnedStepSize LevenbergMarquardt LossScaler MegatronScaler MinMaxObserver MomentumQueue
    Multistep PIDLagrange PropertyFlag kabsch RebindsData RectifiedAdam SkipsOutlierSteps accuracy_as_a_number
    adds_in_place_or_not asks_for_a_gradient_by_value asks_for_identity
    binds_a_global complex_in_one_arm curvature_update defaults_from_get
    detached_in_one_arm dice_over_present_classes draws_by_generator equal_counts_of_eos
    hook_in_one_arm index_in_range inverts_in_a_try kabsch_in_place keeps_one_at_least
    lamb_trust_ratio largest_of_maybe_none leaves_silence no_grad_in_one_arm number_in_a_shape
    online_hard_examples pcgrad pops_a_key predicate_of_many prints_a_tensor_then_changes_it
    psd_safe_cholesky raises_from_another requires_grad_in_one_arm result_in_a_dataclass
    result_is_the_input rodrigues rolls_out rounds_a_number same_memory_twice saved_then_written
    set_default_in_one_arm slerp sorts_tensors splits_by_counts unbound_in_one_arm view_or_copy
    """.split()
)
CASES = [pytest.param(*one, id=f"{one[0].name}-{one[1]}") for one in cases()]


def test_there_are_enough_and_each_names_its_report() -> None:
    names = [one.name for one in load()]
    assert len(names) == len(set(names)) >= 250
    assert all(one.url.startswith("https://") for one in load())


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("report", "context"), CASES)
def test_report_equals_eager(report: Report, context: str) -> None:
    outcome = outcome_of(report, context)
    assert outcome.difference is None
    assert outcome.one_graph or report.name in NOT_WHOLE, outcome.kept
