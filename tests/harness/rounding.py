"""How far the numbers of two runs may be apart: by the error rule, or by the order of a sum."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from fusepass.numerics import error_bound, half_ulp, is_float, rms, rms_error, to_double
from fusepass.testing.compare import Difference, Values, same_bits

# Where no exact run can be had: of float64 itself, or of a program that takes another branch there.
_CLOSE = {torch.float64: 1e-10, torch.float32: 1e-4}
_CLOSE_LOW = 0.05  # bfloat16 and float16
_ROUNDING = 32  # units in the last place of the largest value, for the order of a sum
_NUMBER = re.compile(r"-?(?:\d+\.\d*(?:e[-+]\d+)?|\d+e[-+]\d+|inf|nan)")


def values_within(exact_of: Mapping[int, Tensor], roundings: int = 1) -> Values:
    """A comparison of tensors by the error rule, given the exact values of eager's by their id.

    So many ``roundings`` of half an ulp are let pass, where eager happens to have a smaller error.
    """

    def compare(one: Tensor, other: Tensor, path: str) -> None:
        if same_bits(one, other):
            return
        reference = exact_of.get(id(one))
        if not is_float(one):
            raise Difference("values", path, f"\neager    {one}\ncompiled {other}")
        if reference is None or one.dtype == torch.float64:
            if not close(one, other):
                raise Difference("values", path, f"\neager    {one}\ncompiled {other}")
            return
        one, other, reference = one.detach(), other.detach(), reference.detach()
        finite = reference[reference.isfinite()]
        least = roundings * half_ulp(one.dtype, rms(finite))
        bound = error_bound(least, rms_error(one, reference), None)
        error = rms_error(other, reference)
        if not error <= bound:
            text = f"error {error:.3g}, allowed {bound:.3g}\neager    {one}\ncompiled {other}"
            raise Difference("values", path, text)

    return compare


def close(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are as close as rounding leaves them, for want of an exact one."""
    slack = _CLOSE.get(one.dtype, _CLOSE_LOW)
    return torch.allclose(one.detach(), other.detach(), rtol=slack, atol=slack, equal_nan=True)


def same_text(one: str, other: str) -> bool:
    """Whether two texts are equal but for the rounding of numbers in them."""
    if one == other:
        return True
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(a == b or abs(float(a) - float(b)) <= 1e-3 * max(1, abs(float(a))) for a, b in pairs)


def same_sum(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors differ by no more than the rounding of a few additions.

    Autograd adds what the uses of a value contribute in an order that depends on the graph, which
    is another one where a branch became a select.
    """
    if not is_float(one):
        return False
    slack = _ROUNDING * torch.finfo(one.dtype).eps
    one, other = to_double(one).detach(), to_double(other).detach()
    finite = one[one.isfinite()].abs()
    scale = max(1.0, float(finite.max()) if finite.numel() else 0.0)
    return torch.allclose(one, other, rtol=0.0, atol=slack * scale, equal_nan=True)


def assert_same_sum(one: Tensor, other: Tensor, path: str) -> None:
    """Raise Difference unless two tensors are equal up to the rounding of sums."""
    if not same_bits(one, other) and not same_sum(one, other):
        raise Difference("values", path, f"values\neager    {one}\ncompiled {other}")
