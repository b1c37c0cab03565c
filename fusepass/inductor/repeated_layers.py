"""Equal layers of a model as calls of one subgraph: Inductor compiles one and reuses it.

Dynamo unrolls N equal layers, so the graph is a list of calls with a period. Layers need not begin
where modules do: a period may be cut at any of its calls. It is cut in front of a GEMM, where
Inductor begins a new kernel anyway, so no kernel is divided.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusepass.graph.dataflow.effects import is_random, is_state_change, written_nodes
from fusepass.graph.dataflow.memory import memory_of
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.options import Options
from fusepass.report.decision import Decision, Outcome, Reason, Station
from fusepass.torch_private.fx.graphs import invoke_subgraph_operator, source_of
from fusepass.torch_private.fx.tensor_kinds import is_plain_fake

NAME = "equal_layers"
MIN_LAYERS = 3  # with fewer, a subgraph of its own costs more than it saves
_MAX_GROUPS = 4  # an encoder's layers, a decoder's, ...


def reuse_layers(gm: fx.GraphModule, options: Options) -> list[Decision]:
    """Replace equal layers of ``gm`` by calls of one submodule each, in place.

    Returns:
        One decision per group of layers.
    """
    decisions: list[Decision] = []
    if not _is_enabled(gm, options):
        return decisions
    while len(decisions) < _MAX_GROUPS and (layers := equal_layers(gm.graph, MIN_LAYERS)):
        _outline(gm, layers, f"{NAME}_{len(decisions)}")
        text = f"{len(layers)} equal layers of {len(layers[0].nodes)} operations compiled once"
        place = source_of(layers[0].nodes[0])
        decisions.append(
            Decision(Station.HAND_OFF, NAME, Outcome.APPLIED, Reason.PROVED, text, "", *place)
        )
    if decisions:
        gm.graph.lint()
        gm.recompile()
    return decisions


def _is_enabled(gm: fx.GraphModule, options: Options) -> bool:
    if options.codegen != "inductor" or not options.reuse_regions:
        return False
    # Inductor 2.11 and 2.13 cannot call a subgraph from its C++ wrapper.
    return not options.inductor_value("cpp_wrapper")


def _outline(gm: fx.GraphModule, layers: Sequence[Layer], name: str) -> None:
    gm.add_submodule(name, fx.GraphModule({}, _body(layers[0])))
    graph = gm.graph
    first_call = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first_call):
        body = graph.get_attr(name)
    for layer in reversed(
        layers
    ):  # so that a call reads what replaces the results of the one before
        _call(graph, body, name, layer)


def _body(layer: Layer) -> fx.Graph:
    graph = fx.Graph()
    inside: dict[fx.Node, fx.Node] = {}
    for node in layer.operands:
        inside[node] = graph.placeholder(node.name)
        inside[node].meta.update(node.meta)
    for node in layer.nodes:
        inside[node] = graph.node_copy(node, inside.__getitem__)
    graph.output(tuple(inside[node] for node in layer.results))
    return graph


def _call(graph: fx.Graph, body: fx.Node, name: str, layer: Layer) -> None:
    """Replace one layer by a call where it ends: all it reads is computed before."""
    inside = set(layer.nodes)
    with graph.inserting_after(layer.nodes[-1]):
        call = graph.call_function(invoke_subgraph_operator(), (body, name, *layer.operands))
    call.meta["example_value"] = tuple(node.meta["example_value"] for node in layer.results)
    after = call
    for place, node in enumerate(layer.results):
        with graph.inserting_after(after):
            result = graph.call_function(operator.getitem, (call, place))
        result.meta.update(node.meta)
        node.replace_all_uses_with(result, delete_user_cb=lambda user: user not in inside)
        after = result
    for node in reversed(layer.nodes):
        graph.erase_node(node)


MATMULS = frozenset(("addmm", "baddbmm", "bmm", "linear", "matmul", "mm"))
_MAX_PERIODS = 12  # tried, likeliest first
_MAX_MATMULS = 8  # of one kind in a layer: each is a distance from one layer to the next


@dataclass(frozen=True)
class Layer:
    """One of several equal stretches.

    Attributes:
        nodes: its calls, in order.
        operands: what it reads from outside, each once, in the order of first use.
        results: what the rest of the graph reads of it, in order.
    """

    nodes: tuple[fx.Node, ...]
    operands: tuple[fx.Node, ...]
    results: tuple[fx.Node, ...]


class _CallSequence:
    """The calls of a graph in order, each with a number that equal calls share."""

    def __init__(self, graph: fx.Graph) -> None:
        self.nodes = [node for node in graph.nodes if node.op.startswith("call_")]
        numbers: dict[Any, int] = {}
        self.kinds = [
            -1 - place if (kind := _kind(node)) is None else numbers.setdefault(kind, len(numbers))
            for place, node in enumerate(self.nodes)
        ]
        self.product = [op_name(node) in MATMULS for node in self.nodes]

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """``(start, end, period)`` of stretches that repeat, the longest of each period."""
        for period in self._periods():
            start = best = length = 0
            for place, kind in enumerate(self.kinds[: -period or None]):
                length = length + 1 if kind == self.kinds[place + period] else 0
                if length > best:
                    start, best = place - length + 1, length
            if best >= period:
                yield start, start + best + period, period

    def _periods(self) -> list[int]:
        places: dict[int, list[int]] = {}
        for place, kind in enumerate(self.kinds):
            if self.product[place]:
                places.setdefault(kind, []).append(place)
        votes = Counter(
            there - here
            for found in places.values()
            for step in range(1, _MAX_MATMULS + 1)
            for here, there in zip(found, found[step:], strict=False)
        )
        return [period for period, _ in votes.most_common(_MAX_PERIODS)]


def equal_layers(graph: fx.Graph, fewest: int) -> tuple[Layer, ...]:
    """The equal layers that cover most of a graph, or none.

    They are called one after another with nothing in between, compute the same from operands of the
    same metadata, write to nothing, draw no random numbers, and hand out fresh dense tensors.
    """
    calls = _CallSequence(graph)
    best: tuple[Layer, ...] = ()
    covered = 0
    for start, end, period in calls.runs():
        if end - start <= covered:
            continue
        found = _best_cut(calls, start, end, period, fewest)
        if len(found) * period > covered:
            best, covered = found, len(found) * period
    return best


def _best_cut(
    calls: _CallSequence, start: int, end: int, period: int, fewest: int
) -> tuple[Layer, ...]:
    """Layers cut in front of the product that the fewest values cross."""
    best: tuple[Layer, ...] = ()
    for cut in range(start, min(start + period, end)):
        if not calls.product[cut]:
            continue
        starts = range(cut, end - period + 1, period)
        layers = [_layer(calls.nodes[place : place + period]) for place in starts]
        found = _longest_equal(layers)
        if len(found) < fewest or not all(map(_self_contained, found)):
            continue
        if not best or len(found[0].results) < len(best[0].results):
            best = found
    return best


def _layer(nodes: Sequence[fx.Node]) -> Layer:
    inside = set(nodes)
    operands: dict[fx.Node, None] = {}
    for node in nodes:
        operands.update(dict.fromkeys(used for used in _uses(node) if used not in inside))
    results = [node for node in nodes if any(user not in inside for user in node.users)]
    return Layer(tuple(nodes), tuple(operands), tuple(results))


def _longest_equal(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """The longest stretch of layers that are wired alike."""
    best = (0, 0)
    begin = 0
    wirings = [_wiring(layer) for layer in layers]
    for place, wiring in enumerate(wirings):
        if wiring != wirings[begin]:
            begin = place
        best = max(best, (place + 1 - begin, -begin))
    return tuple(layers[-best[1] : best[0] - best[1]])


def _wiring(layer: Layer) -> tuple[Any, ...]:
    """Which call of the layer, or which operand, each argument is; and which calls are read."""
    numbers = {node: number for number, node in enumerate((*layer.nodes, *layer.operands))}
    arguments = tuple(numbers[used] for node in layer.nodes for used in _uses(node))
    return arguments, tuple(numbers[node] for node in layer.results)


def _self_contained(layer: Layer) -> bool:
    """Whether what the layer hands out is dense memory of its own, with no gradient to come.

    With gradients, Inductor 2.11 to 2.15 computes wrong ones for a chain of calls of one subgraph
    that hands out two values (AOTAutograd alone computes the right ones).
    """
    memories = [memory_of(node) for node in (*layer.results, *layer.operands)]
    own, given = memories[: len(layer.results)], set(memories[len(layer.results) :])
    if len(set(own)) < len(own) or None in own or given.intersection(own):
        return False
    values = [tensor_value(node) for node in layer.results]
    return all(
        value is not None
        and value.is_contiguous()
        and value.storage_offset() == 0
        and not value.requires_grad
        for value in values
    )


def _uses(node: fx.Node) -> list[fx.Node]:
    """The nodes among a call's arguments, one for each occurrence, in order."""
    found: list[fx.Node] = []

    def visit(used: fx.Node) -> fx.Node:
        found.append(used)
        return used

    fx.map_arg((node.args, node.kwargs), visit)
    return found


