"""Keep a branch if code could see that a result requires grad in one arm only.

``if p: x = x * self.scale``, for data x that does not require grad: in eager the result requires
grad if the arm was taken; what is selected always does. As a rule nobody sees that: the loss
requires grad whichever arms were taken, because of what follows. The branch stays where that is not
so for a result of the graph or for what it writes, where the program asks, and where a call
may act on it.
"""

from __future__ import annotations

from torch import fx

from fusepass.capture.autograd.arm_formulas import ALWAYS, TooManyOutcomes
from fusepass.capture.autograd.gradient_paths import carries_grad, is_grad_input
from fusepass.capture.autograd.leaf_uses import LeafUses, follow, formula_in
from fusepass.capture.nodes.select_node import BRANCH, HIDES_GRAD, select
from fusepass.capture.restarts import Why
from fusepass.graph.dataflow.memory import memories
from fusepass.graph.dataflow.reached import reached
from fusepass.graph.dataflow.writes import writers_by_memory
from fusepass.graph.ops.op_names import op_name
from fusepass.report.decision import Reason

ASKING = frozenset("requires_grad_ retain_grad register_hook backward is_inference detach_".split())

_TEXT = (
    "a result requires grad in one arm only: selected, it would always (allow_zero_grad permits it)"
)


def grad_choices(graph: fx.Graph) -> list[fx.Node]:
    """The selects with a result that requires grad in one arm only, where autograd is on."""
    return [
        node
        for node in graph.nodes
        if any(node.meta["example_value"][i].requires_grad for i in node.meta.get(HIDES_GRAD, ()))
    ]


def choices_above(node: fx.Node) -> list[fx.Node]:
    """Those of which a value may be made."""
    chosen = grad_choices(node.graph)
    if not chosen:
        return []
    writers = writers_by_memory(node.graph.nodes)

    def before(one: fx.Node) -> list[fx.Node]:
        written = [writer for key in memories([one]) for writer in writers.get(key, ())]
        return one.all_input_nodes + written

    above = {*reached([node], before)}
    return [one for one in chosen if one in above]


def visible_choices(graph: fx.Graph) -> dict[int, Why]:
    """Sites of a complete graph that decide whether something requires grad, and it shows."""
    chosen = grad_choices(graph)
    if not chosen:
        return {}
    why = (Reason.NONE_GRAD, _TEXT)
    try:
        uses = follow(graph, dict.fromkeys(_sources(graph), 1))
    except TooManyOutcomes:
        return {node.meta[BRANCH].site: why for node in chosen}
    shows = [end for end in (*uses.results, *uses.written) if _is_undecided(end, uses)]
    shows += [
        node
        for node in graph.nodes
        if _may_ask(node) and any(_is_undecided(one, uses) for one in node.all_input_nodes)
    ]
    return {one.meta[BRANCH].site: why for node in shows for one in choices_above(node)}


def _sources(graph: fx.Graph) -> list[fx.Node]:
    """The nodes that require grad by themselves."""
    return [
        node
        for node in graph.nodes
        if carries_grad(node)
        and (is_grad_input(node) or not any(map(carries_grad, node.all_input_nodes)))
    ]


def _is_undecided(node: fx.Node, uses: LeafUses) -> bool:
    return carries_grad(node) and formula_in(uses.states[node], 1) != ALWAYS


def _may_ask(node: fx.Node) -> bool:
    """Whether a node may act on what requires grad: no operation, or one about autograd."""
    if node.op not in ("call_function", "call_method", "call_module") or node.target is select:
        return False
    name = op_name(node)
    return name is None or name in ASKING
