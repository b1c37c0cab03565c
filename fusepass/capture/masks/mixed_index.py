"""Rewrite other spellings of a selection by mask as ``x[mask]``.

``y[0, mask]`` becomes ``y[0][mask]``: torch, too, applies integers and slices of an index first.

``x[torch.where(mask)]`` becomes ``x[mask]``. The positions are those of all true elements in order,
so both select the same. That holds while the mask is read where its positions were computed, and
where the tensor has the mask's shape: positions alone fit any tensor that is large enough.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from fusepass.capture.masks.masked_store import (
    GETITEM,
    SETITEM,
    add_call,
    is_basic,
    is_mask,
    is_whole,
    parts_of_index,
)
from fusepass.capture.masks.selection_count import nonzero_source
from fusepass.graph.dataflow.write_history import WriteHistory
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.torch_private.fx.graphs import has_unbacked_size, known_equal


def split_mixed_indices(nodes: list[fx.Node], fake_mode: Any) -> None:
    """Split the mixed indices among ``nodes`` (consecutive in their graph), list included."""
    for node in list(nodes):
        found = split_index(node) if op_name(node) in (*GETITEM, *SETITEM) else None
        if found is None:
            continue
        made: list[fx.Node] = []
        with node.graph.inserting_before(node):
            view = add_call(made, node, fake_mode, operator.getitem, (node.args[0], found[0]))
        node.args = (view, found[1], *node.args[2:])
        at = nodes.index(node)
        nodes[at:at] = made


def split_index(node: fx.Node) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """The index without its mask, and the mask's index into what that gives; None if not mixed."""
    index = node.args[1]
    if tensor_value(node.args[0]) is None or not isinstance(index, (tuple, list)):
        return None
    if sum(map(is_mask, index)) != 1 or not all(is_mask(p) or is_basic(p) for p in index):
        return None
    if all(is_mask(part) or part is Ellipsis or is_whole(part) for part in index):
        return None
    basic: list[Any] = []
    rest: list[Any] = []
    for part in index:
        if is_mask(part):
            basic += [slice(None)] * part.meta["example_value"].dim()  # type: ignore[union-attr]
            rest.append(part)
        else:
            basic.append(part)
            rest += [] if isinstance(part, int) else [part if part is Ellipsis else slice(None)]
    return tuple(basic), tuple(rest)


_TUPLES = ("nonzero", "where")  # which give the places along each dimension by itself


def select_by_masks(nodes: list[fx.Node], keys: tuple[str, ...]) -> None:
    """Have calls that select by the places of a mask select by the mask.

    They take over the meta data under ``keys`` from the calls that gave the places.
    """
    found = [(node, _places(node)) for node in nodes]
    if not any(places is not None for _, places in found):
        return
    history = WriteHistory(nodes[0].graph, nodes[-1])
    for node, places in found:
        if places is None:
            continue
        mask: Any = nonzero_source(places)
        start, end = history.moments[places], history.moments[node]
        parts = [n for n in node.all_input_nodes if n.args and n.args[0] is places]
        if not any(history.is_written(read, start, end) for read in (mask, *parts)):
            node.args = (node.args[0], mask)
            node.meta.update({key: places.meta[key] for key in keys if key in places.meta})


def _places(node: fx.Node) -> fx.Node | None:
    """The call that gave all the places a call selects by, along the dimensions in front."""
    if op_name(node) not in GETITEM:
        return None
    value, each = tensor_value(node.args[0]), parts_of_index(node.args[1])
    if value is None or has_unbacked_size(value):
        return None
    parts = [_part(given) for given in each]
    sources = {source for source, _ in parts}
    source = next(iter(sources), None)
    if len(sources) != 1 or source is None or [at for _, at in parts] != list(range(len(parts))):
        return None
    mask = tensor_value(nonzero_source(source))
    if mask is None or mask.dtype is not torch.bool or mask.device != value.device:
        return None
    if not mask.dim() == len(parts) <= value.dim():
        return None
    alike = zip(mask.shape, value.shape, strict=False)
    return source if all(known_equal(a, b) for a, b in alike) else None


def _part(given: Any) -> tuple[fx.Node | None, Any]:
    """The call that gave a tuple of places, and which of the tuple this is."""
    if not isinstance(given, fx.Node) or given.target is not operator.getitem:
        return None, None
    source, at = given.args
    of_masks = isinstance(source, fx.Node) and op_name(source) in _TUPLES
    if not of_masks or tensor_value(source) is not None or nonzero_source(source) is None:
        return None, None
    return source, at  # type: ignore[return-value]
