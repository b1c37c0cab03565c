"""Find the selections that a node's sizes come from, and nodes that only check such sizes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from fusepass.graph.ops.op_names import tensor_value
from fusepass.torch_private.dynamo.scalars.unbacked_sizes import sizes_bound
from fusepass.torch_private.fx.graphs import has_unbacked_size, tree_flatten


class SizeOrigins:
    """Selections that tensors and numbers of sizes only the data know are made of.

    A node of known size, a sum say, has those of what it was given, and hands none on.

    Args:
        nodes: in the order of their graph.
    """

    def __init__(self, nodes: Sequence[fx.Node]) -> None:
        self.roots: list[fx.Node] = []
        self._of: dict[fx.Node, frozenset[fx.Node]] = {}
        for node in nodes:
            given = [
                self._of[n] for n in node.all_input_nodes if n in self._of and _may_carry_size(n)
            ]
            found = frozenset().union(*given)
            if sizes_bound(node.meta) or (not found and is_sized_by_data(node)):
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


def size_check(node: fx.Node) -> tuple[Any, Any, Any] | None:
    """``(operator, count, bound)`` where Dynamo added a check of a size; None for other nodes."""
    if str(node.target) != "aten._assert_scalar.default":
        return None
    condition = node.args[0]
    if not isinstance(condition, fx.Node) or condition.op != "call_function":
        return None
    if condition.target not in (operator.ge, operator.le, operator.eq):
        return None
    count, bound = condition.args
    return condition.target, count, bound


def counted(node: Any) -> fx.Node | None:
    """What a number is a size of, where it is one."""
    if not isinstance(node, fx.Node) or node.target is not torch.ops.aten.sym_size.int:
        return None
    source = node.args[0]
    sized = isinstance(source, fx.Node) and tensor_value(source) is not None
    return source if sized else None  # type: ignore[return-value]
