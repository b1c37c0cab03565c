"""What a CPU tensor of a graph is computed from, back to where its numbers come from.

A chain holds every call whose result or write the tensor depends on, at the moment it is read: a
write that comes later is not among them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import fx

from fusepass.graph.dataflow.memory import memories
from fusepass.graph.dataflow.reached import reached
from fusepass.graph.dataflow.writes import writers_by_memory
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.host_tensors.exact_ops import LIKE
from fusepass.torch_private.fx.tensor_kinds import is_plain_fake

_SECOND_READ_FOR_METADATA = frozenset("expand_as view_as reshape_as type_as to".split())


class NotInGraph(Exception):
    """The tensor depends on what this graph was given.

    Attributes:
        node: what was given, or what cannot be followed.
    """

    def __init__(self, text: str, node: fx.Node) -> None:
        super().__init__(text)
        self.node = node


@dataclass(frozen=True)
class CpuChain:
    """The calls a tensor is computed by.

    Attributes:
        wanted: the node whose tensor is read.
        nodes: the calls in program order, ``wanted`` included.
        sizes: nodes that hold no tensors but numbers, which some of the calls read.
        shapes: tensors of which only shape and dtype are read.
        written: memory that one of the calls writes in place.
    """

    wanted: fx.Node
    nodes: tuple[fx.Node, ...]
    sizes: frozenset[fx.Node]
    shapes: frozenset[fx.Node]
    written: frozenset[int]


class GraphPositions:
    """Where the nodes of a graph stand, and who writes which memory.

    Calls inserted later that only write memory of their own, and erased ones that nobody needs,
    leave it right for everything else.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.position = {node: place for place, node in enumerate(graph.nodes)}
        self.writers = writers_by_memory(graph.nodes)
        output = next(node for node in reversed(graph.nodes) if node.op == "output")
        self.handed_out = frozenset(memories(output.all_input_nodes))

    def is_private(self, node: fx.Node) -> bool:
        """Whether a tensor is neither written nor handed out, nor a view of such a one."""
        return all(k not in self.writers and k not in self.handed_out for k in memories([node]))


def chain_of(wanted: fx.Node, reader: fx.Node, places: GraphPositions) -> CpuChain:
    """The chain of a CPU tensor as ``reader`` reads it.

    Raises NotInGraph if it depends on an input, on a tensor of another device, or on a call that
    is not one of torch's.
    """
    position, writers = places.position, places.writers
    moments: dict[fx.Node, int] = {}
    sizes: set[fx.Node] = set()
    shapes: set[fx.Node] = set()
    written: set[int] = set()
    todo = [(wanted, position[reader])]
    while todo:
        node, moment = todo.pop()
        if moments.get(node, -1) >= moment:
            continue
        if _holds_no_tensor(node):
            sizes.add(node)
            continue
        _check_reproducible(node)
        moments[node] = moment
        for key in memories([node]):
            for writer in writers.get(key, ()):
                if position[writer] < moment:
                    written.add(key)
                    todo.append((writer, position[writer] + 1))
        for_shape = operands_read_for_metadata(node)
        shapes.update(for_shape)
        own = position[node]
        todo += [(source, own) for source in node.all_input_nodes if source not in for_shape]
    nodes = tuple(sorted(moments, key=position.__getitem__))
    return CpuChain(wanted, nodes, frozenset(sizes), frozenset(shapes), frozenset(written))


def operands_read_for_metadata(node: fx.Node) -> list[fx.Node]:
    """Operands of which a call reads shape, dtype or device, and no elements."""
    name = op_name(node)
    if name in LIKE and node.args and isinstance(node.args[0], fx.Node):
        return [node.args[0]]
    if name in _SECOND_READ_FOR_METADATA:
        others = [*node.args[1:2], node.kwargs.get("other")]
        return [o for o in others if isinstance(o, fx.Node) and tensor_value(o) is not None]
    return []


def nodes_still_read(calls: Iterable[fx.Node]) -> set[fx.Node]:
    """Those of the calls of one or several chains that something else reads, directly or not."""
    inside = set(calls)
    writers = writers_by_memory(inside)

    def before(node: fx.Node) -> list[fx.Node]:
        written = [writer for key in memories([node]) for writer in writers.get(key, ())]
        return [one for one in (*node.all_input_nodes, *written) if one in inside]

    read = [node for node in inside if any(user not in inside for user in node.users)]
    return {*reached(read, before)}


def _holds_no_tensor(node: fx.Node) -> bool:
    if "example_value" not in node.meta:
        return False
    value = node.meta["example_value"]
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return value is not None and not any(isinstance(part, torch.Tensor) for part in parts)


def _check_reproducible(node: fx.Node) -> None:
    """Raise NotInGraph for what cannot be made anywhere else."""
    if node.op not in ("call_function", "call_method"):
        raise NotInGraph(f"it depends on {node.name}, which the graph is given", node)
    if op_name(node) is None:
        raise NotInGraph(f"it depends on {node.name}, which is no operation of torch's", node)
    value = node.meta.get("example_value")
    for part in value if isinstance(value, (tuple, list)) else (value,):
        if part is None and op_name(node) in ("setitem", "__setitem__"):
            continue
        if not isinstance(part, torch.Tensor) or not is_plain_fake(part):
            raise NotInGraph(f"{node.name} gives what is no ordinary tensor", node)
        if part.device.type != "cpu":
            raise NotInGraph(f"it depends on {node.name}, which is on {part.device}", node)
        if part.requires_grad:
            raise NotInGraph(f"{node.name} requires grad", node)
