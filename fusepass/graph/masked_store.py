"""``x[mask] = v`` as ``x.masked_fill_(mask, v)``: a store that cannot fail and asks no one.

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

from fusepass import torch_private
from fusepass.graph.canonical import tensor_value


def lower_masked_stores(nodes: list[fx.Node], fake_mode: Any) -> None:
    """Replace the masked stores among ``nodes`` (consecutive in their graph), list included."""
    for position, node in enumerate(nodes):
        made = _lowered(node, fake_mode)
        if made:
            nodes[position : position + 1] = made
            node.graph.erase_node(node)
            return lower_masked_stores(nodes, fake_mode)
    return None


def _lowered(node: fx.Node, fake_mode: Any) -> list[fx.Node]:
    if node.target is not operator.setitem and node.target != "__setitem__":
        return []
    target, index, source = node.args
    value = tensor_value(target)
    found = mask_of(value, index) if value is not None else None
    if value is None or found is None:
        return []
    mask, shape, rest = found
    if not _independent(value, rest, source):
        return []
    made: list[fx.Node] = []
    with node.graph.inserting_before(node):
        if value.requires_grad and torch.is_grad_enabled():
            mask = add_call(made, node, fake_mode, "clone", (mask,))  # backward reads it again
        if len(shape) != len(_fake(mask).shape):
            mask = add_call(made, node, fake_mode, "reshape", (mask, shape))
        held = tensor_value(source)
        if held is None or held.dim() == 0:
            add_call(made, node, fake_mode, "masked_fill_", (target, mask, source))
        else:
            chosen = add_call(made, node, fake_mode, torch.where, (mask, source, target))
            add_call(made, node, fake_mode, "copy_", (target, chosen))
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
        torch_private.known_equal(a, b)
        for a, b in zip(sizes, value.shape[first : first + dims], strict=True)
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


def _independent(value: torch.Tensor, rest: int, source: Any) -> bool:
    """Whether the source fits however many elements of the mask are true."""
    held = tensor_value(source)
    if held is None:
        return _representable(value.dtype, source)
    if held.dtype != value.dtype or held.device != value.device:
        return False
    if held.requires_grad and torch.is_grad_enabled():
        return False  # its gradient is a sum over the true elements, in another order
    if held.dim() > rest:
        return False
    tail = value.shape[value.dim() - held.dim() :]
    return all(
        torch_private.known_equal(a, b) or torch_private.known_equal(a, 1)
        for a, b in zip(held.shape, tail, strict=True)
    )


def _representable(dtype: torch.dtype, number: Any) -> bool:
    if dtype is torch.bool:
        return isinstance(number, bool)
    if dtype.is_floating_point:
        if not isinstance(number, (int, float)):
            return False
        return not math.isfinite(number) or abs(number) <= torch.finfo(dtype).max
    if dtype.is_complex or isinstance(number, bool) or not isinstance(number, int):
        return False
    limits = torch.iinfo(dtype)
    return limits.min <= number <= limits.max
