"""The error rule: how far a result may be from the exact one.

A float64 run of the same program, in eager mode, stands for the exact result. A tensor passes if
its RMS error is at most the largest of

- twice eager's error: rounding differs with the order of operations, and eager is no oracle;
- 1.1 times Inductor's error in the same mode: what a user of torch.compile already accepts;
- half an ulp of the output's dtype at the tensor's RMS: no output of that dtype can do better.

NaN and infinity where the reference is finite never pass, whatever eager does. Tensors that are not
floating point have to equal eager's.

Two ways to compute one thing, as the tuner compares them, agree if they differ by rounding only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

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


def is_float(tensor: torch.Tensor) -> bool:
    """Whether rounding applies to the tensor's dtype (complex included)."""
    return tensor.is_floating_point() or tensor.is_complex()


def to_double(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float64 (complex128 for complex); other dtypes stay as they are."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor


def rms(tensor: torch.Tensor) -> float:
    """Root mean square, computed in float64; 0 for an empty tensor."""
    if tensor.numel() == 0:
        return 0.0
    return float(tensor.detach().abs().double().square().mean().sqrt())


def rms_error(output: torch.Tensor, exact: torch.Tensor) -> float:
    """RMS of ``output - exact`` over the elements at which the exact result is finite.

    Where it is not, the output must be the same infinity, or NaN too. Anything else that is not
    finite makes the error infinite.
    """
    output, exact = to_double(output), to_double(exact)
    finite = torch.isfinite(exact)
    same = torch.eq(output, exact) | (torch.isnan(output) & torch.isnan(exact))
    if bool((~finite & ~same).any()) or bool((finite & ~torch.isfinite(output)).any()):
        return math.inf
    return rms((output - exact)[finite])


def half_ulp(dtype: torch.dtype, magnitude: float) -> float:
    """Half the distance between neighbouring numbers of ``dtype`` at ``magnitude``."""
    info = torch.finfo(dtype)
    smallest = info.tiny * info.eps
    if not math.isfinite(magnitude) or magnitude <= info.tiny:
        return float(smallest) / 2
    return max(math.ldexp(info.eps, math.floor(math.log2(magnitude))), smallest) / 2


_MOST_ROUNDING = {torch.float32: 1e-4, torch.float64: 1e-10}
_MOST_ROUNDING_OF_HALF = 3e-2  # of the results' size; that of a wrong result is near 1
_MOST_ROUNDING_OF_TF32 = 1e-2


def agree(made: Sequence[Any], expected: Sequence[Any], *, tf32: bool = False) -> bool:
    """Whether results are the same within rounding, NaN and inf at the same places.

    Tensors have the same shape, dtype and strides, the root mean square of their difference is a
    small part of the results', and each number is near its counterpart, measured by that and by its
    last dimension. All else is equal.

    Args:
        made: tensors and numbers.
        expected: likewise.
        tf32: whether products of float32 may have been computed in TF32.
    """
    pairs = zip(made, expected, strict=True)
    return all(_close(one, other, tf32=tf32) for one, other in pairs)


def _close(one: Any, other: Any, *, tf32: bool) -> bool:
    if not isinstance(one, Tensor):
        return bool(one == other)
    if (one.shape, one.dtype, one.stride()) != (other.shape, other.dtype, other.stride()):
        return False
    if one.is_complex():
        parts = (torch.view_as_real(x.contiguous()) for x in (one, other))
        return _close(*parts, tf32=tf32)
    if not one.is_floating_point():
        return torch.equal(one, other)
    if not one.numel():
        return True
    most = _MOST_ROUNDING.get(one.dtype, _MOST_ROUNDING_OF_HALF)
    if tf32 and one.dtype is torch.float32:
        most = _MOST_ROUNDING_OF_TF32
    pair = [x.reshape(-1, x.shape[-1] if x.dim() else 1) for x in (one, other)]
    pair = [x if x.dtype == torch.float64 else x.float() for x in pair]
    mine, theirs = (x.masked_fill(x.isfinite(), 0.0) for x in pair)
    if not torch.allclose(mine, theirs, rtol=0.0, atol=0.0, equal_nan=True):
        return False
    mine, theirs = (x.nan_to_num(0.0, 0.0, 0.0) for x in pair)
    difference = (mine - theirs).abs()
    allowed = theirs.abs() + theirs.square().mean(-1, keepdim=True).sqrt()
    if not bool((difference <= 10 * most * allowed).all()):
        return False
    return bool(difference.norm() <= most * theirs.norm())
