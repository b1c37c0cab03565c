"""Trace ``x[mask] = v`` as ``x.masked_fill_(mask, v)``, which cannot fail and needs no size.

A store through a boolean mask counts the true elements first, which makes the host wait, and fails
when the source has another number of rows. With a source that does not depend on that number it
can do neither: element by element it is a selection between the source and what was there.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx

from fusepass.graph.dataflow.memory import memory_of
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.graph.safety.tensor_kinds import special_tensor_reason
from fusepass.graph.safety.totality import has_internal_overlap
from fusepass.torch_private.fx.graphs import known_equal


def lower_masked_stores(nodes: list[fx.Node], fake_mode: Any) -> None:
    """Replace the masked stores among ``nodes`` (consecutive in their graph), list included.

    Sources that require grad are left: their gradient is a sum over what was stored, which comes
    out in another order.
    """
    found: list[fx.Node] = []
    for node in nodes:
        made = [] if why_kept(node, exact=True) else lower_store(node, fake_mode)
        found += made or [node]
    nodes[:] = found


def is_masked_store(node: fx.Node) -> bool:
    """Whether a call stores through one boolean mask."""
    if node.target is not operator.setitem and node.target != "__setitem__":
        return False
    target, index, _ = node.args
    value = tensor_value(target)
    return value is not None and mask_of(value, index) is not None


def counts_masks(node: fx.Node) -> bool:
    """Whether a call stores at an index with a boolean mask, which it makes places of first."""
    name = op_name(node)
    if name in ("setitem", "__setitem__", "index_put", "index_put_"):
        index = node.args[1] if len(node.args) > 1 else node.kwargs.get("indices")
        return any(map(is_mask, index if isinstance(index, (tuple, list)) else (index,)))
    return False


def why_kept(node: fx.Node, *, exact: bool) -> str | None:
    """Why a store cannot be lowered; None for a masked store that can.

    Args:
        node: a call.
        exact: whether gradients must be those of eager to the last bit.
    """
    if not is_masked_store(node):
        return "it is no store through one mask"
    own = special_tensor_reason(node)
    if own is not None:
        return own
    target, index, source = node.args
    value, held = tensor_value(target), tensor_value(source)
    if value is None or has_internal_overlap(target):  # type: ignore[arg-type]
        return "a write to a tensor whose elements share memory raises"
    found = mask_of(value, index)
    rest = found[2] if found is not None else 0
    if found is not None and _fake(found[0]).device != value.device:
        return "the mask is on another device"
    if held is None:
        fits = number_as_stored(value.dtype, source) is not None
        return None if fits else f"what is stored is no number of {value.dtype}"
    if held.dtype != value.dtype or held.device != value.device:
        return "what is stored has another dtype, or is on another device"
    if exact and held.requires_grad and torch.is_grad_enabled():
        return "what is stored requires grad, which is summed in another order"
    one = known_equal(held.numel(), 1)  # which eager fills with
    if not one and memory_of(target) == memory_of(source):
        return "what is stored shares memory with where it is stored"
    fits = held.dim() <= rest and all(
        known_equal(a, b) or known_equal(a, 1)
        for a, b in zip(held.shape, value.shape[value.dim() - held.dim() :], strict=True)
    )
    return None if fits else "what is stored may be as many values as the mask selects"


def lower_store(node: fx.Node, fake_mode: Any) -> list[fx.Node]:
    """Replace a masked store for which :func:`why_kept` says nothing; the calls made instead."""
    target, index, source = node.args
    value, held = tensor_value(target), tensor_value(source)
    found = mask_of(value, index) if value is not None else None
    if value is None or found is None:
        return []
    mask, shape, after = found
    made: list[fx.Node] = []
    with node.graph.inserting_before(node):
        trained = value.requires_grad or (held is not None and held.requires_grad)
        if trained and torch.is_grad_enabled():
            mask = add_call(made, node, fake_mode, "clone", (mask,))  # backward reads it again
        for _ in range(after if shape else 0):
            mask = add_call(made, node, fake_mode, "unsqueeze", (mask, -1))
        if held is None:
            source = number_as_stored(value.dtype, source)
        if held is None and value.is_contiguous():  # Inductor leaves it so, whatever it was
            add_call(made, node, fake_mode, "masked_fill_", (target, mask, source))
        else:
            chosen = add_call(made, node, fake_mode, torch.where, (mask, source, target))
            add_call(made, node, fake_mode, "copy_", (target, chosen))
    node.graph.erase_node(node)
    return made


def add_call(
    made: list[fx.Node],
    like: fx.Node,
    fake_mode: Any,
    target: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
) -> fx.Node:
    """Record a call where its graph inserts, in the place of ``like``; ``made`` gains it.

    Args:
        made: nodes made so far.
        like: the node whose meta data it gets, but for what its value is.
        fake_mode: the mode its fake value is computed under.
        target: a function or the name of a method.
        args: its arguments.
        kwargs: its keyword arguments.
    """
    given = kwargs or {}
    if isinstance(target, str):
        node = like.graph.call_method(target, args, given)
    else:
        node = like.graph.call_function(target, args, given)
    made.append(node)
    node.meta = {k: v for k, v in like.meta.items() if k not in _OF_THE_VALUE}
    if target in ("masked_fill_", "copy_"):
        node.meta["example_value"] = args[0].meta["example_value"]
    else:
        fakes, named = fx.map_arg((args, given), _fake)
        with fake_mode:
            run = getattr(fakes[0], target) if isinstance(target, str) else target
            rest = fakes[1:] if isinstance(target, str) else fakes
            node.meta["example_value"] = run(*rest, **named)
    return node


_OF_THE_VALUE = ("example_value", "unbacked_bindings")


def _fake(node: Any) -> torch.Tensor:
    return node.meta["example_value"]  # type: ignore[no-any-return]


def mask_of(value: torch.Tensor, index: Any) -> tuple[fx.Node, list[Any], int] | None:
    """The one boolean mask of an index, the shape that broadcasts it, the dimensions behind it.

    Returns:
        None where the index is anything but one mask that fits and whole dimensions around it.
    """
    parts = list(index) if isinstance(index, (tuple, list)) else [index]
    masks = [i for i, part in enumerate(parts) if is_mask(part)]
    if len(masks) != 1:
        return None
    at, mask = masks[0], parts[masks[0]]
    others = [part for i, part in enumerate(parts) if i != at]
    if any(not is_whole(part) and part is not Ellipsis for part in others):
        return None
    dims = _fake(mask).dim()
    if parts.count(Ellipsis) > 1:
        return None
    if Ellipsis in parts[:at]:
        first = value.dim() - dims - (len(parts) - at - 1)
    else:
        first = at
    after = value.dim() - first - dims
    sizes = list(_fake(mask).shape)
    fits = first >= 0 and after >= 0
    if not fits or not all(
        known_equal(a, b) for a, b in zip(sizes, value.shape[first : first + dims], strict=True)
    ):
        return None
    return mask, ([1] * first + sizes + [1] * after if dims else []), after


def is_mask(part: Any) -> bool:
    """Whether a part of an index is a boolean tensor."""
    held = tensor_value(part)
    return held is not None and held.dtype is torch.bool


def is_whole(part: Any) -> bool:
    """Whether a part of an index is ``:``."""
    return isinstance(part, slice) and (part.start, part.stop, part.step) == (None, None, None)


def number_as_stored(dtype: torch.dtype, number: Any) -> Any:
    """The Python number that a store of a number leaves in a dtype; None where that may raise."""
    if not isinstance(number, (bool, int, float)) or dtype.is_complex:
        return None
    if dtype is torch.bool:
        return bool(number)
    if dtype.is_floating_point:
        fits = not math.isfinite(number) or abs(number) <= torch.finfo(dtype).max
        return number if fits else None
    if not math.isfinite(number):
        return None
    limits = torch.iinfo(dtype)
    return int(number) if limits.min <= number <= limits.max else None
