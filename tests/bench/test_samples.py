from __future__ import annotations

import pytest

from fusepass.bench import samples


def test_percentile_is_nearest_rank():
    values = [float(v) for v in range(1, 201)]
    assert samples.percentile(values[::-1], 99) == 198.0
    assert samples.percentile(values, 50) == 100.0
    assert samples.percentile([3.0, 1.0, 2.0], 99) == 3.0  # few samples: the largest one
    with pytest.raises(ValueError, match="no samples"):
        samples.percentile([], 99)


def test_summary_keeps_rounds_apart_and_pools_the_percentile():
    times = samples.summary([[1.0, 2.0, 9.0], [4.0, 5.0, 6.0]])
    assert times is not None
    assert times["rounds"] == [2.0, 5.0]
    assert times["median"] == 4.5
    assert times["p99"] == 9.0
    assert times["p99_over_p50"] == 2.0
    assert times["samples"] == 6
    assert samples.summary([[], []]) is None


def test_speedup_is_a_median_of_ratios_not_a_ratio_of_medians():
    # A slow machine in rounds 4 and 5 hits both; the variant is twice as fast throughout.
    before = samples.summary([[10.0], [10.0], [10.0], [80.0], [80.0]])
    after = samples.summary([[5.0], [5.0], [5.0], [40.0], [40.0]])
    assert samples.ratio(before, after) == 2.0
    # One round in which only the variant was disturbed does not move the figure.
    disturbed = samples.summary([[5.0], [500.0], [5.0], [40.0], [40.0]])
    assert samples.ratio(before, disturbed) == 2.0
    # Medians over everything would say 10/9 here: the machine sped up half-way.
    base = samples.summary([[20.0], [20.0], [10.0], [10.0], [10.0]])
    ours = samples.summary([[18.0], [18.0], [9.0], [9.0], [9.5]])
    assert samples.ratio(base, ours) == pytest.approx(10 / 9)


def test_speedup_needs_both_and_the_same_rounds():
    five, four = samples.summary([[1.0]] * 5), samples.summary([[1.0]] * 4)
    assert samples.ratio(None, five) is None
    assert samples.ratio(five, None) is None
    with pytest.raises(ValueError, match="zip"):
        samples.ratio(five, four)


def test_rotation_runs_everyone_once_a_round_and_moves_first_place_and_neighbours():
    names = ["eager", "inductor", "ours"]
    rounds = samples.rotation(names, 6)
    assert all(sorted(one) == sorted(names) for one in rounds)
    assert [one[0] for one in rounds] == names * 2
    before_ours = {one[one.index("ours") - 1] for one in rounds if one.index("ours") > 0}
    assert before_ours == {"eager", "inductor"}


def test_growth_exponent_tells_linear_from_quadratic():
    layers = [12.0, 24.0, 48.0]
    assert samples.growth_exponent(layers, [3.0, 6.0, 12.0]) == pytest.approx(1.0)
    assert samples.growth_exponent(layers, [1.0, 4.0, 16.0]) == pytest.approx(2.0)
