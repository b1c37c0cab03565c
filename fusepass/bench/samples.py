"""Statistics of timed samples: medians, percentiles, and the speed rule.

The speed rule compares two variants round by round: within a round they ran next to each other, on
the same machine in the same state, so a slow spell touches both and leaves their ratio alone. The
figure is the median of those ratios, and "not slower" means at least :data:`NOT_SLOWER`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from fusepass.bench.records import Speedup, Times, VariantRecord
from fusepass.bench.variants import EAGER, Variant, baseline, inductor

NOT_SLOWER = 0.98
AS_BY_HAND = 1.03  # most that a captured branch may cost over one written as torch.where
FEWEST_ROUNDS = 5
NOISY = 0.2  # spread above which times and ratios mean little


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest-rank percentile: the smallest sample with at least ``percent`` % at or below it.

    With fewer than 100 samples the 99th percentile is the largest one: a real sample, not a guess.
    """
    if not values:
        raise ValueError("percentile of no samples")
    rank = max(1, math.ceil(percent / 100 * len(values)))
    return sorted(values)[rank - 1]


def summary(rounds: Sequence[Sequence[float]]) -> Times | None:
    """Median and 99th percentile of all samples, and each round's median; None without samples."""
    samples = [value for one in rounds for value in one]
    if not samples:
        return None
    median = statistics.median(samples)
    p99 = percentile(samples, 99)
    return Times(
        median=median,
        p99=p99,
        p99_over_p50=p99 / median if median else math.inf,
        samples=len(samples),
        rounds=[statistics.median(one) for one in rounds if one],
    )


def spread(times: Times | None) -> float | None:
    """Half the range of the rounds' medians, over their median; None with fewer than two rounds."""
    rounds = times["rounds"] if times is not None else []
    if len(rounds) < 2:
        return None
    median = statistics.median(rounds)
    return (max(rounds) - min(rounds)) / 2 / median if median else math.inf


def ratio(above: Times | None, below: Times | None) -> float | None:
    """Median over rounds of one time / the other: the speed-up, if the baseline is above.

    None if one of them was not timed.
    """
    if above is None or below is None:
        return None
    pairs = zip(above["rounds"], below["rounds"], strict=True)
    return statistics.median([one / other for one, other in pairs])


def rotation(names: Sequence[str], rounds: int) -> list[list[str]]:
    """The order of variants in each round: each starts in its turn, every second round backwards.

    What a variant leaves behind (a warm cache, a raised or throttled clock) falls on the next one.
    Starting points that move and directions that alternate keep that from always hitting the same.
    """
    count = len(names)
    steps = [1 if turn % 2 == 0 else -1 for turn in range(rounds)]
    return [
        [names[(turn + step * offset) % count] for offset in range(count)]
        for turn, step in enumerate(steps)
    ]


def growth_exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Slope of log(seconds) over log(sizes), by least squares: 1 is linear growth, 2 quadratic."""
    xs = [math.log(size) for size in sizes]
    ys = [math.log(value) for value in seconds]
    return statistics.linear_regression(xs, ys).slope


def compare_speed(variants: Sequence[Variant], records: dict[str, VariantRecord]) -> None:
    """Fill in each variant's speed-up over eager, Inductor in its mode, and the better of them.

    And its time over the floor's, and over that of the branches written by hand.
    """
    for variant in variants:
        record = records[variant.label]
        floor = inductor(variant, variants, "floor")
        if floor is not None and variant.builds != "floor":
            under = records[floor.label]
            record["over_floor"] = ratio(record["replay_us"], under["replay_us"])
            if record["over_floor"] is None:
                record["over_floor"] = ratio(record["wall_us"], under["wall_us"])
        if variant.backend is None or variant.builds == "floor" or record["wall_us"] is None:
            continue
        hand = inductor(variant, variants, "twin")
        if hand is not None and variant.builds == "build":
            record["over_hand"] = ratio(record["wall_us"], records[hand.label]["wall_us"])
        peer = baseline(variant, variants)
        ratios = Speedup(
            eager=ratio(records[EAGER]["wall_us"], record["wall_us"]),
            inductor=ratio(records[peer.label]["wall_us"], record["wall_us"]) if peer else None,
            best=None,
            replay=ratio(records[peer.label]["replay_us"], record["replay_us"]) if peer else None,
        )
        known = [ratio for ratio in (ratios["eager"], ratios["inductor"]) if ratio is not None]
        ratios["best"] = min(known, default=None)
        record["speedup"] = ratios
        if ratios["best"] is not None:
            record["slower"] = ratios["best"] < NOT_SLOWER
