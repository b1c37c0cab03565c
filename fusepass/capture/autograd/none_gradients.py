"""Settle which leaves have a gradient, and which results require grad, where branches decide that.

In eager a leaf that only the arm not taken uses has no gradient; a selection sends it a zero. For
each such leaf and each result this finds the *formula* over the predicates under which the result
depends on the leaf, and hands out what the formulas come to beside the results. The code around the
graph (none_runtime.py) then turns the zero into None.

That cannot be done for every leaf. Where it cannot, there is an obstacle, and the branch is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fusepass.capture.autograd.arm_formulas import ALWAYS, NEVER, Formulas, TooManyOutcomes
from fusepass.capture.autograd.grad_in_one_arm import results_in_doubt
from fusepass.capture.autograd.gradient_paths import is_grad_input
from fusepass.capture.autograd.leaf_uses import (
    ANYTHING,
    LeafUses,
    follow,
    grad_sources,
    obstacle_of_predicates,
    seen_once,
)
from fusepass.capture.autograd.none_runtime import Flag, LeafGroup, NoneGradients
from fusepass.capture.nodes.select_node import branches_of, selects_of
from fusepass.graph.dataflow.effects import written_nodes
from fusepass.graph.dataflow.memory import memories, memory_of
from fusepass.graph.ops.op_names import tensor_value
from fusepass.torch_private.dynamo.guards import GuardOnTensors, guard_on_tensors
from fusepass.torch_private.fx.graphs import fake_mode_of, real_input, source_of_input
from fusepass.torch_private.fx.tensor_kinds import is_plain_fake

_MOST_TESTS = 256  # that formulas of one graph are made of: they are computed in every call
_TOO_MANY = "it depends on too many branches"
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def obstacles(graph: fx.Graph, leaves: list[fx.Node]) -> dict[fx.Node, str]:
    """Leaves for which the gradient cannot be made None, each with the reason."""
    if not leaves:
        return {}
    try:
        uses = follow(graph, _bits(leaves))
    except TooManyOutcomes:
        return dict.fromkeys(leaves, _TOO_MANY)
    decided = {leaf: found for leaf in leaves if _is_decided(found := uses.of(leaf))}
    return _obstacles_of(graph, uses, decided)


def _obstacles_of(
    graph: fx.Graph, uses: LeafUses, decided: dict[fx.Node, tuple[int, ...]]
) -> dict[fx.Node, str]:
    if uses.formulas.size([f for found in decided.values() for f in found]) > _MOST_TESTS:
        return dict.fromkeys(decided, _TOO_MANY)
    written = set(memories(w for node in graph.nodes for w in written_nodes(node)))
    outside = memories(graph.output_node().all_input_nodes)
    branches = branches_of(selects_of(graph))
    unwatched = _cannot_be_watched(uses, graph)
    found = {}
    for leaf, formulas in decided.items():
        why = _obstacle_of(leaf, written, outside)
        if why is None:
            predicates = [p for f in formulas for p in uses.formulas.predicates(f)]
            why = obstacle_of_predicates(predicates, branches)
        if why is None and len(set(formulas)) > 1:
            why = unwatched
        if why is not None:
            found[leaf] = why
    return found


def _bits(leaves: list[fx.Node]) -> dict[fx.Node, int]:
    return {leaf: ANYTHING << number + 1 for number, leaf in enumerate(leaves)}


def _is_decided(formulas: tuple[int, ...]) -> bool:
    """Whether branches, or what a loss is made of, decide if a leaf has a gradient."""
    return len(set(formulas)) > 1 or any(formula > ALWAYS for formula in formulas)


def _obstacle_of(leaf: fx.Node, written: set[int], outside: list[int]) -> str | None:
    real = real_input(leaf)
    if leaf.op != "placeholder" or not isinstance(real, torch.Tensor):
        return "it is no input of the compiled code"
    if type(real) not in _PLAIN:
        return f"it is a {type(real).__name__}"
    if not real.is_leaf:
        return "it is a result of operations before, and their backward would run"
    if not is_plain_fake(tensor_value(leaf)):  # type: ignore[arg-type]
        return "it is no ordinary tensor"
    if memory_of(leaf) in written:
        return "it is written"
    if memory_of(leaf) in outside:
        return "it is returned, or a view of it is"
    return None


def _cannot_be_watched(uses: LeafUses, graph: fx.Graph) -> str | None:
    """Why it cannot be seen in which of the results a backward begins; None if it can."""
    if uses.written:
        return "what is written depends on other leaves than what is returned"
    if not seen_once(graph).issuperset(uses.results):
        return "the results depend on different leaves, and some share memory"
    return None


def hand_out(
    output_graph: Any, gm: fx.GraphModule, doubtful: list[fx.Node]
) -> NoneGradients | None:
    """Hand out, beside the results of a graph, what tells whether leaves have gradients.

    And whether results require grad.

    Args:
        output_graph: Dynamo's, for a guard.
        gm: the graph, changed in place.
        doubtful: leaves about which branches may decide; there is no obstacle.

    Returns:
        What is around the compiled graph; None where branches decide nothing of this.
    """
    inputs = gm.graph.find_nodes(op="placeholder")
    leaves = [node for node in inputs if is_grad_input(node)]
    bits = grad_sources(gm.graph)
    uses = follow(gm.graph, bits | {leaf: bit | ANYTHING for leaf, bit in _bits(leaves).items()})
    decided = {leaf: found for leaf in leaves if _is_decided(found := uses.of(leaf))}
    graded = results_in_doubt(gm.graph, uses)
    if not graded and not any(leaf in decided for leaf in doubtful):
        return None
    others = {leaf: found for leaf, found in decided.items() if leaf not in doubtful}
    for leaf in _obstacles_of(gm.graph, uses, others):
        del decided[leaf]  # it gets a zero, as from AOTAutograd
    groups: dict[tuple[int, ...], list[fx.Node]] = {}
    watches = any(len(set(found)) > 1 for found in decided.values())
    for leaf, found in decided.items():
        groups.setdefault(found if watches else found[:1], []).append(leaf)
    output = gm.graph.output_node()
    results: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    wanted = [f for key in groups for f in key] + [*graded.values()]
    flags, packs = _recorded(gm, uses.formulas, wanted)
    made = [
        LeafGroup(tuple(inputs.index(leaf) for leaf in held), tuple(flags[f] for f in formulas))
        for formulas, held in groups.items()
    ]
    output.args = ((*results, *packs),)
    gm.graph.lint()
    gm.recompile()
    may_change = [leaf for leaf in decided if type(real_input(leaf)) is not torch.nn.Parameter]
    _guard_on_leaves(output_graph, may_change)
    watched = tuple(results.index(result) for result in uses.results) if watches else ()
    positions = frozenset(inputs.index(leaf) for leaf in may_change)
    detached = tuple((results.index(result), flags[f]) for result, f in graded.items())
    return NoneGradients(len(results), tuple(made), watched, positions, detached)


def _recorded(
    gm: fx.GraphModule, formulas: Formulas, wanted: list[int]
) -> tuple[dict[int, Flag], list[fx.Node]]:
    """Where each formula is, and the nodes to hand out: one for each device."""
    fake_mode = fake_mode_of(gm)

    def call(target: Callable[..., Any], *args: Any) -> fx.Node:
        node = gm.graph.call_function(target, args)
        with fake_mode, torch.no_grad():
            node.meta["example_value"] = target(
                *fx.map_arg(args, lambda n: n.meta["example_value"])
            )
        return node

    flags: dict[int, Flag] = {NEVER: False, ALWAYS: True}
    known: dict[int, fx.Node] = {}
    packs: dict[torch.device, list[fx.Node]] = {}
    with gm.graph.inserting_before(gm.graph.output_node()):
        for formula in dict.fromkeys(f for f in wanted if f > ALWAYS):
            node = formulas.record(formula, call, known)
            pack = packs.setdefault(node.meta["example_value"].device, [])
            flags[formula] = (list(packs.values()).index(pack), len(pack))
            pack.append(node)
        made = [pack[0] if len(pack) == 1 else call(torch.stack, pack) for pack in packs.values()]
    return flags, made


def _guard_on_leaves(output_graph: Any, leaves: list[fx.Node]) -> None:
    """Compile again where one of some leaves is a result of operations in a later call."""
    sources = [source_of_input(leaf) for leaf in leaves]
    known = [source for source in sources if source is not None]
    if known:
        text = "inputs that require grad are leaves, as when it was compiled"
        guard_on_tensors(output_graph, "fusepass_leaves", GuardOnTensors(known, _all_leaves, text))


def _all_leaves(positions: list[int], tensors: list[torch.Tensor]) -> Callable[..., bool]:
    return lambda *given: all(tensor.is_leaf for tensor in given)
