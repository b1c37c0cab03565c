"""Replace the number of elements that a mask selects by the count of the mask, on the device.

``x[mask].numel()``, ``len(x[mask])`` and ``mask.nonzero().shape[0]`` are Python integers that are
known once the mask has been counted.

While a frame is traced, such a number is an integer times a symbol that stands for a size. In a
condition it is the count of the mask, a tensor, as long as nobody has written the mask since it
selected. In the complete graph, where such numbers only take part in tensor work, the count stays a
tensor (scalars/lowering.py), and nothing that is selected has to be looked at. One that leaves the
graph leaves it as a tensor, and is read behind it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from fusepass.capture.masks.masked_store import GETITEM, add_call, gathered, mask_of
from fusepass.capture.refusal import Refusal
from fusepass.capture.scalars.lowering import KeptScalar, Number, replace_numbers
from fusepass.capture.scalars.scalar import Range
from fusepass.graph.dataflow.node_recorder import replay_modes
from fusepass.graph.dataflow.write_history import WriteHistory
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.dynamo.scalars import unbacked_sizes
from fusepass.torch_private.fx.graphs import has_unbacked_size, tree_flatten

_PLACES = ("argwhere", "nonzero")
_COMPARISONS = (operator.ge, operator.le, operator.eq)
_MOST = 2**50  # a mask of so many elements would take a GPU minutes to read


def mask_of_count(node: Any) -> fx.Node | None:
    """What decides how many elements (or places) a call selects; None for other calls.

    A call that gives positions may take any tensor: its elements that are not zero are counted.
    """
    if not isinstance(node, fx.Node):
        return None
    source, index = gathered(node) or (None, None)
    value = tensor_value(source)
    if value is not None:
        mask, _, after = mask_of(value, index) or (None, 0, 0)
        return None if op_name(node) == "masked_select" and after else mask
    places = source is not None or tensor_value(node) is not None
    return nonzero_source(node) if places else None


def nonzero_source(node: Any) -> fx.Node | None:
    """The tensor whose places that are not zero a call gives, or one of them along a dimension."""
    if not isinstance(node, fx.Node):
        return None
    name = op_name(node)
    if name in GETITEM and tensor_value(node.args[0]) is None:
        return nonzero_source(node.args[0])
    alone = name == "where" and len(node.args) + len(node.kwargs) == 1
    if name not in _PLACES and not alone:
        return None
    source = next(iter(node.all_input_nodes), None)
    return source if tensor_value(source) is not None else None


def max_count_of(mask: fx.Node) -> int:
    """How many elements a mask can select at most."""
    value = tensor_value(mask)
    most: Any = value.numel() if value is not None else _MOST
    return most if isinstance(most, int) else _MOST


def selection_of(graph: fx.Graph, symbol: Any) -> fx.Node | None:
    """The call that selects as many elements as a symbol stands for."""
    for node in graph.nodes:
        if symbol in unbacked_sizes.unknown_sizes(tensor_value(node)):
            return node if mask_of_count(node) is not None else None
    return None


def linear_count(graph: fx.Graph, number: Any) -> tuple[fx.Node, int, int] | None:
    """(selection, factor, rest) of a number made of one size that a mask gave; None for others."""
    found = unbacked_sizes.linear_size(number)
    root = None if found is None else selection_of(graph, found[0])
    return None if found is None or root is None else (root, *found[1:])


def is_count(node: fx.Node) -> bool:
    """Whether a node is a number made of one size that a mask gave, and known numbers."""
    return linear_count(node.graph, node.meta.get("example_value")) is not None


def count(translator: Any, node: fx.Node) -> tuple[fx.Node, Range]:
    """Record the tensor that equals such a number, 0-d int64, and say what it can be."""
    found = linear_count(node.graph, node.meta.get("example_value"))
    if found is None:
        raise Refusal(Reason.PREDICATE, "a size that no mask gave is tested")
    root, factor, rest = found
    mask = mask_now(root)
    if mask is None:
        raise Refusal(Reason.PREDICATE, "the mask is written before its count is tested")
    made = record_count(translator, mask)
    if factor != 1:
        made = _record(translator, torch.mul, made.as_proxy(), factor)
    if rest:
        made = _record(translator, torch.add, made.as_proxy(), rest)
    return made.as_proxy().node, _range(factor, rest, mask)


def range_of_count(node: fx.Node) -> Range | None:
    """What a number can be for which :func:`is_count` holds; None for others."""
    found = linear_count(node.graph, node.meta.get("example_value"))
    mask = None if found is None else mask_of_count(found[0])
    return None if found is None or mask is None else _range(*found[1:], mask)


def _range(factor: int, rest: int, mask: fx.Node) -> Range:
    least, most = sorted(factor * end + rest for end in (0, max_count_of(mask)))
    return Range(least, most)


def mask_now(root: fx.Node) -> fx.Node | None:
    """The mask by which ``root`` selected, if it still holds what it held then."""
    mask = mask_of_count(root)
    history = WriteHistory(root.graph)
    if mask is None or history.is_written(mask, history.moments[root], len(history.moments)):
        return None
    return mask


def record_count(translator: Any, mask: fx.Node) -> Any:
    """Record how many elements of a mask, of truth values or other numbers, are not zero."""
    tracked = stack.proxy_of(translator, mask)
    if tensor_value(mask).dtype is not torch.bool:  # type: ignore[union-attr]
        tracked = _record(translator, operator.ne, tracked, 0).as_proxy()
    return stack.wrap_call(translator, "call_method", "sum", (tracked,), {})


def _record(translator: Any, call: Any, *args: Any) -> Any:
    return stack.wrap_call(translator, "call_function", call, args, {})


def count_on_device(
    graph: fx.Graph, fake_mode: Any, late: list[int] | None = None
) -> dict[fx.Node, KeptScalar]:
    """Replace sizes of what masks select by counts, where only tensor work uses them.

    ``late`` takes the positions of outputs that were sizes and are now 0-d tensors, to be read with
    ``item``. Without it the graph may not give a size out.

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


