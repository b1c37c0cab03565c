"""The error rule: how far a variant may be from the exact result.

A float64 run of the same program, in eager mode, stands for the exact result. A tensor passes if
its RMS error is at most the largest of

- twice eager's error: rounding differs with the order of operations, and eager is no oracle;
- 1.1 times Inductor's error in the same mode: what a user of torch.compile already accepts;
- half an ulp of the output's dtype at the tensor's RMS: no output of that dtype can do better.

NaN and infinity where the reference is finite never pass, whatever eager does. Tensors that are not
floating point have to equal eager's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fusepass.bench.numerics import TensorError
from fusepass.bench.records import ErrorRecord

EAGER_FACTOR = 2.0
INDUCTOR_FACTOR = 1.1


def error_bound(half_ulp: float, eager: float | None, inductor: float | None) -> float:
    """Largest RMS error that passes; a baseline that is missing or not finite gives no slack."""
    slack = [half_ulp]
    if eager is not None and math.isfinite(eager):
        slack.append(EAGER_FACTOR * eager)
    if inductor is not None and math.isfinite(inductor):
        slack.append(INDUCTOR_FACTOR * inductor)
    return max(slack)


def passes(error: float, bound: float) -> bool:
    """Whether an RMS error is within its bound; NaN and infinity never are."""
    return math.isfinite(error) and error <= bound


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
    record = ErrorRecord(
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


def _unlike_eager(variant: Sequence[TensorError], eager: Sequence[TensorError]) -> str | None:
    """What no tolerance covers: another number of tensors, another shape, other integers."""
    if len(variant) != len(eager):
        return f"{len(variant)} output tensors where eager gives {len(eager)}"
    for index, one in enumerate(variant):
        if one["problem"] is not None:
            return f"output {index}: {one['problem']}"
    return None
