"""A graph as terms: what each value is computed from, in few operations, however it was written.

Calls that hand on the very value they got (``contiguous`` of something contiguous, a transposition
undone by the next) are passed over, as long as what they got is not written meanwhile. A call in
place on memory made in this graph is the value it leaves behind, for later readers of that
memory, unless the plain operation has another dtype.

Terms are made on demand and once per node, so that equal terms are the same object.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from fusepass.graph.dataflow.effects import is_random, reshapes_its_operand, written_nodes
from fusepass.graph.dataflow.memory import are_alike, memory_of
from fusepass.graph.dataflow.reached import reached
from fusepass.graph.ops.normal_call import NormalCall, normal_call
from fusepass.graph.ops.op_names import tensor_value
from fusepass.graph.ops.schemas import SymbolicSize
from fusepass.graph.terms.term import INPUT, RESHAPES, Term, normal_form

# --- Calls in place that leave what they compute in another dtype than the plain operation has ----
# ``t.eq_(y)`` keeps the dtype of ``t`` where ``t == y`` is a truth value, ``t.mul_(y)`` of an int32
# wraps where the product with an int64 does not, a sum of bfloat16 and float32 is rounded.


def out_of_place_dtype(node: fx.Node, call: NormalCall) -> torch.dtype | None:
    """The dtype of the plain operation of a call in place, if it is not what the call leaves."""
    left = tensor_value(node)
    plain = _plain_dtype(call)
    return plain if left is not None and plain is not None and plain != left.dtype else None


def _plain_dtype(call: NormalCall) -> torch.dtype | None:
    """Found on stand-ins of one element: which dtypes and numbers of dimensions there are decides.

    Where these cannot be computed with, by the rules of promotion alone.
    """
    given = {name: _one_element_sample(value) for name, value in call.args}
    try:
        made = getattr(torch.ops.aten, call.op)(**given)
    except (AttributeError, RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
        return _promoted(list(given.values()))
    return made.dtype if isinstance(made, torch.Tensor) else None


def _one_element_sample(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_one_element_sample, value))
    tensor = tensor_value(value)
    if tensor is not None:
        return torch.empty((1,) * tensor.dim(), dtype=tensor.dtype, device="meta")
    if isinstance(value, fx.Node):
        value = value.meta.get("example_value", value.meta.get("val"))
    value = value.size if isinstance(value, SymbolicSize) else value
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return 1 if isinstance(value, torch.SymInt) else 1.0
    return value


def _promoted(values: list[Any]) -> torch.dtype | None:
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if not tensors:
        return None
    # Sums of their own, so that numbers of dimensions count as they do among the operands.
    total = tensors[0]
    for other in tensors[1:]:
        shape = (1,) * max(total.dim(), other.dim())
        total = torch.empty(shape, dtype=torch.result_type(total, other), device="meta")
    return total.dtype


# --- Calls that hand on the very value they got: same numbers, dtype, device, shape and strides ---

_PASSTHROUGH_OPS = RESHAPES | frozenset(
    """contiguous clone expand expand_as view_as broadcast_to cast dropout dropout1d dropout2d
    dropout3d alpha_dropout feature_dropout""".split()
)


def passthrough_source(term: Term) -> Term | None:
    """The operand a term is equal to in value and layout, or None."""
    if term.op == "permute":
        inner = dict(term.args)["self"]
        if isinstance(inner, Term) and inner.op == "permute":
            source = dict(inner.args)["self"]
            if isinstance(source, Term) and _compose_permutations(term, inner) == tuple(
                range(len(dict(term.args)["dims"]))
            ):
                own = (inner.node,) if inner.node else ()
                return replace(source, passed=(*inner.passed, *own, *source.passed))
        return None
    if term.op not in _PASSTHROUGH_OPS or is_random(term.owner):
        return None
    source = term.args[0][1] if term.args else None
    if not isinstance(source, Term) or source.node is None:
        return None
    seen: Term = source
    if term.op in RESHAPES:  # a reshape of a reshape that ends where it began
        while seen.op in RESHAPES and not are_alike(term.node, seen.node):
            inner = seen.args[0][1] if seen.args else None
            if not isinstance(inner, Term) or inner.node is None:
                return None
            passed = (*seen.passed, seen.node, *inner.passed)
            seen = replace(inner, passed=tuple(n for n in passed if n is not None))
    return seen if are_alike(term.node, seen.node) else None


def _compose_permutations(outer: Term, inner: Term) -> tuple[int, ...]:
    first, second = dict(inner.args)["dims"], dict(outer.args)["dims"]
    return tuple(first[d] for d in second)


@dataclass(eq=False)
class TermGraph:
    """The terms of one graph.

    Attributes:
        graph: a graph of torch or ATen calls with fake tensors in its nodes' meta.
        position: node to its place in the graph.
    """

    graph: fx.Graph
    position: dict[fx.Node, int] = field(init=False)
    _writes: dict[int, list[fx.Node]] = field(init=False)
    _terms: dict[fx.Node, Term] = field(init=False, default_factory=dict)
    _origin: dict[int, fx.Node] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.position = {node: place for place, node in enumerate(self.graph.nodes)}
        self._writes = {}
        for node in self.graph.nodes:
            for written in written_nodes(node):
                key = memory_of(written)
                if key is not None:
                    self._writes.setdefault(key, []).append(node)
        if self._writes:
            for node in self.graph.nodes:
                key = memory_of(node)
                if key is not None:
                    self._origin.setdefault(key, node)

    def writes(self, node: fx.Node) -> list[fx.Node]:
        """Calls that write the memory of a node's tensor, in order."""
        return self._writes.get(memory_of(node) or -1, []) if self._writes else []

    def is_fresh(self, node: fx.Node) -> bool:
        """Whether a node's memory was made in this graph, so nobody outside sees it written."""
        origin = self._origin.get(memory_of(node) or -1)
        return origin is not None and origin.op in ("call_function", "call_method")

    def read(self, node: fx.Node, reader: fx.Node) -> Term:
        """What ``reader`` sees when it reads ``node``: later calls may have written it."""
        term = self._term_of(node)
        if self._writes:
            start, end = self.position[node], self.position[reader]
            between = [w for w in self.writes(node) if start < self.position[w] < end]
            if between:
                last = between[-1]
                if not all(self._is_whole(w, node) for w in between):
                    text = f"{last.name} writes to its memory in between"
                    return Term(INPUT, (), node, node, blocked=text)
                term = self._term_of(last)
        return self._skip_passthrough(term, reader)

    def term(self, node: fx.Node) -> Term:
        """The value a node computes, itself not passed over."""
        return self._term_of(node)

    def aliases_of_whole(self, node: fx.Node) -> list[fx.Node]:
        """Nodes that name the whole memory a node names (its in-place results), node first."""
        found = [node]
        for name in found:
            for user in name.users:
                call = normal_call(user)
                if call is not None and call.inplace and call.args and call.args[0][1] is name:
                    found.append(user)
        return found

    def _is_whole(self, write: fx.Node, node: fx.Node) -> bool:
        """Whether a write is an in-place operation on all of ``node``, on memory of this graph.

        Not one that leaves the value and changes the shape: what is known of ``node`` holds for
        either the time before it or the time after.
        """
        call = normal_call(write)
        if call is None or not call.inplace or not self.is_fresh(node):
            return False
        if reshapes_its_operand(write):
            return False
        target = call.args[0][1] if call.args else None
        return isinstance(target, fx.Node) and in_place_origin(target) is in_place_origin(node)

    def _term_of(self, node: fx.Node) -> Term:
        if node not in self._terms:  # not one through the other: there may be thousands
            for one in self._nodes_without_term(node):
                self._terms[one] = self._build(one)
        return self._terms[node]

    def _nodes_without_term(self, node: fx.Node) -> list[fx.Node]:
        """The nodes without a term that one is made of, itself included, in order."""

        def before(one: fx.Node) -> list[fx.Node]:
            given = [n for read in one.all_input_nodes for n in (read, *self.writes(read))]
            return [n for n in given if n not in self._terms and n < node]

        return sorted(reached([node], before))

    def _build(self, node: fx.Node) -> Term:
        leaf = Term(INPUT, (), node, node)
        holds = tensor_value(node) is not None or _holds_tensors(node)
        if not holds or node.op not in ("call_function", "call_method"):
            return leaf
        call = normal_call(node)
        if call is None:
            return leaf
        if call.inplace and not self._is_whole(node, node):
            reshapes = reshapes_its_operand(node)
            does = "reshapes its operand" if reshapes else "writes to memory that others can see"
            leaf.blocked = f"{node.name} {does}"
            return leaf
        plain = out_of_place_dtype(node, call) if call.inplace else None
        if plain is not None:
            leaf.blocked = f"{node.name} keeps the dtype of what it writes, {call.op} makes {plain}"
            return leaf
        return self._expand(node, call)

    def _expand(self, node: fx.Node, call: NormalCall) -> Term:
        def seen(value: Any) -> Any:
            if isinstance(value, fx.Node) and _holds_tensors(value):
                return self._term_of(value)
            if isinstance(value, fx.Node):
                return self.read(value, node) if tensor_value(value) is not None else value
            return tuple(map(seen, value)) if isinstance(value, tuple) else value

        args = tuple((name, seen(value)) for name, value in call.args)
        return normal_form(node, call.op, args)

    def _skip_passthrough(self, term: Term, reader: fx.Node) -> Term:
        """Skip calls that hand on what they were given."""
        passed: list[fx.Node] = []
        while term.node is not None and (source := passthrough_source(term)) is not None:
            if self._is_written(source, (term.node, *source.passed), reader):
                break  # a copy holds what was there before
            passed.append(term.node)
            passed += source.passed
            term = source
        if not passed:
            return term
        return replace(term, passed=tuple(passed))

    def _is_written(self, source: Term, since: Iterable[fx.Node], reader: fx.Node) -> bool:
        """Whether a call writes what others read before, from then until ``reader`` runs."""
        if source.node is None or not self._writes:
            return False
        start, end = min(self.position[node] for node in since), self.position[reader]
        return any(start < self.position[write] < end for write in self.writes(source.node))


def _holds_tensors(node: fx.Node) -> bool:
    """Whether a call returns several tensors."""
    value = node.meta.get("example_value", node.meta.get("val"))
    return isinstance(value, (tuple, list)) and any(isinstance(v, torch.Tensor) for v in value)


def in_place_origin(node: fx.Node) -> fx.Node:
    """The node whose value in-place calls have been changing to become ``node``."""
    while (call := normal_call(node)) is not None and call.inplace and call.args:
        first = call.args[0][1]
        if not isinstance(first, fx.Node):
            break
        node = first
    return node