def _count(source: fx.Node, mask: fx.Node, fake_mode: Any) -> fx.Node:
    """The count of a mask when it was asked, in front of the selection."""
    place = source
    if op_name(source) in GETITEM and tensor_value(source.args[0]) is None:
        place = source.args[0]  # type: ignore[assignment]
    made: list[fx.Node] = []
    with place.graph.inserting_before(place):
        if tensor_value(mask).dtype is not torch.bool:  # type: ignore[union-attr]
            mask = add_call(made, place, fake_mode, operator.ne, (mask, 0))
        return add_call(made, place, fake_mode, "sum", (mask,))


def counted(node: Any) -> fx.Node | None:
    """What a number is a size of, where it is one."""
    if not isinstance(node, fx.Node) or node.target is not torch.ops.aten.sym_size.int:
        return None
    source = node.args[0]
    sized = isinstance(source, fx.Node) and tensor_value(source) is not None
    return source if sized else None  # type: ignore[return-value]


def is_check(node: fx.Node) -> bool:
    """Whether a call compares a size only to check it, as Dynamo does for each."""
    if _asserts(node):
        return True
    return node.target in _COMPARISONS and bool(node.users) and all(map(is_check, node.users))


def size_check(node: fx.Node) -> tuple[Any, Any, Any] | None:
    """``(operator, count, bound)`` where Dynamo added a check of a size; None for other nodes."""
    condition = node.args[0] if _asserts(node) else None
    if not isinstance(condition, fx.Node) or condition.op != "call_function":
        return None
    compared: Any = (condition.target, *condition.args)
    return compared if condition.target in _COMPARISONS else None


def _asserts(node: fx.Node) -> bool:
    return str(node.target) == "aten._assert_scalar.default"


class SizeOrigins:
    """The selections, among nodes in order, that tensors and numbers of unknown size are made of.

    A node of known size, a sum say, has those of what it was given, and hands none on.
    """

    def __init__(self, nodes: Sequence[fx.Node]) -> None:
        self.roots: list[fx.Node] = []
        self._of: dict[fx.Node, frozenset[fx.Node]] = {}
        for node in nodes:
            given = [
                self._of[n] for n in node.all_input_nodes if n in self._of and _may_carry_size(n)
            ]
            found = frozenset().union(*given)
            if unbacked_sizes.sizes_bound(node.meta) or (not found and is_sized_by_data(node)):
                self.roots.append(node)
                found |= {node}
            if found:
                self._of[node] = found

    def of(self, node: fx.Node) -> frozenset[fx.Node]:
        """The selections a node was made of; none for what has nothing to do with any."""
        return self._of.get(node, frozenset())

    def groups(self) -> list[list[fx.Node]]:
        """The selections, those together that meet in some call, in the order of the program."""
        group: dict[fx.Node, list[fx.Node]] = {root: [root] for root in self.roots}
        for met in self._of.values():
            known = {id(group[root]): group[root] for root in met}
            if len(known) > 1:
                first, *others = sorted(known.values(), key=len, reverse=True)
                for other in others:
                    first += other
                    group.update(dict.fromkeys(other, first))
        order = {root: place for place, root in enumerate(self.roots)}
        found = {id(members): members for members in group.values()}
        return [sorted(members, key=order.__getitem__) for members in found.values()]


def is_sized_by_data(node: fx.Node) -> bool:
    """Whether a node is a tensor, or holds one, of a size that only the data know."""
    parts = tree_flatten(node.meta.get("example_value"))[0]
    return any(isinstance(p, torch.Tensor) and has_unbacked_size(p) for p in parts)


def _may_carry_size(node: fx.Node) -> bool:
    """Whether what uses a node may still depend on a size that only the data know."""
    parts = tree_flatten(node.meta.get("example_value"))[0]
    known = bool(parts) and all(isinstance(part, torch.Tensor) for part in parts)
    return not known or is_sized_by_data(node)
