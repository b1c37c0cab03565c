"""The error rule (:mod:`fusepass.numerics`) on the output tensors of a program."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusepass.bench.records import ErrorRecord, unmeasured
from fusepass.numerics import error_bound, half_ulp, is_float, passes, rms, rms_error, to_double
from fusepass.testing.compare import tensors


@dataclass(frozen=True)
class TensorError:
    """One output tensor against the reference and against eager's.

    Attributes:
        problem: wrong shape or dtype, or a tensor of integers that is not eager's.
        rms, reference_rms, half_ulp: None if it is not floating point, or there is no reference.
        bit_equal: to eager's.
        from_eager: RMS difference from eager over eager's RMS.
    """

    problem: str | None = None
    rms: float | None = None
    reference_rms: float | None = None
    half_ulp: float | None = None
    bit_equal: bool = False
    from_eager: float | None = None


def reference_outputs(
    model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[torch.Tensor]:
    """Outputs of a float64 copy of ``model`` on float64 copies of its inputs, run eagerly.

    A plain function has no weights to convert: it must work with whatever dtype it is given. Any
    exception may come of it (a dtype written into it, an operator without a float64 version).
    """
    exact = copy.deepcopy(model)
    if isinstance(exact, torch.nn.Module):
        exact = exact.double()
    args, kwargs = _doubled(copy.deepcopy((args, kwargs)))
    return [tensor.detach().clone() for tensor in tensors(exact(*args, **kwargs))]


def _doubled(value: Any) -> Any:
    """Nested containers with float64 tensors; a named tuple keeps its names."""
    if isinstance(value, torch.Tensor):
        return to_double(value)
    if isinstance(value, dict):
        return {key: _doubled(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_doubled, value))
    return type(value)(map(_doubled, value)) if isinstance(value, list | tuple) else value


def compare(output: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor | None) -> TensorError:
    """How one output tensor differs from eager's and from the float64 reference.

    All three on one device; ``exact`` has eager's shape, or is None when there is no reference.
    """
    if output.shape != eager.shape or output.dtype != eager.dtype:
        return TensorError(
            f"{output.dtype} of shape {tuple(output.shape)} where eager gives "
            f"{eager.dtype} of shape {tuple(eager.shape)}"
        )
    if not is_float(output):
        if torch.equal(output, eager):
            return TensorError(bit_equal=True)
        return TensorError(f"{output.dtype} values differ from eager's")
    bit_equal = bool(((output == eager) | (output.isnan() & eager.isnan())).all())
    scale, difference = rms(eager), rms_error(output, eager)
    far = difference / scale if scale and math.isfinite(scale) else difference
    if exact is None:
        return TensorError(bit_equal=bit_equal, from_eager=far)
    magnitude = rms(exact[torch.isfinite(exact)])
    ulp = half_ulp(output.dtype, magnitude)
    return TensorError(None, rms_error(output, exact), magnitude, ulp, bit_equal, far)


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
    record = unmeasured(
        ErrorRecord,
        reason=no_reference,
        tensors=len(variant),
        bit_equal_to_eager=all(one.bit_equal for one in variant),
        relative_to_eager=max((one.from_eager or 0.0 for one in variant), default=None),
    )
    # What no tolerance covers: another number of tensors, another shape, other integers.
    wrong = [f"output {i}: {one.problem}" for i, one in enumerate(variant) if one.problem]
    if len(variant) != len(eager):
        wrong = [f"{len(variant)} output tensors where eager gives {len(eager)}"]
    if wrong:
        record.update({"passed": False, "reason": wrong[0], "bit_equal_to_eager": False})
        return record
    if no_reference is not None:
        return record
    record["passed"] = True
    excess = -1.0
    for index, (one, base) in enumerate(zip(variant, eager, strict=True)):
        if one.rms is None or one.half_ulp is None:
            continue
        peer = inductor[index].rms if inductor is not None and index < len(inductor) else None
        bound = error_bound(one.half_ulp, base.rms, peer)
        if one.rms / bound <= excess:
            continue
        excess = one.rms / bound
        scale = one.reference_rms
        record.update(
            {
                "rms": one.rms,
                "bound": bound,
                "eager_rms": base.rms,
                "inductor_rms": peer,
                "half_ulp": one.half_ulp,
                "relative": one.rms / scale if scale else None,
                "worst": index,
            }
        )
        if not passes(one.rms, bound):
            why = f"RMS error {one.rms:.3g} is above {bound:.3g}"
            if not math.isfinite(one.rms):
                why = "NaN or infinity that the float64 reference does not have"
            record.update({"passed": False, "reason": f"output {index}: {why}"})
    return record
