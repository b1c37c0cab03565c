"""Follow leaves through a graph with branches: for which outcomes does a value depend on them?

That holds in eager, where autograd knows only of the arms taken. A captured graph has both arms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from fusepass.capture.autograd.arm_formulas import ALWAYS, NEVER, Formulas
from fusepass.capture.autograd.gradient_paths import (
    carries_grad,
    differentiable_sources,
    is_grad_input,
)
from fusepass.capture.nodes.select_node import ARM, Branch, arms_from, selects_of
from fusepass.graph.dataflow.effects import written_nodes
from fusepass.graph.dataflow.memory import memories, memory_of
from fusepass.graph.ops.op_names import tensor_value
from fusepass.torch_private.fx.tensor_kinds import is_plain_fake

ANYTHING = 1  # the bit shared by all that requires grad; those of single leaves are above it

# By formula, the bits of the leaves that a value depends on where the formula holds. A leaf has one
# formula; it has none if the value never depends on it.
State = dict[int, int]


@dataclass
class LeafUses:
    """Under which formulas the values of a graph depend on leaves.

    Attributes:
        bits: of the leaves, by node.
        results: the outputs that carry gradients, each once.
        written: inputs that are written and carry gradients; a backward may begin there, too.
        states: of the nodes, once all of the graph has run.
        formulas: what the numbers in the states mean.
    """

    bits: Mapping[fx.Node, int]
    results: list[fx.Node]
    written: list[fx.Node]
    states: dict[fx.Node, State] = field(default_factory=dict)
    formulas: Formulas = field(default_factory=Formulas)

    def of(self, leaf: fx.Node) -> tuple[int, ...]:
        """The formulas of one leaf: of the results, then of what is written."""
        bit = self.bits[leaf] & ~ANYTHING
        return tuple(formula_in(self.states[end], bit) for end in (*self.results, *self.written))

    def merged(self, how: Callable[[int, int], int], a: State, b: State) -> State:
        """A state made of two others, with a function of formulas."""
        made: State = {}
        every, reached = sum(b.values()), sum(a.values())
        for f, bits in a.items():
            for g, others in b.items():
                _put(made, how(f, g), bits & others)
            _put(made, how(f, NEVER), bits & ~every)
        for g, others in b.items():
            _put(made, how(NEVER, g), others & ~reached)
        return made

    def either(self, a: State, b: State) -> State:
        """The state of what depends on a leaf if one of two values does."""
        if not a or a == b:
            return b
        return self.merged(self.formulas.either, a, b) if b else a


def formula_in(state: State, bit: int) -> int:
    """The formula that a state has for a leaf."""
    return next((formula for formula, bits in state.items() if bits & bit), NEVER)


def _put(state: State, formula: int, bits: int) -> None:
    if bits and formula != NEVER:
        state[formula] = state.get(formula, 0) | bits


def grad_sources(graph: fx.Graph) -> dict[fx.Node, int]:
    """The nodes that require grad by themselves, each with the bit they share."""
    return {
        node: ANYTHING
        for node in graph.nodes
        if carries_grad(node)
        and (is_grad_input(node) or not any(map(carries_grad, node.all_input_nodes)))
    }


def seen_once(graph: fx.Graph) -> set[fx.Node]:
    """Outputs that are ordinary tensors and share memory with no other one and with no input."""
    outputs = graph.output_node().all_input_nodes
    inputs = [node for node in graph.nodes if node.op in ("placeholder", "get_attr")]
    times = Counter(memories([*outputs, *inputs]))
    plain = [(node, tensor_value(node)) for node in outputs]
    return {
        node
        for node, value in plain
        if value is not None and is_plain_fake(value) and times[memory_of(node) or 0] == 1
    }


def obstacle_of_predicates(predicates: list[fx.Node], branches: dict[int, Branch]) -> str | None:
    """Why a formula over these predicates has no value behind the graph; None if it has one."""
    devices = set()
    for predicate in predicates:
        devices.add(predicate.meta["example_value"].device)
        for site, _ in arms_from(predicate.meta.get(ARM), branches):
            if site not in branches or branches[site].treatment != "where":
                return "a branch inside an arm decides about it, and only the arm taken is run"
    return "tensors on several devices decide about it" if len(devices) > 1 else None


def ends(graph: fx.Graph) -> tuple[list[fx.Node], list[fx.Node]]:
    """Where a backward may begin: outputs, and other inputs that are written."""
    outputs = [n for n in graph.output_node().all_input_nodes if carries_grad(n)]
    changed = set(memories(w for node in graph.nodes for w in written_nodes(node)))
    inputs = [n for n in graph.nodes if is_grad_input(n)] if changed else []
    return outputs, [n for n in inputs if memory_of(n) in changed and n not in outputs]


def follow(graph: fx.Graph, bits: Mapping[fx.Node, int]) -> LeafUses:
    """Follow some leaves through a graph.

    Raises:
        TooManyOutcomes: the branches have too many combinations.
    """
    uses = LeafUses(bits, *ends(graph))
    selects = set(selects_of(graph))
    sharing: dict[int, list[fx.Node]] = {}
    for node in graph.nodes:
        uses.states[node] = _state(node, uses, selects)
        for key in memories([node]):
            sharing.setdefault(key, []).append(node)
        for target in written_nodes(node):  # a write changes what its target stands for
            for other in sharing.get(memory_of(target) or 0, ()):
                uses.states[other] = uses.either(uses.states[other], uses.states[node])
    return uses


def _state(node: fx.Node, uses: LeafUses, selects: set[fx.Node]) -> State:
    if node in uses.bits:
        return {ALWAYS: uses.bits[node]}
    source: Any = node.args[0] if node.args else None
    if node.op == "call_function" and isinstance(source, fx.Node) and source in selects:
        if not carries_grad(node):
            return {}
        args: Any = source.args
        predicate, *arms = args
        taken, other = (uses.states[arm[node.args[1]]] for arm in arms)
        return uses.merged(lambda f, g: uses.formulas.where(predicate, f, g), taken, other)
    unknown = node.op.startswith("call_") and "example_value" not in node.meta
    state: State = {}
    for operand in node.all_input_nodes if unknown else differentiable_sources(node):
        state = uses.either(state, uses.states[operand])
    return state