def _kind(node: fx.Node) -> Any:
    """Equal for calls that compute the same from alike operands; None where it cannot be said."""
    written_or_drawn = is_state_change(node) or is_random(node) or bool(written_nodes(node))
    name = op_name(node)
    if written_or_drawn or name is None or "conv" in name:  # Inductor may lay convolutions out anew
        return None
    result = _metadata(node.meta.get("example_value"))
    arguments = _template((node.args, node.kwargs))
    return (
        None if result is None or arguments is None else (node.op, node.target, arguments, result)
    )


def _template(value: Any) -> Any:
    """An argument list in which nodes are replaced by their metadata."""
    if isinstance(value, fx.Node):
        return _metadata(value.meta.get("example_value"))
    if isinstance(value, slice):
        value = (value.start, value.stop, value.step)
    if isinstance(value, dict):
        value = tuple(item for pair in value.items() for item in pair)
    if isinstance(value, (tuple, list)):
        parts = tuple(_template(part) for part in value)
        return None if None in parts else (type(value).__name__, parts)
    if isinstance(value, (torch.dtype, torch.device, str, int, float, complex, type(None))):
        return f"{type(value).__name__} {value!r}"
    return None


def _metadata(value: Any) -> Any:
    """What generated code may depend on in a value; None for what is no plain value."""
    if isinstance(value, torch.Tensor):
        if not is_plain_fake(value) or value.layout != torch.strided:
            return None
        place = (value.device, value.dtype, value.requires_grad, value.is_conj(), value.is_neg())
        sizes = (*value.shape, *value.stride(), value.storage_offset())
        return (*place, *(size if isinstance(size, int) else str(size) for size in sizes))
    if isinstance(value, (tuple, list)):
        parts = tuple(_metadata(part) for part in value)
        return None if None in parts else parts
    if isinstance(value, (int, torch.SymInt)):
        return f"size {value}"
    return None
