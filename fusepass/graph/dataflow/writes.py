"""Which memory a complete graph writes, in the graphs it calls, too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import fx

from fusepass.graph.dataflow.effects import written_nodes
from fusepass.graph.dataflow.memory import memories
from fusepass.torch_private.fx.graphs import higher_order_name


def memory_written(gm: fx.GraphModule) -> frozenset[int]:
    """Identities of what the calls of a graph write."""
    calls = (node for node in gm.graph.nodes if node.op.startswith("call_"))
    written = (operand for node in calls for operand in _written(node, gm))
    return frozenset(memories(written))


def writers_by_memory(nodes: Iterable[fx.Node]) -> dict[int, list[fx.Node]]:
    """The calls that write each memory, in order."""
    found: dict[int, list[fx.Node]] = {}
    for node in nodes:
        for key in memories(written_nodes(node)):
            found.setdefault(key, []).append(node)
    return found


def _written(node: fx.Node, gm: fx.GraphModule) -> list[fx.Node]:
    if higher_order_name(node.target) is None:
        return written_nodes(node)
    bodies = list(_bodies(node, gm))
    if bodies and not any(map(_writes, bodies)):
        return []
    return list(node.all_input_nodes)


def _bodies(node: fx.Node, gm: fx.GraphModule) -> Iterator[fx.GraphModule]:
    """The graphs that a call of a higher-order operator is given."""
    for operand in node.all_input_nodes:
        if operand.op == "get_attr":
            held = _attribute(gm, str(operand.target))
            if isinstance(held, fx.GraphModule):
                yield held


def _attribute(gm: fx.GraphModule, path: str) -> object:
    held: object = gm
    for name in path.split("."):
        held = getattr(held, name, None)
    return held


def _writes(body: fx.GraphModule) -> bool:
    """Whether a graph may write what it is given, or what it finds outside."""
    given = [node for node in body.graph.nodes if node.op in ("placeholder", "get_attr")]
    keys = frozenset(memories(given))
    for node in body.graph.nodes:
        for operand in _written(node, body) if node.op.startswith("call_") else ():
            held = memories([operand])
            if not held or not keys.isdisjoint(held):
                return True
    return False
