"""Reductions and losses of ``x[mask]``, computed for all elements.

A reduction takes the neutral value for an element that is not selected.

``x[mask].sum()`` is ``where(mask, x, 0).sum()``; a mean divides by the number of selected elements
and is NaN where there are none. Sums are taken in another order than eager's, so their last bits
may differ; integers, ``any`` and ``all`` are the same.

``max`` and ``min`` set the others to an infinity. Eager raises for an empty selection, so only a
call is replaced that capture has put the raise in front of (selection_events.py). The
gradient is shared by all elements that hold the extremum. An element outside the mask holds it too
where every selected element is that infinity; there the mean, which is that infinity, has eager's
gradient. If zeros of both signs are the largest, either one may result, as in eager.

A loss is computed for each element, and those selected are summed or averaged. A loss over classes
takes its labels from the mask: an element that is not selected gets the label that is ignored, so
it adds neither to the sum nor to what the mean divides by.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from fusepass.capture.masks.lower_calls import broadcasts, reduced_dims
from fusepass.capture.masks.lowering_state import (
    SPREADS,
    FullTensor,
    MaskLowering,
    check_variance_warning,
)
from fusepass.capture.refusal import Refusal
from fusepass.graph.ops.normal_call import normal_call
from fusepass.graph.ops.op_names import tensor_value
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.scalars.unbacked_sizes import sizes_from_data
from fusepass.torch_private.fx.graphs import known_equal

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
    """Lower a reduction of what a mask selected to all elements; None for any other call."""
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
        raise Refusal(Reason.SIZE, "complex numbers that a mask selected are reduced")
    if name == "mean":
        dtype = given.get("dtype")
        if dtype is not None:
            cast = low.add(node, "to", whole.node, dtype)
            whole = replace(whole, node=cast)
        return _total(low, node, whole, dims, keepdim=bool(given.get("keepdim")), mean=True)
    if name in SPREADS:
        check_variance_warning(node)
        return _spread(low, node, whole, dims, given)
    if name not in _NEUTRAL or not _has_neutral(name, given):
        return None
    number = _NEUTRAL[name]
    neutral = bool(number) if whole.value.dtype is torch.bool else number
    return low.again(node, node.target, {source: low.fill_unselected(node, whole, neutral)})


def _has_neutral(name: str, given: dict[str, Any]) -> bool:
    """Whether a norm is of an order to which zero adds nothing."""
    if name == "linalg_norm" and set(given) != {"self"}:
        return False  # may be one of matrices
    order = given.get(_ORDERS[name], 2) if name in _ORDERS else 2
    order = 2 if order == "fro" else order
    return isinstance(order, (int, float)) and 0 <= order < float("inf")


def _total(
    low: MaskLowering,
    node: fx.Node,
    whole: FullTensor,
    dims: list[int],
    *,
    keepdim: bool,
    mean: bool,
) -> fx.Node:
    """Sum or mean of what was selected; that of 16-bit numbers adds up 32 bits, as eager does.

    ``dims`` has the dimension selected along.
    """
    dtype = whole.value.dtype
    if mean and not dtype.is_floating_point:
        raise Refusal(Reason.SIZE, "the mean of integers raises")
    masked = low.fill_unselected(node, whole, False if dtype is torch.bool else 0)
    wide = {"dtype": torch.float32} if mean and dtype in _HALF else {}
    added = low.add(node, "sum", masked, dims, keepdim, **wide)
    if not mean:
        return added
    result = low.add(node, operator.truediv, added, low.total_size(node, whole, dims))
    return low.add(node, "to", result, dtype) if wide else result


def _spread(
    low: MaskLowering, node: fx.Node, whole: FullTensor, dims: list[int], given: dict[str, Any]
) -> fx.Node:
    """Variance or standard deviation: the squares of what is left without the mean."""
    correction, dtype = correction_of(given), whole.value.dtype
    if not isinstance(correction, (int, float)) or not dtype.is_floating_point:
        raise Refusal(Reason.SIZE, "the variance of what a mask selected has no form of its own")
    if correction < 0:
        raise Refusal(
            Reason.SIZE, "a variance of nothing is no number, divided by more than nothing"
        )
    wide = _accumulated_in(whole.value)
    if wide != dtype:
        whole = replace(whole, node=low.add(node, "to", whole.node, wide))
    mean = _total(low, node, whole, dims, keepdim=True, mean=True)
    off = low.add(node, operator.sub, whole.node, mean)
    # Masked in front of the square too: else 0 · NaN goes back through the mean to every element.
    off = low.fill_unselected(node, replace(whole, node=off), 0)
    keepdim = bool(given.get("keepdim"))
    added = low.add(node, "sum", low.add(node, operator.mul, off, off), dims, keepdim)
    free = low.add(node, operator.sub, low.total_size(node, whole, dims), correction)
    result = low.add(node, operator.truediv, added, low.add(node, "clamp", free, 0))
    call = normal_call(node)
    if call is not None and call.op == "std":
        result = _root(low, node, result)
    return low.add(node, "to", result, dtype) if wide != dtype else result


def correction_of(given: dict[str, Any]) -> Any:
    """What a variance with these arguments takes off the number of elements it divides by."""
    return given.get("correction", int(given.get("unbiased", True) is not False))


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
    made = low.add(node, node.target, low.fill_unselected(node, whole, out))
    if not (whole.value.requires_grad and torch.is_grad_enabled()):
        return made
    dims = list(range(whole.value.dim()))
    even = _total(low, node, whole, dims, keepdim=False, mean=True)
    alone = low.add(node, operator.eq, made, out)
    return low.add(node, torch.where, alone, even, made)


def _out_of_reach(dtype: torch.dtype, *, low: bool) -> bool | int | float:
    if dtype is torch.bool:
        return not low
    if dtype.is_floating_point:
        return float("-inf") if low else float("inf")
    limits = torch.iinfo(dtype)
    return limits.min if low else limits.max


_ELEMENT_BY_ELEMENT: dict[str, Callable[..., Any]] = {
    "binary_cross_entropy": F.binary_cross_entropy,
    "binary_cross_entropy_with_logits": F.binary_cross_entropy_with_logits,
    "huber_loss": F.huber_loss,
    "kl_div": F.kl_div,
    "l1_loss": F.l1_loss,
    "mse_loss": F.mse_loss,
    "smooth_l1_loss": F.smooth_l1_loss,
}
_OVER_CLASSES = ("cross_entropy", "nll_loss")
_IGNORED = -100
_HOW = ("none", "sum", "mean", "batchmean")


def loss(low: MaskLowering, node: fx.Node) -> fx.Node | FullTensor | None:
    """Lower a loss of what a mask selected to all elements; None for any other call.

    A loss that is not reduced is given for all elements, as what is selected itself.
    """
    if node.op != "call_function":
        return None
    call = normal_call(node)
    if call is None or call.op not in (*_ELEMENT_BY_ELEMENT, *_OVER_CLASSES):
        return None
    given = dict(call.args)
    if given.get("self") not in low.whole:
        return None
    if set(given) & {"size_average", "reduce"} or given.get("reduction", "mean") not in _HOW:
        raise Refusal(Reason.SIZE, f"{call.op} of what a mask selected, called in an old way")
    if call.op in _OVER_CLASSES:
        return _over_classes(low, node, given)
    return _element_by_element(low, node, call.op, given)


def _element_by_element(
    low: MaskLowering, node: fx.Node, name: str, given: dict[str, Any]
) -> fx.Node | FullTensor:
    whole = low.whole[given["self"]]
    how = given.pop("reduction", "mean")
    # Mean of a divergence has a warning of its own; a weight of these divides by its own sum.
    weighs = "weight" in given and not name.startswith("binary")
    if (how == "batchmean") != (name == "kl_div" and how not in ("none", "sum")) or weighs:
        raise Refusal(Reason.SIZE, f"{name} of what a mask selected, reduced in a way of its own")
    arguments = {key: _operand(low, node, value, whole) for key, value in given.items()}
    arguments["input"] = arguments.pop("self")
    if name == "binary_cross_entropy":  # raises outside of [0, 1]
        arguments["input"] = low.fill_unselected(node, replace(whole, node=arguments["input"]), 0.5)
    made = low.add(node, _ELEMENT_BY_ELEMENT[name], reduction="none", **arguments)
    each = replace(whole, node=made, exact=False)
    sizes = made.meta["example_value"].shape
    same = len(sizes) == whole.value.dim()
    if not same or not all(map(known_equal, sizes, whole.value.shape)):
        raise Refusal(Reason.SIZE, f"{name} broadcasts what a mask selected")
    if how == "none":
        return each
    dims = list(range(each.value.dim()))
    added = _total(low, node, each, dims, keepdim=False, mean=how == "mean")
    if how == "batchmean":
        if whole.front:
            raise Refusal(Reason.SIZE, "a mean over a batch that is not what a mask selected")
        return low.add(node, torch.div, added, low.count_of(node, whole.selection))
    return added


def _operand(low: MaskLowering, node: fx.Node, value: Any, whole: FullTensor) -> Any:
    """An argument of a loss for all elements; like in any call element by element."""
    if not isinstance(value, fx.Node):
        return value
    if value in low.whole:
        other = low.whole[value]
        alike = other.after == whole.after
        if alike and low.same_selection(other.selection, whole.selection):
            return other.node
        raise Refusal(Reason.SIZE, "what two masks selected meets, in sizes that may differ")
    held = tensor_value(value)
    if held is None or not broadcasts(held, whole.after):
        raise Refusal(Reason.SIZE, "a loss takes a number that only the data know")
    if held.requires_grad and torch.is_grad_enabled():
        return low.gate_gradient(node, value, whole.selection, whole.after)
    return value


def _over_classes(low: MaskLowering, node: fx.Node, given: dict[str, Any]) -> fx.Node | FullTensor:
    scores, labels = low.whole[given["self"]], low.whole.get(given.get("target"))  # type: ignore[arg-type]
    if labels is None or not low.same_selection(scores.selection, labels.selection):
        raise Refusal(Reason.SIZE, "scores that a mask selected meet labels that it did not")
    integers = not labels.value.dtype.is_floating_point
    fits = scores.front == labels.front == 0 and scores.after == labels.after + 1
    if not integers or not fits or given.get("reduction") == "batchmean":
        raise Refusal(Reason.SIZE, "a loss over classes whose labels are no class numbers")
    weight = tensor_value(given.get("weight"))
    if weight is not None and weight.requires_grad:
        raise Refusal(Reason.SIZE, "the weight of a loss over classes requires grad")
    ignored = given.get("ignore_index", _IGNORED)
    mask = low.mask_for(node, labels.selection, labels.after)
    safe = low.add(node, torch.where, mask, labels.node, ignored)
    made = low.again(node, node.target, {given["self"]: scores.node, given["target"]: safe})
    if given.get("reduction", "mean") != "none":
        return made
    value = made.meta["example_value"]
    traced = tensor_value(node)
    if traced is None or sizes_from_data(traced) != [0] or value.dim() != traced.dim():
        raise Refusal(Reason.SIZE, "a loss over classes of another shape than its labels")
    return replace(labels, node=made, exact=False)
