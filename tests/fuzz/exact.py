"""The error rule for programs that Inductor compiled: a float64 run stands for the exact result."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fusepass.numerics import error_bound, half_ulp, is_float, rms, rms_error
from fusepass.testing.compare import Difference, same_bits, tensors
from fusepass.testing.observe import Precision

# Where no exact run can be had: of float64 itself, or of a program that takes another branch there.
_CLOSE = {torch.float64: 1e-10, torch.float32: 1e-4}
_CLOSE_LOW = 0.05  # bfloat16 and float16
_NUMBER = re.compile(r"-?(?:\d+\.\d*(?:e[-+]\d+)?|\d+e[-+]\d+|inf|nan)")


def values_within(eager: Any, exact: Any) -> Callable[[Tensor, Tensor, str], None]:
    """A comparison of tensors by the error rule.

    Args:
        eager: everything one eager call left, as nested containers.
        exact: the same of the float64 run, None if there is none.
    """
    left, right = list(tensors(eager)), list(tensors(exact))
    fits = len(left) == len(right) and all(
        a.shape == b.shape for a, b in zip(left, right, strict=True)
    )
    exact_of = {id(a): b for a, b in zip(left, right, strict=True)} if fits else {}

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
        bound = error_bound(half_ulp(one.dtype, rms(finite)), rms_error(one, reference), None)
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


@contextlib.contextmanager
def in_float64() -> Iterator[None]:
    """Floating dtypes that a program names become float64; random numbers stay what they were."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Exact(torch.float64):
            yield
    finally:
        torch.set_default_dtype(before)


def doubled(value: Any) -> Any:
    """A module, an object, or arguments, with float64 for every floating dtype."""
    return _converted(value, torch.float64)


def moved(value: Any, device: str) -> Any:
    """A module, an object, or arguments, on a device."""
    return value if device == "cpu" else _converted(value, device)


def _converted(value: Any, to: torch.dtype | str) -> Any:
    if isinstance(value, Tensor):
        fits = isinstance(to, str) or value.is_floating_point()
        return value.to(to) if fits else value
    if isinstance(value, (tuple, list)):
        return type(value)(_converted(item, to) for item in value)
    if isinstance(value, nn.Module):
        value.to(to)
        for module in value.modules():
            _convert_attributes(module, to)
    elif hasattr(value, "__dict__"):
        _convert_attributes(value, to)
    return value


def _convert_attributes(owner: Any, to: torch.dtype | str) -> None:
    for name, value in list(vars(owner).items()):
        if not name.startswith("_") and not isinstance(value, nn.Module):
            setattr(owner, name, _converted(value, to))


class _Exact(Precision):
    """Draws in float32, so that the generator gives the numbers it gives the program."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("rand_like", "randn_like"):
            return func(args[0].float()).double()
        if name in ("rand", "randn"):
            return func(*args, dtype=torch.float32).double()
        if name == "dropout":
            kept = func(torch.ones_like(args[0], dtype=torch.float32), *args[1:], **(kwargs or {}))
            return args[0] * kept.double()
        return super().__torch_function__(func, types, args, kwargs)
