"""Keep a branch if code could see that a result requires grad in one arm only.

``if p: x = x * self.scale``, for data x that does not require grad: in eager the result requires
grad if the arm was taken; what is selected always does. As a rule nobody sees that: the loss
requires grad whichever arms were taken, because of what follows. A result of the graph for which
that is not so is detached behind the graph (none_gradients.py). The branch stays where that cannot
be done or the graph writes such a value, where the program asks, and where a call may act on it.
"""

from __future__ import annotations

from torch import fx

from fusepass.capture.autograd.arm_formulas import ALWAYS, TooManyOutcomes
from fusepass.capture.autograd.gradient_paths import carries_grad
from fusepass.capture.autograd.leaf_uses import (
    ANYTHING,
    LeafUses,
    follow,
    formula_in,
    grad_sources,
    obstacle_of_predicates,
    seen_once,
)
from fusepass.capture.nodes.select_node import (
    BRANCH,
    HIDES_GRAD,
    branches_of,
    select,
    selects_of,
)
from fusepass.capture.restarts import Why
from fusepass.graph.dataflow.memory import memories
from fusepass.graph.dataflow.reached import reached
from fusepass.graph.dataflow.writes import writers_by_memory
from fusepass.graph.ops.op_names import op_name
from fusepass.report.decision import Reason

ASKING = frozenset("requires_grad_ retain_grad register_hook backward is_inference detach_".split())

ONE_ARM = "a result requires grad in one arm only"
_TEXT = f"{ONE_ARM}, but the selected tensor always does (allow_zero_grad permits it)"


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
        uses = follow(graph, grad_sources(graph))
    except TooManyOutcomes:
        return {node.meta[BRANCH].site: why for node in chosen}
    settled = results_in_doubt(graph, uses)
    ends = (*uses.results, *uses.written)
    shows = [end for end in ends if _is_undecided(end, uses) and end not in settled]
    shows += [
        node
        for node in graph.nodes
        if _may_ask(node) and any(_is_undecided(one, uses) for one in node.all_input_nodes)
    ]
    return {one.meta[BRANCH].site: why for node in shows for one in choices_above(node)}


def results_in_doubt(graph: fx.Graph, uses: LeafUses) -> dict[fx.Node, int]:
    """Results that can be detached behind the graph, with the formula under which they need not.

    ``uses``: of all that requires grad.
    """
    own, branches = seen_once(graph), branches_of(selects_of(graph))
    found = {}
    for result in uses.results:
        formula = formula_in(uses.states[result], ANYTHING)
        if formula <= ALWAYS or result not in own or not choices_above(result):
            continue
        if obstacle_of_predicates(uses.formulas.predicates(formula), branches) is None:
            found[result] = formula
    return found


def _is_undecided(node: fx.Node, uses: LeafUses) -> bool:
    return carries_grad(node) and formula_in(uses.states[node], ANYTHING) != ALWAYS


def _may_ask(node: fx.Node) -> bool:
    """Whether a node may act on what requires grad: no operation, or one about autograd."""
    if node.op not in ("call_function", "call_method", "call_module") or node.target is select:
        return False
    name = op_name(node)
    return name is None or name in ASKING
