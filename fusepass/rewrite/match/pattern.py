"""A rule's pattern in the form it is looked for: a DAG over variables, scalars and sizes."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from fusepass.errors import RuleError
from fusepass.graph.ops.normal_call import default_of
from fusepass.graph.ops.schemas import REQUIRED, SymbolicSize
from fusepass.graph.terms.rowwise import is_rowwise
from fusepass.graph.terms.term import CASTS, INPUT, Term, plain_name
from fusepass.graph.terms.term_graph import TermGraph
from fusepass.rewrite.match import trace
from fusepass.rewrite.match.trace import trace_fault
from fusepass.rewrite.rule import Rule
from fusepass.torch_private.fx.tracing import chosen_by, size_expression
from fusepass.torch_private.inductor import lowering

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True, eq=False)
class Variable:
    """A tensor parameter of the pattern. Sizes are ints or sympy expressions."""

    name: str
    shape: tuple[Any, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Scalar:
    """A parameter of the pattern that is no tensor."""

    name: str


@dataclass(frozen=True)
class Size:
    """A number computed from sizes of the variables."""

    expression: Any


@dataclass(frozen=True, eq=False)
class Operation:
    """An operation of the pattern."""

    op: str
    args: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, eq=False)
class Pattern:
    """A traced pattern.

    Attributes:
        rule: where it comes from.
        roots: what the pattern returns.
        dtype: floating dtype it was traced for; None if any will do, as long as it is one.
        rowwise: whether rows (all dimensions but the last) never mix, so that any number of
            leading dimensions is like one.
        operations: number of operations.
        names: parameters, in order.
        variables: its tensors, in the order they were met.
        chosen_by: expressions of sizes that must hold, or the pattern would be another one.
    """

    rule: Rule
    roots: tuple[Operation, ...]
    dtype: torch.dtype | None
    rowwise: bool
    operations: int
    names: tuple[str, ...]
    variables: tuple[Variable, ...] = field(default=())
    chosen_by: tuple[Any, ...] = ()

    @functools.cached_property
    def widest_first(self) -> tuple[Operation, ...]:
        """The roots, those first that hold most of the pattern: they often hold the others too."""
        return tuple(sorted(self.roots, key=lambda root: -len(_operations_below(root))))


def _operations_below(operation: Operation) -> set[int]:
    found = {id(operation)}
    for _, value in operation.args:
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Operation):
                found |= _operations_below(part)
    return found


# --- The pattern of a rule, traced on its example with symbolic sizes -----------------------------
# To find where a bound scalar stands the pattern is traced again with another value of it; what
# then changes, and how, :mod:`fusepass.rewrite.match.pattern` reads from the two graphs.

# --- A traced pattern, with its scalars varied, to a DAG of variables, scalars and sizes ----------
# Arguments that change with a scalar to its other value are that scalar; arguments that change to
# anything else are computed from it, which cannot be undone when matching, and is an error.


class PatternConverter:
    """Terms of a traced pattern to :class:`Operation` values.

    ``varied``: by the place of a scalar, another value of it and the pattern traced with that.
    """

    def __init__(
        self,
        rule: Rule,
        names: tuple[str, ...],
        graph: fx.Graph,
        size_of: Callable[[Any], Any],
        varied: dict[int, list[tuple[Any, fx.Graph]]],
    ) -> None:
        self.rule, self.names, self.graph, self.size_of = rule, names, graph, size_of
        self.terms = TermGraph(graph)
        self.places = {n: i for i, n in enumerate(graph.nodes) if n.op == "placeholder"}
        self.original = {
            place: node.meta.get("example_value", node.meta.get("val"))
            for node, place in self.places.items()
        }
        self.varied = [
            (place, other, TermGraph(changed))
            for place, found in varied.items()
            for other, changed in found
        ]
        self.done: dict[Any, Any] = {}
        self.scalars: set[str] = set()

    def _fail(self, problem: str) -> RuleError:
        return RuleError(self.rule.name, self.rule.location, problem)

    def pattern(self, dtype: torch.dtype | None, exact: bool) -> Pattern:
        """The whole of it.

        It holds for the dtypes of the example only if it is ``exact``.

        Raises:
            RuleError: with what cannot be looked for.
        """
        output = next(n for n in reversed(self.graph.nodes) if n.op == "output")
        for _, _, other in self.varied:
            if len(other.graph.nodes) != len(self.graph.nodes):
                raise self._fail("a scalar of its example decides which operations it has")
        roots = []
        for place, node in enumerate(output.args[0]):
            peers = [_returned_terms(other, place) for _, _, other in self.varied]
            term = self.terms.read(node, output)
            root = self._convert(term, peers)
            if not isinstance(root, Operation):
                raise self._fail("its pattern returns one of its inputs")
            roots.append(root)
        operations = [o for o in self.done.values() if isinstance(o, Operation)]
        used = {v.name for v in self.done.values() if isinstance(v, Variable)} | self.scalars
        missing = [name for name in self.names if name not in used]
        if missing:
            raise self._fail(f"its pattern does not use {', '.join(missing)}")
        plain = not exact and not any(map(_mentions_dtype, self.graph.nodes))
        agnostic = plain and self.rule.place == "before"
        variables = tuple(v for v in self.done.values() if isinstance(v, Variable))
        return Pattern(
            self.rule,
            tuple(roots),
            None if agnostic or exact else dtype,
            is_rowwise(roots),
            len(operations),
            self.names,
            variables,
        )

    def _sizes(self, value: torch.Tensor) -> tuple[Any, ...]:
        return tuple(self.size_of(size) for size in value.shape)

    def _convert(self, value: Any, peers: list[Any]) -> Any:
        if isinstance(value, Term):
            held = self.done.get(value.key)
            if held is None:
                held = self.done[value.key] = self._operation(value, peers)
            return held
        if isinstance(value, tuple):
            lengths = {len(p) for p in peers if isinstance(p, tuple)}
            if lengths - {len(value)}:
                raise self._fail("a scalar of its example decides how many operands there are")
            return tuple(self._convert(part, [p[i] for p in peers]) for i, part in enumerate(value))
        if isinstance(value, fx.Node) and value in self.places:
            return self._scalar(self.names[self.places[value]])
        return self._constant(value, peers)

    def _scalar(self, name: str) -> Scalar:
        self.scalars.add(name)
        return Scalar(name)

    def _constant(self, value: Any, peers: list[Any]) -> Any:
        for (place, other, _), peer in zip(self.varied, peers, strict=True):
            if _alike(value, peer):
                continue
            if _alike(value, self.original[place]) and _alike(peer, other):
                return self._scalar(self.names[place])
            raise self._fail(
                f"it computes with its scalar {self.names[place]!r} before using it; pass the "
                "result as the scalar instead"
            )
        if isinstance(value, SymbolicSize):
            return Size(self.size_of(value.size))
        if isinstance(value, fx.Node):
            held = value.meta.get("val", value.meta.get("example_value"))
            if isinstance(held, (int, float, torch.SymInt, torch.SymFloat)):
                return Size(self.size_of(held))
            raise self._fail(f"it uses {value.name}, which is neither a tensor nor a size")
        return value

    def _operation(self, term: Term, peers: list[Any]) -> Variable | Operation:
        if term.op == INPUT:
            if term.owner not in self.places:
                why = term.blocked or f"{term.owner.name} is no operation fusepass knows"
                raise self._fail(f"its pattern cannot be used: {why}")
            value = self.original[self.places[term.owner]]
            name = self.names[self.places[term.owner]]
            return Variable(name, self._sizes(value), value.dtype)
        if any(p.op != term.op for p in peers):
            raise self._fail("a scalar of its example decides which operations it has")
        mine, theirs = dict(term.args), [dict(p.args) for p in peers]
        for name in dict.fromkeys(n for given in theirs for n in given):
            mine.setdefault(name, default_of(term.op, name))  # the example's value is the default
        args = []
        for name, value in mine.items():
            others = [given.get(name, default_of(term.op, name)) for given in theirs]
            if value is REQUIRED or any(other is REQUIRED for other in others):
                raise self._fail(f"a scalar of its example decides whether {name!r} is given")
            args.append((name, self._convert(value, others)))
        return Operation(term.op, tuple(args))


def _returned_terms(terms: TermGraph, place: int) -> Any:
    output = next(n for n in reversed(terms.graph.nodes) if n.op == "output")
    return terms.read(output.args[0][place], output)


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, SymbolicSize) and isinstance(b, SymbolicSize):
        return str(a.size) == str(b.size)
    if isinstance(a, fx.Node) and isinstance(b, fx.Node):
        return a.name == b.name
    return type(a) is type(b) and (a == b or (a != a and b != b))


def _mentions_dtype(node: fx.Node) -> bool:
    """Whether a call could be another one for inputs of another dtype."""
    arguments = (*node.args, *node.kwargs.values())
    return plain_name(node) in CASTS or any(isinstance(v, torch.dtype) for v in arguments)


def parameter_names(rule: Rule) -> tuple[str, ...]:
    """Names of the pattern's parameters.

    Raises:
        RuleError: the pattern takes ``*args``, ``**kwargs`` or keyword-only parameters, or has no
            readable signature.
    """
    try:
        parameters = list(inspect.signature(rule.pattern).parameters.values())
    except (TypeError, ValueError) as error:
        raise RuleError(rule.name, rule.location, f"its pattern cannot be read: {error}") from None
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        raise RuleError(rule.name, rule.location, "its pattern takes * or **; name the parameters")
    keyword = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    if keyword:
        problem = f"its pattern takes {', '.join(keyword)} by keyword only; examples go by place"
        raise RuleError(rule.name, rule.location, f"{problem}, so leave out the * in front")
    return tuple(p.name for p in parameters)


@functools.lru_cache(maxsize=1024)
def pattern_of(rule: Rule, dtype: torch.dtype) -> Pattern:
    """The pattern of a rule for graphs of a floating dtype; traced on first use.

    Raises:
        RuleError: with what is wrong.
    """
    values = rule.inputs()
    floats = {v.dtype for v in values if isinstance(v, torch.Tensor) and v.dtype in FLOATS}
    if len(floats) > 1:  # a rule about a certain mixture of dtypes
        return _trace(rule, None, exact=True)
    if rule.place == "before":  # most rules call the same operations whatever the dtype
        first = _trace(rule, next(iter(floats), dtype), exact=False)
        if first.dtype is None:
            return first
    return _trace(rule, dtype if floats else None, exact=not floats)


@functools.lru_cache(maxsize=1024)
def _trace(rule: Rule, dtype: torch.dtype | None, *, exact: bool) -> Pattern:
    names = parameter_names(rule)
    with lowering.real_tensors():
        values = _convert_dtype(rule.inputs(), dtype)
    if len(values) != len(names):
        raise RuleError(
            rule.name,
            rule.location,
            f"its example has {len(values)} values, its pattern takes {len(names)}",
        )
    try:
        with lowering.real_tensors():  # whatever compile this is in the middle of
            graph, size_of, choices = _graph(rule, values)
            varied = {
                place: _varied_inputs(rule, values, place)
                for place, value in enumerate(values)
                if not isinstance(value, torch.Tensor)
            }
    except trace.TraceError as error:
        raise RuleError(rule.name, rule.location, trace_fault("pattern", error)) from None
    except Exception as error:
        raise RuleError(rule.name, rule.location, trace_fault("pattern", error)) from error
    converter = PatternConverter(rule, names, graph, size_of, varied)
    pattern = converter.pattern(None if exact else dtype, exact)
    return dataclasses.replace(pattern, chosen_by=choices)


def _convert_dtype(values: tuple[Any, ...], dtype: torch.dtype | None) -> tuple[Any, ...]:
    return tuple(
        v.detach().to(dtype) if isinstance(v, torch.Tensor) and v.dtype in FLOATS and dtype else v
        for v in values
    )


def _graph(rule: Rule, values: tuple[Any, ...]) -> tuple[fx.Graph, Any, tuple[Any, ...]]:
    """The traced pattern, what gives the symbol or number of a size in it, and what it chose by."""
    if rule.place == "after":
        quick = trace.trace_concrete(rule.pattern, values)
        if quick is not None:
            return *quick, ()
    record = trace.record_torch if rule.place == "before" else trace.record_aten
    inputs, mode = trace.symbolic_inputs(values)
    graph = record(rule.pattern, inputs, mode)
    size_of = functools.partial(size_expression, mode=mode)
    return graph, size_of, chosen_by(mode)


def _varied_inputs(rule: Rule, values: tuple[Any, ...], place: int) -> list[tuple[Any, fx.Graph]]:
    """The pattern with another value of one scalar, for each that it can be traced with."""
    found: list[tuple[Any, fx.Graph]] = []
    for other in _other_value(values[place]):
        changed = (*values[:place], other, *values[place + 1 :])
        try:
            found.append((other, _graph(rule, changed)[0]))
        except Exception:  # noqa: BLE001 - a dimension the example has not, say
            continue
        break
    return found


def _other_value(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1, 0, 1, 2]
    if isinstance(value, float):
        other = [value * 1.25 + 0.0625, value * 0.5]
        return other if math.isfinite(value) else [1.5]  # infinity times a number is infinity
    known = ["none", "tanh", "mean", "sum"] if isinstance(value, str) else []
    return [other for other in known if other != value]
