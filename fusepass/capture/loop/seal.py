"""Make a graph of its own of a round that was traced, and a node that runs it.

The round stands in the graph of the frame, at its end. Its nodes are copied into a new graph, whose
numbers are replaced by tensor work there and then, and taken out of the graph of the frame. What is
left is one node without effects, so no check of the complete graph needs to know of loops.

A tensor from before the loop that a round writes in place (``out[:, t] = token``) is handed on from
round to round as a copy; what the last round left is then copied into the tensor itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from fusepass.capture.branch.snapshot import recorded_since
from fusepass.capture.frame_state import Frame
from fusepass.capture.loop.carried import LOADED
from fusepass.capture.loop.legality import check_keyed, check_node
from fusepass.capture.loop.same_tensor import facts_of
from fusepass.capture.loop.trace_round import Carried, Start, Traced
from fusepass.capture.nodes.loop_node import LOOP, run_loop
from fusepass.capture.nodes.predicate import copy_predicates
from fusepass.capture.nodes.select_node import ARM, BRANCH, without_select
from fusepass.capture.refusal import Refusal
from fusepass.capture.restarts import is_kept
from fusepass.capture.scalars.arm_scalars import NUMBER, lower_numbers
from fusepass.capture.scalars.deferred_items import settle_items
from fusepass.graph.dataflow.effects import written_nodes
from fusepass.graph.dataflow.memory import memories, memory_of
from fusepass.graph.ops.op_names import tensor_value
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.calls import subgraph_of
from fusepass.torch_private.dynamo.helpers_in_code import like_strided, put_graph
from fusepass.torch_private.dynamo.stack import proxy_of, wrap_tensor
from fusepass.torch_private.fx.graphs import fake_mode_of


@dataclass
class Sealed:
    """A loop that stands in the graph.

    Attributes:
        results: the tracked tensor of each carried value, in order.
        written: tensors from before the loop that it writes, each with the result to copy into it.
        stays: carried values that are one tensor all the time, which each round writes.
    """

    results: list[Any]
    written: list[tuple[fx.Node, Any]] = field(default_factory=list)
    stays: list[Carried] = field(default_factory=list)


def seal(
    translator: Any, frame: Frame, start: Start, traced: Traced, flagged: dict[str, Any]
) -> Sealed:
    """Put the loop into the graph as one node.

    Raises:
        Refusal: a round does what no node can stand for.
    """
    body = _Body(translator, frame, start, traced)
    kept = [n for n in body.operands if n not in body.written]
    facts = facts_of(traced, start, kept, flagged, body.stays)
    gm = body.build()
    body.settle(gm)
    body.erase()
    carried = [_initial(translator, one) for one in traced.carried]
    carried += [proxy_of(translator, node) for node in body.written]
    held = put_graph(translator, "fusepass_loop", gm)
    operands = tuple(proxy_of(translator, node) for node in body.operands)
    proxy = translator.output.create_proxy(
        "call_function", run_loop, (held, tuple(carried), operands), {}
    )
    fakes = [like_strided(translator, _fake(p.node)) for p in carried]
    proxy.node.meta |= {"example_value": tuple(fakes), LOOP: facts}
    results = [wrap_tensor(translator, proxy[i], fake) for i, fake in enumerate(fakes)]
    count = len(traced.carried)
    written = [*zip(body.written, results[count:], strict=True)]
    for one, result in zip(traced.carried, results, strict=False):
        if one in body.stays:
            written.append((one.initial.as_proxy().node, result))
    return Sealed(results[:count], written, body.stays)


def _initial(translator: Any, one: Carried) -> fx.Proxy:
    """What a carried value begins as; zeros where a round always binds it before it is read."""
    if one.initial is not None:
        return one.initial.as_proxy()  # type: ignore[no-any-return]
    fake = _fake(one.final.as_proxy().node)
    if not all(type(size) is int for size in (*fake.shape, *fake.stride())):
        raise Refusal(Reason.UNBOUND, f"{one.name!r} is not bound before the loop")
    dense = fake.is_contiguous()
    if not dense:
        raise Refusal(Reason.STRIDE_MISMATCH, f"{one.name!r} is not bound before the loop")
    given = {"dtype": fake.dtype, "device": fake.device}
    node = translator.output.create_proxy("call_function", torch.zeros, (tuple(fake.shape),), given)
    node.node.meta["example_value"] = like_strided(translator, fake)
    return node  # type: ignore[no-any-return]


def _fake(node: fx.Node) -> torch.Tensor:
    value = tensor_value(node)
    assert value is not None
    return value


def _read_before(
    nodes: list[fx.Node], inside: set[fx.Node], results: Iterable[fx.Node] = ()
) -> list[fx.Node]:
    """What some nodes, or results, take from before them."""
    read = [operand for node in nodes for operand in node.all_input_nodes]
    return [n for n in dict.fromkeys([*read, *results]) if n not in inside]


def _is_float(node: fx.Node) -> bool:
    """Whether a node is a float that varies, as torch gives it to a graph."""
    varies = isinstance(node.meta.get("example_value"), torch.SymFloat)
    return varies and node.op == "call_method" and node.target == "item"


class _Body:
    """The graph of a round, while it is made."""

    def __init__(self, translator: Any, frame: Frame, start: Start, traced: Traced) -> None:
        self.translator, self.frame, self.traced = translator, frame, traced
        self.site = start.site
        self.place = dataclasses.replace(start.place, rule="item")
        self.given = [one.inside.as_proxy().node for one in traced.carried if one.inside]
        given = set(self.given)
        traced_nodes = recorded_since(translator.output.graph, traced.last)
        graphs = [n for n in traced_nodes if subgraph_of(translator, n) is not None]
        self.graphs = {str(n.target): subgraph_of(translator, n) for n in graphs}
        outside = {n for n in traced_nodes if n.op == "get_attr"} - set(graphs) | given
        self.nodes = [n for n in traced_nodes if n not in outside]
        self.inside = set(self.nodes)
        self.floats = [n for n in _read_before(self.nodes, self.inside) if _is_float(n)]
        self.nodes[:0] = self.floats
        finals = [one.final.as_proxy().node for one in traced.carried]
        read = _read_before(self.nodes, self.inside.union(self.floats), finals)
        self.operands = [n for n in read if n not in given]
        for node in self.operands:
            if isinstance(node.meta.get("example_value"), (torch.SymFloat, torch.SymBool)):
                text = "the loop uses a float that varies, and that is computed before it"
                raise Refusal(Reason.PYTHON_VALUE, text)
        self.finals = finals
        self.stays: list[Carried] = []
        self.written = self._written()
        self.env: dict[fx.Node, fx.Node] = {}

    def _written(self) -> list[fx.Node]:
        """The tensors from before the loop that are written; refuse what cannot be handed on."""
        for node in self.nodes:
            check_node(self.frame.options, node)
        check_keyed(self.frame.options, self.nodes)
        keys = {key for node in self.nodes for key in memories(written_nodes(node))}
        operands = [n for n in self.operands if not keys.isdisjoint(memories([n]))]
        self._check_carried(keys)
        for node in operands:
            value = tensor_value(node)
            same = [n for n in operands if memory_of(n) == memory_of(node)]
            if value is None or len(same) > 1 or value.is_conj() or value.is_neg():
                text = "the loop writes a tensor that it also uses by another name"
                raise Refusal(Reason.SIDE_EFFECT, text)
            if value.requires_grad:
                text = "the loop writes a tensor that requires grad"
                raise Refusal(Reason.NO_GRADIENT, text)
            if memory_of(node) in memories(self._initial()):
                text = "the loop writes a tensor that it also uses by another name"
                raise Refusal(Reason.SIDE_EFFECT, text)
        return operands

    def _initial(self) -> list[fx.Node]:
        held = [one.initial for one in self.traced.carried if one.initial is not None]
        return [one.as_proxy().node for one in held]

    def _check_carried(self, keys: set[int]) -> None:
        """Note which carried tensors stay one object that each round writes (``x += step``)."""
        others: Sequence[int] = memories([*self.operands, *self._initial()])
        for one in self.traced.carried:
            if one.inside is None or keys.isdisjoint(memories([one.inside.as_proxy().node])):
                continue
            inside, final, first = (v.as_proxy().node for v in (one.inside, one.final, one.initial))
            if memory_of(final) != memory_of(inside):
                text = f"the loop writes {one.name!r}, and binds it to another tensor"
                raise Refusal(Reason.SIDE_EFFECT, text)
            if others.count(memory_of(first)) > 1:
                text = f"the loop writes {one.name!r}, which it also uses by another name"
                raise Refusal(Reason.SIDE_EFFECT, text)
            self.stays.append(one)

    def build(self) -> fx.GraphModule:
        """The graph: it takes what is carried, then the other operands."""
        graph = fx.Graph()
        self.graph = graph
        inside = [one.inside for one in self.traced.carried]
        for position, held in enumerate(inside):
            one = self.traced.carried[position]
            made = graph.placeholder(f"carried_{position}")
            if held is not None:
                node = held.as_proxy().node
                made.meta = {"example_value": _fake(node)}
                self.env[node] = made
            else:
                final = _fake(one.final.as_proxy().node)
                made.meta = {"example_value": like_strided(self.translator, final)}
        for node in self.written:
            self._operand(node)
        rest = [n for n in self.operands if n not in self.written]
        for node in rest:
            self._operand(node)
        self._copy_written()
        for node in self.nodes:
            self.env[node] = made = graph.node_copy(node, self.env.__getitem__)
            self._untag(made)
        without_select(graph).update(without_select(self.nodes[0].graph) if self.nodes else {})
        finals = [self.env[node] for node in self.finals]
        finals += [self.env[node] for node in self.written]
        graph.output(tuple(finals))
        self.operands = rest
        return fx.GraphModule(self.graphs, graph)

    def _operand(self, node: fx.Node) -> None:
        made = self.graph.placeholder(f"operand_{len(self.env)}")
        made.meta = {k: v for k, v in node.meta.items() if k == "example_value"}
        self.env[node] = made

    def _copy_written(self) -> None:
        """A round writes copies: what it was given may be what the loop began with."""
        keys = {key for node in self.nodes for key in memories(written_nodes(node))}
        for node, made in list(self.env.items()):
            if tensor_value(node) is not None and not keys.isdisjoint(memories([node])):
                copy = self.graph.call_method("clone", (made,))
                copy.meta = dict(made.meta)
                self.env[node] = copy

    def _untag(self, node: fx.Node) -> None:
        """Take out of its tags that a node stands in the round."""
        for key, value in node.meta.items():
            if isinstance(value, fx.Node):
                node.meta[key] = self.env.get(value, value)
        around = (self.site, True)
        if node.meta.get(ARM) == around:
            del node.meta[ARM]
        for key in (BRANCH, NUMBER):
            branch = node.meta.get(key)
            if branch is not None and branch.outer == around:
                node.meta[key] = dataclasses.replace(branch, outer=None)

    def settle(self, gm: fx.GraphModule) -> None:
        """Replace the numbers of the round by tensor work.

        The frame starts again if one is needed.
        """
        frame, fake_mode = self.frame, fake_mode_of(gm) or self.translator.fake_mode
        inside = {self.env[n]: place for n, place in frame.items.items() if n in self.env}
        floats = [n for n in self.nodes if _is_float(n) and n not in frame.items]
        if floats and is_kept(frame, self.place):
            text = "the loop uses a float that varies, where Python needs it"
            raise Refusal(Reason.PYTHON_VALUE, text)
        inside |= {self.env[n]: self.place for n in floats}
        shim = dataclasses.replace(frame, items=inside, round_trips={})
        settle_items(gm, shim)
        ours = {place.position for node, place in frame.items.items() if LOADED in node.meta}
        ours.add(self.place.position)
        made = {where: d for where, d in shim.round_trips.items() if where not in ours}
        frame.round_trips.update(made)
        copy_predicates(gm.graph, fake_mode)
        lost = lower_numbers(gm.graph, fake_mode, frame.new_branch)
        for code, text in lost.values():
            raise Refusal(code, text)
        for node in reversed(list(gm.graph.nodes)):
            stays = node.users or node.op in ("placeholder", "output") or written_nodes(node)
            if not stays:
                gm.graph.erase_node(node)
        gm.graph.lint()
        gm.recompile()

    def erase(self) -> None:
        """Take the round out of the graph of the frame."""
        frame, inside = self.frame, self.inside
        taken_out = inside.union(self.given)
        for node in sorted(taken_out, reverse=True):
            node.graph.erase_node(node)
        frame.items = {n: place for n, place in frame.items.items() if n not in inside}
