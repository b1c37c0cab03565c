"""Sinks leave the graph: one number says which exception is due, and the code around raises it.

    sink(bad₁, …); …; sink(bad₂, …)   ->   c₁ = where(bad₁, 1, 0); …; c₂ = where(c₁ ≠ 0, c₁, …)

The first sink in program order wins. Partial operations behind a sink get safe operands, contents
of memory that is written behind it are handed out as they were at the site, and so is what the
message reads and cannot be computed again (sink_message.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fusepass import torch_private
from fusepass.capture.exits import Exit, Exits, Place
from fusepass.capture.safe_operands import IDENTITY, Guard, guard_for
from fusepass.capture.select import ARM
from fusepass.capture.sink import SINK, is_sink
from fusepass.capture.sink_legality import input_owners, left_out, may_fail
from fusepass.capture.sink_message import Plan, is_input, plans
from fusepass.graph.effects import written_nodes
from fusepass.graph.memory import memories


def take_sinks_out(gm: fx.GraphModule) -> Exits | None:
    """Rewrite ``gm`` in place; what it returns raises what the sinks stood for.

    Returns:
        None when the graph has no sink.
    """
    found = plans(gm.graph)
    return _Lowering(gm, found).run() if found else None


class _Lowering:
    """The rewrite of one graph.

    Attributes:
        plans: one per sink, in program order.
        writes: for each memory, the positions in the graph at which it is written.
        results: the outputs, to which further ones are added.
    """

    def __init__(self, gm: fx.GraphModule, found: list[Plan]) -> None:
        self.gm, self.graph, self.plans = gm, gm.graph, found
        self.fake_mode = torch_private.fake_mode_of(gm)
        self.nodes = list(gm.graph.nodes)
        self.order = {node: position for position, node in enumerate(self.nodes)}
        self.inputs = [node for node in self.nodes if node.op == "placeholder"]
        self.output = self.nodes[-1]
        self.results: list[Any] = list(self.output.args[0])
        self.writes: dict[int, list[int]] = {}
        for position, node in enumerate(self.nodes):
            for key in memories(written_nodes(node)):
                self.writes.setdefault(key, []).append(position)
        self.owners = input_owners(self.graph)
        self.saved: dict[tuple[fx.Node, int], fx.Node] = {}

    def run(self) -> Exits:
        count = len(self.results)
        leaving = self._leaving()
        codes = self._codes()
        exits = tuple(map(self._exit, self.plans))  # messages read the operands as they were
        self._guard_partial_calls(codes)
        last = {code.meta["example_value"].device: code for code in codes}
        places = tuple(self._handed_out(code).position for code in last.values())
        self.output.args = (tuple(self.results),)
        for node in reversed(leaving):
            self.graph.erase_node(node)
        self.graph.lint()
        self.gm.recompile()
        return Exits(count, places, exits)

    def _leaving(self) -> list[fx.Node]:
        """Sinks, and what is only there for a message and not needed by anything else."""
        leaving: dict[fx.Node, None] = {}
        for node in reversed(self.nodes):
            if is_sink(node) or (left_out(node) and all(user in leaving for user in node.users)):
                leaving[node] = None
        return list(leaving)[::-1]

    def _call(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        like: fx.Node | None = None,
        **kwargs: Any,
    ) -> fx.Node:
        """Record a call with its fake value, in the arm that ``like`` stands in."""
        node = self.graph.call_function(target, args, kwargs)
        values: Any = fx.map_arg(args, lambda n: n.meta["example_value"])
        with self.fake_mode, torch.no_grad():
            node.meta["example_value"] = target(*values, **kwargs)
        for key in ("stack_trace", ARM):
            if like is not None and key in like.meta:
                node.meta[key] = like.meta[key]
        return node

    def _codes(self) -> list[fx.Node]:
        """At each sink, on the device of its test: the number of the first one due so far."""
        codes: list[fx.Node] = []
        last: dict[torch.device, fx.Node] = {}
        for number, plan in enumerate(self.plans, 1):
            bad: Any = plan.sink.args[0]
            device = bad.meta["example_value"].device
            with self.graph.inserting_before(plan.sink):
                code = self._call(torch.where, (bad, number, 0))
                if device in last:
                    due = self._call(torch.ne, (last[device], 0))
                    code = self._call(torch.where, (due, last[device], code))
            last[device] = code
            codes.append(code)
        return codes

    def _guard_partial_calls(self, codes: list[fx.Node]) -> None:
        code: fx.Node | None = None
        due: dict[fx.Node, fx.Node] = {}
        following = iter(codes)
        for node in self.nodes:
            if is_sink(node):
                code = next(following)
            elif code is not None and not left_out(node) and may_fail(node) is not None:
                guard = guard_for(node)
                if guard is None:
                    raise AssertionError(f"{node} follows a raise and cannot be made safe")
                if code not in due:
                    with self.graph.inserting_after(code):
                        due[code] = self._call(torch.ne, (code, 0))
                self._guard(node, guard, due[code])

    def _guard(self, node: fx.Node, guard: Guard, due: fx.Node) -> None:
        made: dict[fx.Node, fx.Node] = {}
        with self.graph.inserting_before(node):
            for operand in guard.operands(node):
                value = operand.meta["example_value"]
                fill: Any = guard.fill
                if fill == IDENTITY:
                    like = {"dtype": value.dtype, "device": value.device}
                    fill = self._call(torch.eye, (value.shape[-1],), node, **like)
                made[operand] = self._call(torch.where, (due, fill, operand), node)
                if value.requires_grad:
                    made[operand].meta["example_value"].requires_grad_()

        def swapped(argument: Any) -> Any:
            return fx.map_arg(argument, lambda n: made.get(n, n))

        if len(node.args) > guard.position:
            at = guard.position
            node.args = (*node.args[:at], swapped(node.args[at]), *node.args[at + 1 :])
        else:
            node.kwargs = {**node.kwargs, guard.name: swapped(node.kwargs[guard.name])}

    def _exit(self, plan: Plan) -> Exit:
        undo: list[tuple[Place, Place]] = []
        for key, roots in self.owners.items():
            if self._next_write([key], plan.sink) is not None:
                undo += [(self._given(root), self._as_at(root, plan.sink)) for root in roots]
        message, sources = self._message(plan)
        return Exit(plan.sink.meta[SINK], message, sources, tuple(undo))

    def _message(self, plan: Plan) -> tuple[fx.Graph, tuple[Place, ...]]:
        """The graph that computes the operands of a sink, and where its inputs are."""
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        sources: list[Place] = []
        inside = set(plan.again)
        operands = [n for n in plan.sink.args[1:] if isinstance(n, fx.Node)]
        needed = [*operands, *(n for node in plan.again for n in node.all_input_nodes)]
        for node in dict.fromkeys(needed):
            if node not in inside:
                copies[node] = graph.placeholder(node.name)
                kept = node in plan.kept
                sources.append(self._as_at(node, plan.sink) if kept else self._given(node))
        for node in plan.again:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].meta = {}
        graph.output(tuple(copies[node] for node in operands))
        return graph, tuple(sources)

    def _given(self, node: fx.Node) -> Place:
        """Where an input of the graph, or something it holds, is."""
        if node.op == "placeholder":
            return Place("input", self.inputs.index(node))
        value: Any = self.gm
        for name in str(node.target).split("."):
            value = getattr(value, name)
        return Place("held", value=value)

    def _as_at(self, node: fx.Node, sink: fx.Node) -> Place:
        """Where a value is as it was at a sink: it is handed out, copied if it is written later."""
        written = self._next_write(memories([node]), sink)
        if written is None:
            return self._given(node) if is_input(node) else self._handed_out(node)
        if (node, written) not in self.saved:
            with self.graph.inserting_before(sink):
                self.saved[node, written] = self._call(torch.clone, (self._detached(node),))
        return self._handed_out(self.saved[node, written])

    def _next_write(self, keys: list[int], sink: fx.Node) -> int | None:
        """Position of the first write after a sink to any of some memories."""
        position = self.order[sink]
        following: list[int] = []
        for key in keys:
            later = self.writes.get(key, [])
            following += later[bisect_right(later, position) :][:1]
        return min(following, default=None)

    def _detached(self, node: fx.Node) -> fx.Node:
        value = node.meta.get("example_value")
        if not isinstance(value, torch.Tensor) or not value.requires_grad:
            return node
        return self._call(torch.detach, (node,))

    def _handed_out(self, node: fx.Node) -> Place:
        """Make a node a further output of the graph."""
        with self.graph.inserting_before(self.output):
            node = self._detached(node)
        if node not in self.results:
            self.results.append(node)
        return Place("output", self.results.index(node))
