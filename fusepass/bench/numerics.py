"""Comparing outputs: tensor by tensor, against eager's and against a float64 run of the program."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypedDict

import torch

from fusepass.numerics import half_ulp, is_float, rms, rms_error, to_double


class TensorError(TypedDict):
    """One output tensor against the reference and against eager's."""

    problem: str | None  # wrong shape or dtype, or a tensor of integers that is not eager's
    rms: float | None  # None: not floating point, or no reference
    reference_rms: float | None
    half_ulp: float | None
    bit_equal: bool
    from_eager: float | None  # RMS difference from eager over eager's RMS


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Tensors in a program's output, in a fixed order: containers, dataclasses and mappings."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name))


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """``value`` with every tensor inside tuples, lists and dicts replaced by ``change(tensor)``."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, change) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(item, change) for item in value)
    return value


def reference_outputs(
    model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[torch.Tensor]:
    """Outputs of a float64 copy of ``model`` on float64 copies of its inputs, run eagerly.

    A plain function has no weights to convert: it must work with whatever dtype it is given.

    Raises:
        Exception: whatever the program raises in float64 (a dtype written into it, an operator
            without a float64 version, not enough memory).
    """
    exact = copy.deepcopy(model)
    if isinstance(exact, torch.nn.Module):
        exact = exact.double()
    inputs = map_tensors(copy.deepcopy((args, kwargs)), to_double)
    return [tensor.detach().clone() for tensor in tensors_in(exact(*inputs[0], **inputs[1]))]


def no_comparison() -> TensorError:
    """An error record in which nothing is known yet."""
    return TensorError(
        problem=None, rms=None, reference_rms=None, half_ulp=None, bit_equal=False, from_eager=None
    )


def compare(output: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor | None) -> TensorError:
    """How one output tensor differs from eager's and from the float64 reference.

    All three on one device; ``exact`` has eager's shape, or is None when there is no reference.
    """
    error = no_comparison()
    if output.shape != eager.shape or output.dtype != eager.dtype:
        error["problem"] = (
            f"{output.dtype} of shape {tuple(output.shape)} where eager gives "
            f"{eager.dtype} of shape {tuple(eager.shape)}"
        )
        return error
    if not is_float(output):
        error["bit_equal"] = torch.equal(output, eager)
        error["problem"] = (
            None if error["bit_equal"] else f"{output.dtype} values differ from eager's"
        )
        return error
    error["bit_equal"] = bool(((output == eager) | (output.isnan() & eager.isnan())).all())
    scale, difference = rms(eager), rms_error(output, eager)
    error["from_eager"] = difference / scale if scale and math.isfinite(scale) else difference
    if exact is not None:
        magnitude = rms(exact[torch.isfinite(exact)])
        error["rms"] = rms_error(output, exact)
        error["reference_rms"] = magnitude
        error["half_ulp"] = half_ulp(output.dtype, magnitude)
    return error
