"""Compute losses of ``x[mask]`` for all elements, then sum or average the selected ones.

A loss over classes takes its labels from the mask: an element that is not selected gets the label
that is ignored, so it adds neither to the sum nor to what the mean divides by.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from fusepass.capture.masks.lower_calls import broadcasts
from fusepass.capture.masks.lower_reductions import total
from fusepass.capture.masks.lowering_state import (
    FullTensor,
    KeptSelection,
    MaskLowering,
    count_of,
    fill_unselected,
    gate_gradient,
    mask_for,
    same_selection,
)
from fusepass.graph.ops.normal_call import normal_call
from fusepass.graph.ops.op_names import tensor_value
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.scalars.unbacked_sizes import sizes_from_data
from fusepass.torch_private.fx.graphs import known_equal

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
    """A loss of what was selected, made of all elements; None for another call.

    Returns:
        The node of a number, or what is selected where the loss is one for each element.

    Raises:
        KeptSelection: it has no such form.
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
        raise KeptSelection(Reason.SIZE, f"{call.op} of what a mask selected, called in an old way")
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
        raise KeptSelection(
            Reason.SIZE, f"{name} of what a mask selected, reduced in a way of its own"
        )
    arguments = {key: _operand(low, node, value, whole) for key, value in given.items()}
    arguments["input"] = arguments.pop("self")
    if name == "binary_cross_entropy":  # raises outside of [0, 1]
        arguments["input"] = fill_unselected(
            low, node, replace(whole, node=arguments["input"]), 0.5
        )
    made = low.add(node, _ELEMENT_BY_ELEMENT[name], reduction="none", **arguments)
    each = replace(whole, node=made, exact=False)
    sizes = made.meta["example_value"].shape
    same = len(sizes) == whole.value.dim()
    if not same or not all(map(known_equal, sizes, whole.value.shape)):
        raise KeptSelection(Reason.SIZE, f"{name} broadcasts what a mask selected")
    if how == "none":
        return each
    dims = list(range(each.value.dim()))
    added = total(low, node, each, dims, keepdim=False, mean=how == "mean")
    if how == "batchmean":
        if whole.front:
            raise KeptSelection(Reason.SIZE, "a mean over a batch that is not what a mask selected")
        return low.add(node, torch.div, added, count_of(low, node, whole.selection))
    return added


def _operand(low: MaskLowering, node: fx.Node, value: Any, whole: FullTensor) -> Any:
    """An argument of a loss for all elements; like in any call element by element."""
    if not isinstance(value, fx.Node):
        return value
    if value in low.whole:
        other = low.whole[value]
        alike = other.after == whole.after
        if alike and same_selection(low, other.selection, whole.selection):
            return other.node
        raise KeptSelection(Reason.SIZE, "what two masks selected meets, in sizes that may differ")
    held = tensor_value(value)
    if held is None or not broadcasts(held, whole.after):
        raise KeptSelection(Reason.SIZE, "a loss takes a number that only the data know")
    if held.requires_grad and torch.is_grad_enabled():
        return gate_gradient(low, node, value, whole.selection, whole.after)
    return value


def _over_classes(low: MaskLowering, node: fx.Node, given: dict[str, Any]) -> fx.Node | FullTensor:
    scores, labels = low.whole[given["self"]], low.whole.get(given.get("target"))  # type: ignore[arg-type]
    if labels is None or not same_selection(low, scores.selection, labels.selection):
        raise KeptSelection(Reason.SIZE, "scores that a mask selected meet labels that it did not")
    integers = not labels.value.dtype.is_floating_point
    fits = scores.front == labels.front == 0 and scores.after == labels.after + 1
    if not integers or not fits or given.get("reduction") == "batchmean":
        raise KeptSelection(Reason.SIZE, "a loss over classes whose labels are no class numbers")
    weight = tensor_value(given.get("weight"))
    if weight is not None and weight.requires_grad:
        raise KeptSelection(Reason.SIZE, "the weight of a loss over classes requires grad")
    ignored = given.get("ignore_index", _IGNORED)
    mask = mask_for(low, node, labels.selection, labels.after)
    safe = low.add(node, torch.where, mask, labels.node, ignored)
    instead = {given["self"]: scores.node, given["target"]: safe}
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: instead.get(n, n))
    made = low.add(node, node.target, *args, **kwargs)
    if given.get("reduction", "mean") != "none":
        return made
    value = made.meta["example_value"]
    traced = tensor_value(node)
    if traced is None or sizes_from_data(traced) != [0] or value.dim() != traced.dim():
        raise KeptSelection(Reason.SIZE, "a loss over classes of another shape than its labels")
    return replace(labels, node=made, exact=False)
