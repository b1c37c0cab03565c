"""Remove raise and print nodes from a graph, and return what they need as outputs.

    sink(bad₁, …); …; sink(bad₂, …)   ->   c₁ = where(bad₁, 1, 0); …; c₂ = where(c₁ ≠ 0, c₁, …)

The first sink in program order wins. Partial operations behind a sink get safe operands, contents
of memory that is written behind it are handed out as they were at the site, and so is what messages
read and cannot be computed again (raise_operands.py). Numbers that lines show are stacked on the
device, so that one copy brings all of them to the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fusepass.capture.effects.event_legality import input_owners, left_out, lines_first
from fusepass.capture.effects.raise_operands import RaisePlan, is_input, plans
from fusepass.capture.effects.runtime import NEAR, Emission, Events, Exit, Message, OutputSlot
from fusepass.capture.effects.safe_operands import IDENTITY, Guard, guard_for
from fusepass.capture.nodes.events import EVENT, is_event, is_line, is_sink, nodes_of, operands_of
from fusepass.capture.nodes.select_node import ARM
from fusepass.graph.dataflow.memory import memories
from fusepass.graph.dataflow.node_recorder import materialized_copy
from fusepass.graph.dataflow.write_history import WriteHistory
from fusepass.graph.safety.failures import may_fail
from fusepass.torch_private.fx.graphs import fake_mode_of
from fusepass.torch_private.fx.tensor_kinds import is_transformed


def lower_effects(gm: fx.GraphModule, asked: list[int], read: list[int]) -> Events | None:
    """Rewrite ``gm`` in place; what it returns raises and writes what sinks and lines stood for.

    Args:
        gm: a complete graph.
        asked: positions of outputs that code behind the graph tests.
        read: positions of others that it reads in any case.

    Returns:
        None when the graph has no sink or line, and nothing is tested behind it.
    """
    found = plans(gm.graph)
    return _EffectsLowering(gm, found).run([*asked, *read]) if found or asked else None


class _EffectsLowering:
    """The rewrite of one graph.

    Attributes:
        plans: one per sink and line, in program order.
        results: the outputs, to which further ones are added.
        history: of the graph, as it was given.
        packs: numbers to be handed out together, by device and dtype, and their places.
        early: lines in front of everything that may fail, of what is given.
    """

    def __init__(self, gm: fx.GraphModule, found: list[RaisePlan]) -> None:
        self.gm, self.graph, self.plans = gm, gm.graph, found
        self.fake_mode = fake_mode_of(gm)
        self.nodes = list(gm.graph.nodes)
        self.inputs = [node for node in self.nodes if node.op == "placeholder"]
        self.output = self.nodes[-1]
        self.results: list[Any] = list(self.output.args[0])
        self.history = WriteHistory(gm.graph)
        self.owners = input_owners(self.graph)
        self.saved: dict[tuple[fx.Node, int], fx.Node] = {}
        self.packs: dict[tuple[torch.device, torch.dtype], dict[fx.Node, OutputSlot]] = {}
        self.early = lines_first(gm.graph)

    def run(self, read: list[int]) -> Events:
        count = len(self.results)
        host = {position: self._packed(self.results[position]) for position in read}
        leaving = self._leaving()
        codes = self._codes()
        events = tuple(map(self._event, self.plans))  # messages read the operands as they were
        self._guard_partial_calls(codes)
        last = {code.meta["example_value"].device: code for code in codes}
        places = tuple(self._handed_out(code) for code in last.values())
        self._place_packs()
        self.output.args = (tuple(self.results),)
        for node in leaving:
            if not node.users:  # a line may have had a number of an exception's handed out
                self.graph.erase_node(node)
        self.graph.lint()
        self.gm.recompile()
        return Events(count, places, events, host)

    def _leaving(self) -> dict[fx.Node, None]:
        """Sinks, lines, and what is only there for a message; each behind those that use it."""
        leaving: dict[fx.Node, None] = {}
        for node in reversed(self.nodes):
            if is_event(node) or (left_out(node) and all(user in leaving for user in node.users)):
                leaving[node] = None
        return leaving

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
        sinks = [plan.event for plan in self.plans if is_sink(plan.event)]
        for number, sink in enumerate(sinks, 1):
            bad: Any = sink.args[0]
            device = bad.meta["example_value"].device
            with self.graph.inserting_before(sink):
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
            elif (
                code is not None
                and not is_line(node)
                and not left_out(node)
                and may_fail(node) is not None
            ):
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
                made[operand] = self._safe(due, fill, operand, node)
                if value.requires_grad:
                    made[operand].meta["example_value"].requires_grad_()
        positional = len(node.args) > guard.position
        given = node.args[guard.position] if positional else node.kwargs[guard.name]
        safe = fx.map_arg(given, lambda n: made.get(n, n))
        if positional:
            node.update_arg(guard.position, safe)
        else:
            node.update_kwarg(guard.name, safe)

    def _safe(self, due: fx.Node, fill: Any, operand: fx.Node, like: fx.Node) -> fx.Node:
        value = operand.meta["example_value"]
        if not is_transformed(value):
            return self._call(torch.where, (due, fill, operand), like)
        # Nothing can be computed of its fake value here; that of an index it stays.
        node = self.graph.call_function(torch.where, (due, fill, operand))
        node.meta = {
            key: operand.meta[key] for key in ("example_value", ARM) if key in operand.meta
        }
        return node

    def _event(self, plan: RaisePlan) -> Exit | Emission:
        message, direct = self._message(plan)
        if is_line(plan.event):
            tests: Any = plan.event.args[0]
            when = tuple((self._as_at(test, plan.event, pack=True), on) for test, on in tests)
            return Emission(plan.event.meta[EVENT], message, when, direct, plan.event in self.early)
        undo: list[tuple[OutputSlot, OutputSlot]] = []
        for key, roots in self.owners.items():
            if self.history.next_write([key], self.history.moments[plan.event]) is not None:
                undo += [(self._given(root), self._as_at(root, plan.event)) for root in roots]
        return Exit(plan.event.meta[EVENT], message, tuple(undo))

    def _message(self, plan: RaisePlan) -> tuple[Message, dict[int, OutputSlot]]:
        """What computes the operands of an event, and where those are that are at hand."""
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        sources: dict[fx.Node, OutputSlot] = {}
        operands = operands_of(plan.event)
        needed = [*nodes_of(plan.event), *(n for node in plan.again for n in node.all_input_nodes)]
        for node in dict.fromkeys(needed):
            if node not in plan.again:
                copies[node] = graph.placeholder(node.name)
                kept, pack = node in plan.kept, is_line(plan.event)
                sources[node] = self._as_at(node, plan.event, pack) if kept else self._given(node)
        for node in plan.again:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].meta = {}
        graph.output(fx.map_arg(operands, copies.__getitem__))
        direct = {i: sources[node] for i, node in enumerate(operands) if node in sources}
        return Message(graph, tuple(sources.values())), direct

    def _given(self, node: fx.Node) -> OutputSlot:
        """Where an input of the graph, or something it holds, is."""
        if node.op == "placeholder":
            return OutputSlot("input", self.inputs.index(node))
        value: Any = self.gm
        for name in str(node.target).split("."):
            value = getattr(value, name)
        return OutputSlot("held", value=value)

    def _as_at(self, node: fx.Node, event: fx.Node, pack: bool = False) -> OutputSlot:
        """Where a value is as it was at an event: handed out, copied if it is written later.

        With ``pack`` it may be handed out among others.
        """
        hand_out = self._packed if pack else self._handed_out
        written = self.history.next_write(memories([node]), self.history.moments[event])
        if written is None:
            return self._given(node) if is_input(node) else hand_out(node)
        if (node, written) not in self.saved:
            with self.graph.inserting_before(event):
                self.saved[node, written] = materialized_copy(
                    self._detached(node), lambda _, target, *given: self._call(target, given)
                )
        return hand_out(self.saved[node, written])

    def _detached(self, node: fx.Node) -> fx.Node:
        value = node.meta.get("example_value")
        if not isinstance(value, torch.Tensor) or not value.requires_grad:
            return node
        return self._call(torch.detach, (node,))

    def _handed_out(self, node: fx.Node) -> OutputSlot:
        """Make a node an output of the graph, if it is none yet."""
        if node not in self.results:
            with self.graph.inserting_before(self.output):
                node = self._detached(node)
            self.results.append(node)
        return OutputSlot("output", self.results.index(node))

    def _packed(self, node: fx.Node) -> OutputSlot:
        """Hand out a number together with others of its dtype on its device."""
        value = node.meta.get("example_value")
        if not isinstance(value, torch.Tensor) or value.dim() or value.device.type in NEAR:
            return self._handed_out(node)
        pack = self.packs.setdefault((value.device, value.dtype), {})
        return pack.setdefault(node, OutputSlot("output"))

    def _place_packs(self) -> None:
        """Hand out the packs, and say where their numbers are."""
        for pack in self.packs.values():
            if len(pack) == 1:
                for node, slot in pack.items():
                    slot.position = self._handed_out(node).position
                continue
            with self.graph.inserting_before(self.output):
                parts = [self._detached(node) for node in pack]
                self.results.append(self._call(torch.stack, (parts,)))
            for index, slot in enumerate(pack.values()):
                slot.position, slot.index = len(self.results) - 1, index
