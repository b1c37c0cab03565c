"""The error rule (:mod:`fusepass.numerics`) on the records of a benchmark."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fusepass.bench.numerics import TensorError
from fusepass.bench.records import ErrorRecord
from fusepass.numerics import error_bound, passes


def judge(
    variant: Sequence[TensorError],
    eager: Sequence[TensorError],
    inductor: Sequence[TensorError] | None,
    no_reference: str | None,
) -> ErrorRecord:
    """Apply the error rule to every output tensor and report the worst one.

    Args:
        variant: errors of the variant judged, tensor by tensor.
        eager: eager's own errors.
        inductor: Inductor's in the same mode; None for Inductor itself, and when it did not run:
            the rule is then the stricter one without it.
        no_reference: why there is no float64 reference, or None if there is one.
    """
    record = _blank_record(variant, no_reference)
    different = _unlike_eager(variant, eager)
    if different is not None:
        record.update({"passed": False, "reason": different, "bit_equal_to_eager": False})
        return record
    if no_reference is not None:
        return record
    record["passed"] = True
    excess = -1.0
    for index, one in enumerate(variant):
        error, ulp, scale = one["rms"], one["half_ulp"], one["reference_rms"]
        if error is None or ulp is None:
            continue
        peer = inductor[index]["rms"] if inductor is not None and index < len(inductor) else None
        bound = error_bound(ulp, eager[index]["rms"], peer)
        if error / bound <= excess:
            continue
        excess = error / bound
        record.update(
            {
                "rms": error,
                "bound": bound,
                "eager_rms": eager[index]["rms"],
                "inductor_rms": peer,
                "half_ulp": ulp,
                "relative": error / scale if scale else None,
                "worst": index,
            }
        )
        if not passes(error, bound):
            why = f"RMS error {error:.3g} is above {bound:.3g}"
            if not math.isfinite(error):
                why = "NaN or infinity that the float64 reference does not have"
            record.update({"passed": False, "reason": f"output {index}: {why}"})
    return record


def _blank_record(variant: Sequence[TensorError], no_reference: str | None) -> ErrorRecord:
    """What is said of a variant before the rule is applied: how it compares with eager."""
    return ErrorRecord(
        passed=None,
        reason=no_reference,
        rms=None,
        bound=None,
        eager_rms=None,
        inductor_rms=None,
        half_ulp=None,
        relative=None,
        tensors=len(variant),
        worst=None,
        bit_equal_to_eager=all(one["bit_equal"] for one in variant),
        relative_to_eager=max((one["from_eager"] or 0.0 for one in variant), default=None),
    )


def _unlike_eager(variant: Sequence[TensorError], eager: Sequence[TensorError]) -> str | None:
    """What no tolerance covers: another number of tensors, another shape, other integers."""
    if len(variant) != len(eager):
        return f"{len(variant)} output tensors where eager gives {len(eager)}"
    for index, one in enumerate(variant):
        if one["problem"] is not None:
            return f"output {index}: {one['problem']}"
    return None
