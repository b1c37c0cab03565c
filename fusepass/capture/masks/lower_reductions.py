"""Reduce ``x[mask]`` over all elements, with the others set to the neutral value.

``x[mask].sum()`` is ``where(mask, x, 0).sum()``; a mean divides by the number of selected elements
and is NaN where there are none. Sums are taken in another order than eager's, so their last bits
may differ; integers, ``any`` and ``all`` are the same.

``max`` and ``min`` set the others to an infinity. Eager raises for an empty selection, so only a
call is replaced that capture has put the raise in front of (capture/masks/empty_selection.py). The
gradient is shared by all elements that hold the extremum. An element outside the mask holds it too
where every selected element is that infinity; there the mean, which is that infinity, has eager's
gradient. If zeros of both signs are the largest, either one may result, as in eager.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from fusepass.capture.masks.lower_calls import reduced_dims
from fusepass.capture.masks.lowering_state import (
    SPREADS,
    FullTensor,
    KeptSelection,
    MaskLowering,
    check_variance_warning,
    fill_unselected,
    total_size,
)
from fusepass.graph.ops.normal_call import normal_call
from fusepass.report.decision import Reason

# What an element that does not count may be: of these a reduction hands on what the others give.
_NEUTRAL: dict[str, Any] = {
    "all": 1,
    "any": 0,
    "count_nonzero": 0,
    "linalg_norm": 0,
    "linalg_vector_norm": 0,
    "nansum": 0,
    "norm": 0,
    "prod": 1,
    "sum": 0,
}
_ORDERS = {"norm": "p", "linalg_norm": "ord", "linalg_vector_norm": "ord"}
_ARGUMENTS = frozenset("correction dim dtype keepdim ord p self unbiased".split())
_HALF = (torch.float16, torch.bfloat16)


def lower_reduction(low: MaskLowering, node: fx.Node) -> fx.Node | None:
    """A reduction over what was selected, made of all elements; None for another call.

    Raises:
        KeptSelection: it has no such form.
    """
    call = normal_call(node)
    given = dict(call.args) if call is not None else {}
    source = given.get("self")
    if call is None or call.inplace or source not in low.whole or set(given) - _ARGUMENTS:
        return None
    whole, name = low.whole[source], call.op
    dims = reduced_dims(call, whole.value.dim())
    if dims is None or whole.front not in dims:
        return None
    if whole.value.dtype.is_complex:
        raise KeptSelection(Reason.SIZE, "complex numbers that a mask selected are reduced")
    if name == "mean":
        dtype = given.get("dtype")
        if dtype is not None:
            cast = low.add(node, "to", whole.node, dtype)
            whole = replace(whole, node=cast)
        return total(low, node, whole, dims, keepdim=bool(given.get("keepdim")), mean=True)
    if name in SPREADS:
        check_variance_warning(node)
        return _spread(low, node, whole, dims, given)
    if name not in _NEUTRAL or not _has_neutral(name, given):
        return None
    return _same(low, node, source, fill_unselected(low, node, whole, _neutral(name, whole)))


def _has_neutral(name: str, given: dict[str, Any]) -> bool:
    """Whether a norm is of an order to which zero adds nothing."""
    if name == "linalg_norm" and set(given) != {"self"}:
        return False  # may be one of matrices
    order = given.get(_ORDERS[name], 2) if name in _ORDERS else 2
    order = 2 if order == "fro" else order
    return isinstance(order, (int, float)) and 0 <= order < float("inf")


def _neutral(name: str, whole: FullTensor) -> Any:
    number = _NEUTRAL[name]
    return bool(number) if whole.value.dtype is torch.bool else number


def _same(low: MaskLowering, node: fx.Node, source: fx.Node, instead: fx.Node) -> fx.Node:
    """The call of the program on another operand."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: instead if n is source else n)
    return low.add(node, node.target, *args, **kwargs)


