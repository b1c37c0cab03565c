"""Judging loss curves: how far from the float64 curve a variant's may be, against eager's."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from fusepass.bench.records import CurveRecord, Distance
from fusepass.numerics import half_ulp

MOST = 2.0
Curves = Sequence[Sequence[float]]


def distance(losses: Curves, exact: Curves) -> Distance:
    """Largest difference of all steps of all curves, and the root of the sum of their squares."""
    differences = [
        abs(one - other)
        for curve, truth in zip(losses, exact, strict=True)
        for one, other in zip(curve, truth, strict=True)
    ]
    finite = all(math.isfinite(one) for one in differences)
    return Distance(
        max_abs=max(differences) if finite else math.inf,
        l2=math.sqrt(math.fsum(one * one for one in differences)) if finite else math.inf,
    )


def judge(losses: Curves, eager: Curves, exact: Curves) -> CurveRecord:
    """Hold a variant's curves against the float64 ones.

    Both distances may be at most :data:`MOST` times eager's, where eager's counts as at least what
    rounding the losses to float32 makes of it.
    """
    ours, theirs = distance(losses, exact), distance(eager, exact)
    largest = max(abs(loss) for curve in exact for loss in curve)
    ulp, count = half_ulp(torch.float32, largest), sum(len(curve) for curve in exact)
    ratios = Distance(
        max_abs=ours["max_abs"] / max(theirs["max_abs"], ulp),
        l2=ours["l2"] / max(theirs["l2"], ulp * math.sqrt(count)),
    )
    return CurveRecord(
        passed=max(ratios["max_abs"], ratios["l2"]) <= MOST,
        distance=ours,
        eager_distance=theirs,
        over_eager=ratios,
        losses=[list(curve) for curve in losses],
    )
