"""Equal layers as calls of one subgraph: Inductor compiles one of them and uses it again."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from torch import fx

from fusepass import torch_private
from fusepass.graph.repeats import Layer, equal_layers
from fusepass.options import Options
from fusepass.report.decision import Decision, Outcome, Reason, Station

NAME = "equal_layers"
FEWEST = 3  # with fewer, a subgraph of its own costs more than it saves
_MOST_GROUPS = 4  # an encoder's layers, a decoder's, ...


def reuse_layers(gm: fx.GraphModule, options: Options) -> list[Decision]:
    """Replace equal layers of ``gm`` by calls of one submodule each, in place.

    Returns:
        One decision per group of layers.
    """
    decisions: list[Decision] = []
    if not _wanted(gm, options):
        return decisions
    while len(decisions) < _MOST_GROUPS and (layers := equal_layers(gm.graph, FEWEST)):
        _outline(gm, layers, f"{NAME}_{len(decisions)}")
        text = f"{len(layers)} equal layers of {len(layers[0].nodes)} operations compiled once"
        place = torch_private.source_of(layers[0].nodes[0])
        decisions.append(
            Decision(Station.HAND_OFF, NAME, Outcome.APPLIED, Reason.PROVED, text, "", *place)
        )
    if decisions:
        gm.graph.lint()
        gm.recompile()
    return decisions


def _wanted(gm: fx.GraphModule, options: Options) -> bool:
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
        call = graph.call_function(
            torch_private.invoke_subgraph_operator(), (body, name, *layer.operands)
        )
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
