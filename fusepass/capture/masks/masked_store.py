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
from fusepass.graph.ops.op_names import argument, op_name, tensor_value
from fusepass.graph.safety.tensor_kinds import special_tensor_reason
from fusepass.graph.safety.totality import has_internal_overlap
from fusepass.torch_private.fx.graphs import call_target, known_equal

GETITEM, SETITEM = ("getitem", "__getitem__"), ("setitem", "__setitem__")
_OF_THE_VALUE = ("example_value", "unbacked_bindings")


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
    return mask_of(tensor_value(target), index) is not None


def counts_masks(node: fx.Node) -> bool:
    """Whether a call stores at an index with a boolean mask, which it makes places of first."""
    if op_name(node) not in (*SETITEM, "index_put", "index_put_"):
        return False
    return any(map(is_mask, parts_of_index(argument(node, 1, "indices"))))


def why_kept(node: fx.Node, *, exact: bool) -> str | None:
    """Why a store cannot be lowered; None for a masked store that can.

    With ``exact``, gradients must be those of eager to the last bit.
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
    mask, _, rest = mask_of(value, index)  # type: ignore[misc]  # it is a masked store
    if fake_of(mask).device != value.device:
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
    found = mask_of(value, index)
    if value is None or found is None:
        return []
    mask, _, after = found
    made: list[fx.Node] = []
    with node.graph.inserting_before(node):
        trained = value.requires_grad or (held is not None and held.requires_grad)
        if trained and torch.is_grad_enabled():
            mask = add_call(made, node, fake_mode, "clone", (mask,))  # backward reads it again
        for _ in range(after if fake_of(mask).dim() else 0):
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
    """Record a call where its graph inserts, with the meta data of ``like``; ``made`` gains it.

    ``target`` is a function or the name of a method.
    """
    kind = "call_method" if isinstance(target, str) else "call_function"
    node = like.graph.create_node(kind, target, args, kwargs or {})
    made.append(node)
    node.meta = {k: v for k, v in like.meta.items() if k not in _OF_THE_VALUE}
    if target in ("masked_fill_", "copy_"):
        node.meta["example_value"] = args[0].meta["example_value"]
    else:
        fakes, named = fx.map_arg((args, kwargs or {}), fake_of)
        with fake_mode:
            node.meta["example_value"] = call_target(target, fakes, named)
    return node


def fake_of(node: Any) -> torch.Tensor:
    """The fake tensor of a node that is known to be one."""
    return node.meta["example_value"]  # type: ignore[no-any-return]


def gathered(node: fx.Node) -> tuple[Any, Any] | None:
    """What ``x[index]`` or ``masked_select`` selects from, and by what; None for other calls."""
    name = op_name(node)
    if name == "masked_select":
        return argument(node, 0, "input"), argument(node, 1, "mask")
    return (node.args[0], node.args[1]) if name in GETITEM else None


def mask_of(value: torch.Tensor | None, index: Any) -> tuple[fx.Node, int, int] | None:
    """The one boolean mask of an index, and the numbers of dimensions in front of and behind it.

    Returns:
        None where the index is anything but one mask that fits and whole dimensions around it.
    """
    parts = parts_of_index(index)
    masks = [i for i, part in enumerate(parts) if is_mask(part)]
    if value is None or len(masks) != 1 or parts.count(Ellipsis) > 1:
        return None
    at, mask = masks[0], parts[masks[0]]
    if not all(is_whole(part) or part is Ellipsis for part in parts if part is not mask):
        return None
    sizes = fake_of(mask).shape
    ellipsis = Ellipsis in parts[:at]
    first = value.dim() - len(sizes) - (len(parts) - at - 1) if ellipsis else at
    after = value.dim() - first - len(sizes)
    covered = value.shape[first : first + len(sizes)]
    if first < 0 or after < 0 or not all(map(known_equal, sizes, covered)):
        return None
    return mask, first, after


def parts_of_index(index: Any) -> list[Any]:
    """The parts of an index, of which a tuple has several."""
    return list(index) if isinstance(index, (tuple, list)) else [index]


def is_basic(part: Any) -> bool:
    """Whether a part of an index is a number, a slice of numbers or an ellipsis."""
    if isinstance(part, slice):
        return all(
            end is None or isinstance(end, int) for end in (part.start, part.stop, part.step)
        )
    return part is Ellipsis or (isinstance(part, int) and not isinstance(part, bool))


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
