"""Replace the number of elements that a mask selects by ``mask.sum()``, on the device.

``x[mask].numel()``, ``len(x[mask])`` and ``mask.nonzero().shape[0]`` are Python integers that are
known once the mask has been counted. Where they only take part in tensor work, the count stays a
tensor (lowering.py), and nothing that is selected has to be looked at. One that leaves the
graph leaves it as a tensor, and is read behind it.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from fusepass.capture.masks.masked_store import add_call, mask_of
from fusepass.capture.masks.size_origins import counted
from fusepass.capture.scalars.lowering import KeptScalar, Number, replace_numbers
from fusepass.capture.scalars.scalar import Range
from fusepass.graph.dataflow.node_recorder import replay_modes
from fusepass.graph.ops.op_names import argument, op_name, tensor_value

_PLACES = ("argwhere", "nonzero")
_MOST = 2**50  # a mask of so many elements would take a GPU minutes to read


def mask_of_count(node: Any) -> fx.Node | None:
    """What decides how many elements (or places) a call selects; None for other calls.

    A call that gives positions may take any tensor: its elements that are not zero are counted.
    """
    if not isinstance(node, fx.Node):
        return None
    name = op_name(node)
    if name in ("getitem", "__getitem__"):
        source, index = node.args
        value = tensor_value(source)
        if value is not None:
            found = mask_of(value, index)
            return None if found is None else found[0]
        return nonzero_source(node)
    if name == "masked_select":
        value = tensor_value(argument(node, 0, "input"))
        found = None if value is None else mask_of(value, argument(node, 1, "mask"))
        return None if found is None or found[2] else found[0]
    return nonzero_source(node) if tensor_value(node) is not None else None


def nonzero_source(node: Any) -> fx.Node | None:
    """The tensor whose places that are not zero a call gives, or one of them along a dimension."""
    if not isinstance(node, fx.Node):
        return None
    name = op_name(node)
    if name in ("getitem", "__getitem__") and tensor_value(node.args[0]) is None:
        return nonzero_source(node.args[0])
    alone = name == "where" and len(node.args) + len(node.kwargs) == 1
    if name not in _PLACES and not alone:
        return None
    source = next(iter(node.all_input_nodes), None)
    return source if tensor_value(source) is not None else None


def count_on_device(
    graph: fx.Graph, fake_mode: Any, late: list[int] | None = None
) -> dict[fx.Node, KeptScalar]:
    """Replace sizes of what masks select by counts, where only tensor work uses them.

    Args:
        graph: a complete one.
        fake_mode: the mode its fake values belong to.
        late: takes the positions of outputs that were sizes and are now 0-d tensors, to be read
            with ``item``. Without it the graph may not give a size out.

    Returns:
        By selection, why a size of it is needed.
    """
    numbers: dict[Number, fx.Node] = {}
    with replay_modes() as follow:
        for node in list(graph.nodes):
            follow(node)
            source = counted(node)
            mask = mask_of_count(source)
            if source is not None and mask is not None and not all(map(is_check, node.users)):
                number = Number(node, _count(source, mask, fake_mode), Range(0, max_count_of(mask)))
                numbers[number] = source
    if not numbers:
        return {}
    kept = replace_numbers(graph, numbers, fake_mode, is_check, late)
    return {source: kept[n.node] for n, source in numbers.items() if n.node in kept}


def is_check(node: fx.Node) -> bool:
    """Whether a call compares a size only to check it, as Dynamo does for each."""
    if str(node.target) == "aten._assert_scalar.default":
        return True
    compares = node.target in (operator.ge, operator.le, operator.eq)
    return compares and bool(node.users) and all(map(is_check, node.users))


def _count(source: fx.Node, mask: fx.Node, fake_mode: Any) -> fx.Node:
    """The count of a mask when it was asked, in front of the selection."""
    place = source
    if op_name(source) in ("getitem", "__getitem__") and tensor_value(source.args[0]) is None:
        place = source.args[0]  # type: ignore[assignment]
    made: list[fx.Node] = []
    with place.graph.inserting_before(place):
        if tensor_value(mask).dtype is not torch.bool:  # type: ignore[union-attr]
            mask = add_call(made, place, fake_mode, operator.ne, (mask, 0))
        return add_call(made, place, fake_mode, "sum", (mask,))


def max_count_of(mask: fx.Node) -> int:
    """How many elements a mask can select at most."""
    value = tensor_value(mask)
    most: Any = value.numel() if value is not None else _MOST
    return most if isinstance(most, int) else _MOST