def total(
    low: MaskLowering,
    node: fx.Node,
    whole: FullTensor,
    dims: list[int],
    *,
    keepdim: bool,
    mean: bool,
) -> fx.Node:
    """Sum or mean of what was selected; that of 16-bit numbers adds up 32 bits, as eager does.

    Args:
        low: the state of lowering.
        node: the call it is made for.
        whole: what was selected.
        dims: over which dimensions, the one selected along among them.
        keepdim: whether they stay, of size one.
        mean: divide by how many there are.
    """
    dtype = whole.value.dtype
    if mean and not dtype.is_floating_point:
        raise KeptSelection(Reason.SIZE, "the mean of integers raises")
    masked = fill_unselected(low, node, whole, False if dtype is torch.bool else 0)
    wide = {"dtype": torch.float32} if mean and dtype in _HALF else {}
    added = low.add(node, "sum", masked, dims, keepdim, **wide)
    if not mean:
        return added
    result = low.add(node, operator.truediv, added, total_size(low, node, whole, dims))
    return low.add(node, "to", result, dtype) if wide else result


def _spread(
    low: MaskLowering, node: fx.Node, whole: FullTensor, dims: list[int], given: dict[str, Any]
) -> fx.Node:
    """Variance or standard deviation: the squares of what is left without the mean."""
    correction = given.get("correction", int(given.get("unbiased", True) is not False))
    dtype = whole.value.dtype
    if not isinstance(correction, (int, float)) or not dtype.is_floating_point:
        raise KeptSelection(
            Reason.SIZE, "the variance of what a mask selected has no form of its own"
        )
    if correction < 0:
        raise KeptSelection(
            Reason.SIZE, "a variance of nothing is no number, divided by more than nothing"
        )
    wide = _accumulated_in(whole.value)
    if wide != dtype:
        whole = replace(whole, node=low.add(node, "to", whole.node, wide))
    mean = total(low, node, whole, dims, keepdim=True, mean=True)
    off = low.add(node, operator.sub, whole.node, mean)
    # Masked in front of the square too: else 0 · NaN goes back through the mean to every element.
    off = fill_unselected(low, node, replace(whole, node=off), 0)
    keepdim = bool(given.get("keepdim"))
    added = low.add(node, "sum", low.add(node, operator.mul, off, off), dims, keepdim)
    free = low.add(node, operator.sub, total_size(low, node, whole, dims), correction)
    result = low.add(node, operator.truediv, added, low.add(node, "clamp", free, 0))
    call = normal_call(node)
    if call is not None and call.op == "std":
        result = _root(low, node, result)
    return low.add(node, "to", result, dtype) if wide != dtype else result


def _accumulated_in(value: torch.Tensor) -> torch.dtype:
    """Where eager adds up squares, so that they overflow and vanish where eager's do."""
    if value.dtype in _HALF:
        return torch.float32
    return torch.float64 if value.device.type == "cpu" else value.dtype


def _root(low: MaskLowering, node: fx.Node, variance: fx.Node) -> fx.Node:
    """The square root, whose gradient at zero is zero, as that of a standard deviation is."""
    value = variance.meta["example_value"]
    if not (value.requires_grad and torch.is_grad_enabled()):
        return low.add(node, "sqrt", variance)
    none = low.add(node, operator.eq, variance, 0)
    root = low.add(node, "sqrt", low.add(node, torch.where, none, 1.0, variance))
    return low.add(node, torch.where, none, 0.0, root)


NEVER_EMPTY = "fusepass_never_empty"  # meta key of a call behind which something is selected
EXTREMA = ("max", "min")


def extremum(low: MaskLowering, node: fx.Node) -> fx.Node | None:
    """The largest or smallest of all that was selected; None for another call."""
    call = normal_call(node) if NEVER_EMPTY in node.meta else None
    if call is None or call.op not in EXTREMA or [name for name, _ in call.args] != ["self"]:
        return None
    whole = low.whole.get(dict(call.args)["self"])
    if whole is None or whole.value.dtype.is_complex:
        return None
    out = _out_of_reach(whole.value.dtype, low=call.op.endswith("max"))
    made = low.add(node, node.target, fill_unselected(low, node, whole, out))
    if not (whole.value.requires_grad and torch.is_grad_enabled()):
        return made
    dims = list(range(whole.value.dim()))
    even = total(low, node, whole, dims, keepdim=False, mean=True)
    alone = low.add(node, operator.eq, made, out)
    return low.add(node, torch.where, alone, even, made)


def _out_of_reach(dtype: torch.dtype, *, low: bool) -> bool | int | float:
    if dtype is torch.bool:
        return not low
    if dtype.is_floating_point:
        return float("-inf") if low else float("inf")
    limits = torch.iinfo(dtype)
    return limits.min if low else limits.max
