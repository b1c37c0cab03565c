"""The speed rule: each variant against eager, Inductor in its mode, the floor, and code by hand."""

from __future__ import annotations

from collections.abc import Sequence

from fusepass.bench import samples
from fusepass.bench.records import Speedup, VariantRecord
from fusepass.bench.variants import EAGER, Variant, baseline, floor_of, hand_of


def compare_speed(variants: Sequence[Variant], records: dict[str, VariantRecord]) -> None:
    """Fill in each variant's speed-up over eager, Inductor in its mode, and the better of them.

    And its time over the floor's, and over that of the branches written by hand.
    """
    for variant in variants:
        record = records[variant.label]
        floor = floor_of(variant, variants)
        if floor is not None and not variant.floor:
            under = records[floor.label]
            record["over_floor"] = samples.ratio(record["replay_us"], under["replay_us"])
            if record["over_floor"] is None:
                record["over_floor"] = samples.ratio(record["wall_us"], under["wall_us"])
        if variant.backend is None or variant.floor or record["wall_us"] is None:
            continue
        hand = hand_of(variant, variants)
        if hand is not None:
            record["over_hand"] = samples.ratio(record["wall_us"], records[hand.label]["wall_us"])
        peer = baseline(variant, variants)
        ratios = Speedup(
            eager=samples.ratio(records[EAGER]["wall_us"], record["wall_us"]),
            inductor=samples.ratio(records[peer.label]["wall_us"], record["wall_us"])
            if peer
            else None,
            best=None,
            replay=samples.ratio(records[peer.label]["replay_us"], record["replay_us"])
            if peer
            else None,
        )
        known = [ratio for ratio in (ratios["eager"], ratios["inductor"]) if ratio is not None]
        ratios["best"] = min(known, default=None)
        record["speedup"] = ratios
        if ratios["best"] is not None:
            record["slower"] = ratios["best"] < samples.NOT_SLOWER
