"""When each memory is written in a graph, and so whether a node still holds what it computed."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from torch import fx

from fusepass.graph.dataflow.effects import written_nodes
from fusepass.graph.dataflow.memory import memories


class WriteHistory:
    """Positions of the nodes of a graph and of the writes to each memory, up to one node.

    A *moment* is the position of a node: what that node reads is as the nodes before it left it.
    The graph is not changed while the history is in use.
    """

    def __init__(self, graph: fx.Graph, until: fx.Node | None = None) -> None:
        self.moments: dict[fx.Node, int] = {}
        self._writes: dict[int, list[int]] = {}
        for moment, node in enumerate(graph.nodes):
            self.moments[node] = moment
            for key in memories(written_nodes(node)):
                self._writes.setdefault(key, []).append(moment)
            if node is until:
                break

    def ignore_writes(self, node: fx.Node) -> None:
        """Take the writes of a node for none: it is known to leave everything as it was."""
        for key in memories(written_nodes(node)):
            self._writes[key].remove(self.moments[node])

    def is_written(self, node: fx.Node, start: int, end: int) -> bool:
        """Whether memory of a node is written at a moment from ``start`` to before ``end``."""
        for key in memories([node]):
            writes = self._writes.get(key, [])
            if bisect_left(writes, start) < bisect_left(writes, end):
                return True
        return False

    def next_write(self, keys: Iterable[int], moment: int) -> int | None:
        """When any of some memories is first written after a moment; None if none is."""
        writes = [self._writes.get(key, []) for key in keys]
        later = (moments[bisect_right(moments, moment) :][:1] for moments in writes)
        return min((first for found in later for first in found), default=None)

    def holds_value(self, node: fx.Node, moment: int) -> bool:
        """Whether at a moment a node still holds what it computed."""
        return not self.is_written(node, self.moments[node], moment)
