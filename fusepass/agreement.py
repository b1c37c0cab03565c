"""Whether two ways of computing the same gave the same, within rounding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

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
