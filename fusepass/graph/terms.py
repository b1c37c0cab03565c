"""A graph as terms: what each value is computed from, in few operations, however it was written.

A linear layer is a matrix product with the transposed weight, plus the bias; ``addmm`` is the same
sum; ``silu(x)`` is ``x * sigmoid(x)``; ``x ** 2`` is ``x * x``; every transposition is ``permute``.
Calls that hand on the very value they got (``contiguous`` of something contiguous, a transposition
undone by the next) are passed over. A call in place on memory made in this graph is the value it
leaves behind, for whoever reads that memory afterwards.

Terms are made on demand and once per node, so that equal terms are the same object.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from fusepass import torch_private
from fusepass.graph.calls import Call, call_of
from fusepass.graph.canonical import op_name, tensor_value
from fusepass.graph.effects import is_random, written_nodes
from fusepass.graph.memory import memory_of

INPUT = "input"
COMMUTATIVE = frozenset(
    """add mul maximum minimum eq ne logical_and logical_or logical_xor bitwise_and bitwise_or
    bitwise_xor""".split()
)
RESHAPES = frozenset("view reshape flatten unflatten _unsafe_view squeeze unsqueeze".split())
CASTS = frozenset(
    "to _to_copy type convert_element_type float half bfloat16 double type_as".split()
)
_HANDS_ON = RESHAPES | frozenset(
    """contiguous clone expand expand_as view_as broadcast_to cast dropout dropout1d dropout2d
    dropout3d alpha_dropout feature_dropout""".split()
)
_PRODUCTS = frozenset("mm bmm matmul".split())


@dataclass(eq=False, slots=True)
class Term:
    """One value.

    Attributes:
        op: canonical operation, or :data:`INPUT` for a value taken as it is.
        args: arguments as ``(name, value)``; values are terms, nodes that are no tensors, numbers
            or tuples of these.
        owner: the call that computes the value.
        node: the node that holds the value; None for a value inside a composite call.
        passed: calls between this value and the one who asked for it that only hand it on.
        blocked: for a value that cannot be looked into, why.
    """

    op: str
    args: tuple[tuple[str, Any], ...]
    owner: fx.Node
    node: fx.Node | None
    passed: tuple[fx.Node, ...] = ()
    blocked: str = ""

    @property
    def key(self) -> tuple[fx.Node, fx.Node | None, str]:
        """Equal for equal values."""
        return self.owner, self.node, self.op


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
        term = self._held(node)
        if self._writes:
            start, end = self.position[node], self.position[reader]
            between = [w for w in self.writes(node) if start < self.position[w] < end]
            if between:
                last = between[-1]
                if not all(self._is_whole(w, node) for w in between):
                    text = f"{last.name} writes to its memory in between"
                    return Term(INPUT, (), node, node, blocked=text)
                term = self._held(last)
        return self._passed_over(term, reader)

    def term(self, node: fx.Node) -> Term:
        """The value a node computes, itself not passed over."""
        return self._held(node)

    def same_value(self, node: fx.Node) -> list[fx.Node]:
        """Nodes that name the whole memory a node names (its in-place results), node first."""
        found = [node]
        for user in node.users:
            call = call_of(user)
            if call is not None and call.inplace and call.args and call.args[0][1] is node:
                found += self.same_value(user)
        return found

    def _is_whole(self, write: fx.Node, node: fx.Node) -> bool:
        """Whether a write is an in-place operation on all of ``node``, on memory of this graph."""
        call = call_of(write)
        if call is None or not call.inplace or not self.is_fresh(node):
            return False
        target = call.args[0][1] if call.args else None
        return isinstance(target, fx.Node) and _whole(target) is _whole(node)

    def _held(self, node: fx.Node) -> Term:
        held = self._terms.get(node)
        if held is None:
            held = self._terms[node] = self._made(node)
        return held

    def _made(self, node: fx.Node) -> Term:
        leaf = Term(INPUT, (), node, node)
        holds = tensor_value(node) is not None or _holds_tensors(node)
        if not holds or node.op not in ("call_function", "call_method"):
            return leaf
        call = call_of(node)
        if call is None:
            return leaf
        if call.inplace and not self._is_whole(node, node):
            leaf.blocked = f"{node.name} writes to memory that others can see"
            return leaf
        return self._expanded(node, call)

    def _expanded(self, node: fx.Node, call: Call) -> Term:
        def seen(value: Any) -> Any:
            if isinstance(value, fx.Node) and _holds_tensors(value):
                return self._held(value)
            if isinstance(value, fx.Node):
                return self.read(value, node) if tensor_value(value) is not None else value
            return tuple(map(seen, value)) if isinstance(value, tuple) else value

        args = tuple((name, seen(value)) for name, value in call.args)
        return normal_form(node, call.op, args)

    def _passed_over(self, term: Term, reader: fx.Node) -> Term:
        """Skip calls that hand on what they were given."""
        passed: list[fx.Node] = []
        while term.node is not None and (source := _handed_on(term)) is not None:
            passed.append(term.node)
            passed += source.passed
            term = source
        if not passed:
            return term
        return Term(term.op, term.args, term.owner, term.node, tuple(passed), term.blocked)


def _holds_tensors(node: fx.Node) -> bool:
    """Whether a call returns several tensors."""
    value = node.meta.get("example_value", node.meta.get("val"))
    return isinstance(value, (tuple, list)) and any(isinstance(v, torch.Tensor) for v in value)


def _whole(node: fx.Node) -> fx.Node:
    """The node whose value in-place calls have been changing to become ``node``."""
    while (call := call_of(node)) is not None and call.inplace and call.args:
        first = call.args[0][1]
        if not isinstance(first, fx.Node):
            break
        node = first
    return node


def _handed_on(term: Term) -> Term | None:
    """The operand a term is equal to in value and layout, or None."""
    if term.op == "permute":
        inner = dict(term.args)["self"]
        if isinstance(inner, Term) and inner.op == "permute":
            source = dict(inner.args)["self"]
            if isinstance(source, Term) and _composed(term, inner) == tuple(
                range(len(dict(term.args)["dims"]))
            ):
                return Term(
                    source.op,
                    source.args,
                    source.owner,
                    source.node,
                    (*inner.passed, *((inner.node,) if inner.node else ()), *source.passed),
                    source.blocked,
                )
        return None
    if term.op not in _HANDS_ON or is_random(term.owner):
        return None
    source = term.args[0][1] if term.args else None
    if not isinstance(source, Term) or source.node is None:
        return None
    seen: Term = source
    if term.op in RESHAPES:  # a reshape of a reshape that ends where it began
        while seen.op in RESHAPES and not _same_layout(term.node, seen.node):
            inner = seen.args[0][1] if seen.args else None
            if not isinstance(inner, Term) or inner.node is None:
                return None
            passed = (*seen.passed, seen.node, *inner.passed)
            seen = Term(
                inner.op,
                inner.args,
                inner.owner,
                inner.node,
                tuple(n for n in passed if n is not None),
                inner.blocked,
            )
    return seen if _same_layout(term.node, seen.node) else None


def _composed(outer: Term, inner: Term) -> tuple[int, ...]:
    first, second = dict(inner.args)["dims"], dict(outer.args)["dims"]
    return tuple(first[d] for d in second)


def _same_layout(a: fx.Node | None, b: fx.Node | None) -> bool:
    x, y = tensor_value(a), tensor_value(b)
    if x is None or y is None or x.dtype != y.dtype or x.device != y.device or x.dim() != y.dim():
        return False
    sizes = zip((*x.shape, *x.stride()), (*y.shape, *y.stride()), strict=True)
    return all(torch_private.known_equal(p, q) for p, q in sizes)


def normal_form(node: fx.Node, op: str, args: tuple[tuple[str, Any], ...]) -> Term:
    """A call written in the few operations that terms are made of."""
    given = dict(args)
    x = given.get("self")

    def inner(name: str, *values: tuple[str, Any]) -> Term:
        return Term(name, values, node, None)

    def outer(name: str, *values: tuple[str, Any]) -> Term:
        return Term(name, values, node, node)

    if op == "linear":
        turned = inner("permute", ("self", given["weight"]), ("dims", (1, 0)))
        weight = tensor_value(_node_of(given["weight"]))
        if weight is None or weight.dim() != 2:
            return outer(op, *args)
        if given.get("bias") is None:
            return outer("matmul", ("self", x), ("other", turned))
        product = inner("matmul", ("self", x), ("other", turned))
        return outer("add", ("self", product), ("other", given["bias"]))
    if op in ("addmm", "baddbmm"):
        names = ("mat1", "mat2") if op == "addmm" else ("batch1", "batch2")
        if not given.keys() <= {"self", *names}:
            return outer(op, *args)  # beta or alpha other than 1
        product = inner("matmul", ("self", given[names[0]]), ("other", given[names[1]]))
        return outer("add", ("self", product), ("other", x))
    if op in _PRODUCTS:
        other = given.get("mat2", given.get("other"))
        return outer("matmul", ("self", x), ("other", other))
    dims = _permutation(node, op, given)
    if dims is not None:
        return outer("permute", ("self", x), ("dims", dims))
    if op == "silu":
        return outer("mul", ("self", x), ("other", inner("sigmoid", ("self", x))))
    if op == "square" or (op == "pow" and _equals_two(given.get("exponent"))):
        return outer("mul", ("self", x), ("other", x))
    if op in CASTS:
        value = tensor_value(node)
        source = tensor_value(_node_of(x)) if x is not None else tensor_value(_first(node))
        if value is not None and source is not None and value.device == source.device:
            first = x if x is not None else args[0][1]
            return outer("cast", ("self", first), ("dtype", value.dtype))
    return outer(op, *args)


def _equals_two(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == 2


def _node_of(value: Any) -> fx.Node | None:
    return value.node if isinstance(value, Term) else None


def _first(node: fx.Node) -> fx.Node | None:
    first = node.args[0] if node.args else None
    return first if isinstance(first, fx.Node) else None


def _permutation(node: fx.Node, op: str, given: dict[str, Any]) -> tuple[int, ...] | None:
    value = tensor_value(node)
    rank = 0 if value is None else value.dim()
    order = list(range(rank))
    if op == "permute" and isinstance(given.get("dims"), tuple):
        if all(isinstance(d, int) for d in given["dims"]):
            return tuple(d % rank for d in given["dims"])
        return None
    if op in ("t", "T") and rank <= 2:
        return tuple(reversed(order))
    if op == "mT" and rank >= 2:
        pair: tuple[Any, Any] = (-2, -1)
    elif op == "transpose":
        pair = (given.get("dim0", given.get("axis0")), given.get("dim1", given.get("axis1")))
    else:
        return None
    if rank == 0 or not all(isinstance(d, int) for d in pair):
        return None
    a, b = (d % rank for d in pair)
    order[a], order[b] = order[b], order[a]
    return tuple(order)


def operands(term: Term) -> Iterator[Term]:
    """The terms a term reads directly."""

    def inside(value: Any) -> Iterator[Term]:
        if isinstance(value, Term):
            yield value
        elif isinstance(value, tuple):
            for part in value:
                yield from inside(part)

    for _, value in term.args:
        yield from inside(value)


def root_names(op: str) -> frozenset[str]:
    """Canonical names of calls whose term can have the operation ``op``."""
    aliases = {
        "add": {"linear", "addmm", "baddbmm"},
        "matmul": {"linear", "mm", "bmm"},
        "permute": {"t", "T", "mT", "transpose"},
        "mul": {"silu", "square", "pow"},
        "cast": set(CASTS),
    }
    return frozenset({op, *aliases.get(op, ())})


def plain_name(node: fx.Node) -> str | None:
    """Name of a call without the sign of an in-place spelling, as :func:`root_names` lists it."""
    if node.op == "call_function" and node.target is getattr:
        return str(node.args[1])
    registered = torch_private.operator_name(node.target) if node.op == "call_function" else None
    if registered is not None and registered[0] not in ("aten", "prims"):
        return "::".join(registered)
    name = op_name(node)
    if name is None or name.startswith("__"):
        return name
    return name.rstrip("_")
