"""Finding a pattern in a graph: backtracking over commuted operands, with a reason for each miss.

The pattern is a DAG, so a part of it that is read twice must be one and the same value in the
graph. The failed attempt that matched most is kept for the report.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from fusepass.graph.ops.normal_call import default_of
from fusepass.graph.ops.op_names import tensor_value
from fusepass.graph.ops.schemas import REQUIRED, SymbolicSize
from fusepass.graph.terms.term import COMMUTATIVE, INPUT, RESHAPES, Term, operands
from fusepass.graph.terms.term_graph import TermGraph
from fusepass.report.decision import Reason
from fusepass.rewrite.match.pattern import Operation, Pattern, Scalar, Size, Variable
from fusepass.torch_private.fx.graphs import known_equal

# --- Whether a non-tensor argument equals the pattern's, and which arguments of a call differ -----

DIMENSIONS = frozenset("dim dims dim0 dim1 dim2".split())
_COUNTS_IN_RESULT = frozenset(
    """unsqueeze stack diag_embed select_backward diagonal_backward
    unfold_backward value_selecting_reduction_backward""".split()
)
_COUNTS_APART = frozenset(  # of either operand its own, or of the first one, not of the largest
    "tensordot trapezoid trapz cumulative_trapezoid".split()
)
_OF_ONE_DTYPE = frozenset(  # the result has the first operand's dtype, whatever the number is
    "masked_fill index_fill fill scatter full_like constant_pad_nd pad".split()
)


def number(value: Any) -> Any:
    """A number an argument stands for, when it is a node or a recorded size."""
    if isinstance(value, fx.Node):
        return value.meta.get("example_value", value.meta.get("val", value))
    return value.size if isinstance(value, SymbolicSize) else value


def same_constant(wanted: Any, found: Any) -> bool:
    """Whether an argument is the constant the pattern has; sizes are compared later."""
    if isinstance(wanted, Size):
        sized = number(found)
        return isinstance(sized, (int, float, torch.SymInt, torch.SymFloat)) and not isinstance(
            sized, bool
        )
    if isinstance(wanted, tuple) and isinstance(found, tuple):
        return len(wanted) == len(found) and all(
            same_constant(a, b) for a, b in zip(wanted, found, strict=True)
        )
    wanted, found = number(wanted), number(found)
    if isinstance(wanted, (int, float)) and isinstance(found, (int, float)):
        if isinstance(wanted, bool) != isinstance(found, bool):
            return False
        same = wanted == found or (wanted != wanted and found != found)
        return same and math.copysign(1, wanted) == math.copysign(1, found)
    if isinstance(wanted, (int, torch.SymInt)) and isinstance(found, (int, torch.SymInt)):
        return known_equal(wanted, found)
    return type(wanted) is type(found) and bool(wanted == found)


def same_size(wanted: Any, found: Any) -> bool:
    """Whether a number is the one that sizes come to, and of the same kind."""
    fractions = (float, torch.SymFloat)
    if isinstance(wanted, fractions) != isinstance(found, fractions):
        return False
    return known_equal(wanted, found)


def same_argument(wanted: Any, found: Any, of: Term) -> bool:
    """Whether an argument of a call is the constant the pattern has there.

    Beside integers and truth values alone the kind of a number, integer or not, decides the dtype
    of the result, or the one that is computed in: there it must be the pattern's, too. A quotient
    is floating either way, and what is filled keeps its dtype: there only the value counts.
    """
    if not same_constant(wanted, found):
        return False
    mine, theirs = number(wanted), number(found)
    if not isinstance(mine, (int, float)) or not isinstance(theirs, (int, float)):
        return True
    return type(mine) is type(theirs) or not _number_decides(of)


def _number_decides(call: Term) -> bool:
    """Whether a number among the arguments of a call decides the dtype that it computes in."""
    given = dict(call.args)
    if given.get("dtype") is not None or call.op in _OF_ONE_DTYPE:
        return False
    if call.op in ("div", "rdiv") and given.get("rounding_mode") is None:
        return False
    values = [tensor_value(operand.node) for operand in operands(call)]
    return not any(v is not None and (v.is_floating_point() or v.is_complex()) for v in values)


def is_dims(name: str, wanted: Any) -> bool:
    """Whether an argument names dimensions, none of them by a scalar of the rule."""
    parts = wanted if isinstance(wanted, tuple) else (wanted,)
    return name in DIMENSIONS and all(isinstance(p, int) for p in parts)


def same_dims(mine: Any, theirs: Any, found: Term) -> bool:
    """Equal as the pattern wrote them: from the front, or (negative) from the end."""
    if isinstance(mine, tuple) or isinstance(theirs, tuple):
        both = isinstance(mine, tuple) and isinstance(theirs, tuple) and len(mine) == len(theirs)
        return both and all(same_dims(a, b, found) for a, b in zip(mine, theirs, strict=True))
    rank = _rank_of_dims(found)
    if not isinstance(mine, int) or not isinstance(theirs, int) or rank is None:
        return bool(mine == theirs)
    if not -rank <= theirs < rank:  # a number of times, as in tile
        return mine == theirs
    return mine == (theirs % rank) - (rank if mine < 0 else 0)


def _rank_of_dims(found: Term) -> int | None:
    """How many dimensions those that a call names are counted among; None if that is not known.

    They are the operands', of operands that are broadcast the largest one's, and the result's
    where the call makes a dimension. What another library calls ``dim`` may be anything.
    """
    if found.op in _COUNTS_APART or "::" in found.op:
        return None
    if found.op in _COUNTS_IN_RESULT:
        made = tensor_value(found.node)
        return None if made is None else max(made.dim(), 1)
    values = [tensor_value(operand.node) for operand in operands(found)]
    if not values or any(value is None for value in values):
        return None
    return max(1, *(value.dim() for value in values if value is not None))


def display(value: Any) -> str:
    """For the report."""
    if isinstance(value, Scalar):
        return value.name
    return str(number(value))


_ABSENT = object()


def differing_arguments(wanted: Operation, found: Term) -> str:
    """Arguments that are no tensors and differ; else those that are tensors on one side only."""
    mine, theirs = dict(wanted.args), dict(found.args)
    said = []
    for name in sorted({*mine, *theirs}):
        want, have = mine.get(name, _ABSENT), theirs.get(name, _ABSENT)
        if _holds_tensors(want) or _holds_tensors(have):
            several = isinstance(want, tuple) and isinstance(have, tuple)
            if several and len(want) != len(have):
                said.append(f"{name}: {len(have)} (rule: {len(want)})")
        elif not _same(name, want, have, found):
            said.append(f"{name}={_display_argument(have)} (rule: {_display_argument(want)})")
    kinds = [
        name for name in mine if _holds_tensors(mine[name]) != _holds_tensors(theirs.get(name))
    ]
    return ", ".join(said) or f"{', '.join(kinds)} is of another kind"


def _same(name: str, want: Any, have: Any, found: Term) -> bool:
    if want is _ABSENT or have is _ABSENT:
        return False
    if is_dims(name, want):
        return same_dims(want, have, found)
    return same_argument(want, have, found)


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_holds_tensors, value))
    return isinstance(value, (Operation, Variable, Term))


def _display_argument(value: Any) -> str:
    return "absent" if value is _ABSENT else display(value)


MAX_READERS = 64  # of one value, looked at for a further result of the pattern
MAX_STEPS = 5000  # a pattern of many commutative operations must not take forever


@dataclass(frozen=True)
class BoundTerm:
    """What a tensor variable stands for: a term, transposed first if ``dims`` says so."""

    term: Term
    dims: tuple[int, ...] | None = None


@dataclass(frozen=True)
class NearMiss:
    """How far an attempt got, and what stopped it.

    Attributes:
        matched: operations of the pattern that were found.
        of: operations the pattern has.
        code: what kind of thing was in the way.
        text: what it was.
        node: where.
    """

    matched: int
    of: int
    code: Reason
    text: str
    node: fx.Node

    def sentence(self) -> str:
        """For the report."""
        return f"nearest miss, {self.matched} of {self.of} operations: {self.text}"


@dataclass(frozen=True)
class MatchState:
    """What is settled so far; never changed, so that giving up an alternative is forgetting it."""

    parts: dict[int, Term]  # id of a pattern's operation to its term
    variables: dict[str, BoundTerm]
    scalars: dict[str, Any]
    nodes: tuple[fx.Node, ...]  # calls the match stands for


@dataclass
class MatchAttempt:
    """One pattern tried at one place."""

    pattern: Pattern
    graph: TermGraph
    steps: int = 0
    miss: NearMiss | None = None
    _depth: dict[int, int] = field(default_factory=dict)

    def run(self, root: Term) -> Iterator[MatchState]:
        """Every way the pattern's widest root can be ``root``, the others found from there."""
        start = MatchState({}, {}, {}, ())
        for state in self.part(self.pattern.widest_first[0], root, start):
            yield from self._other_roots(1, state)

    def _other_roots(self, index: int, state: MatchState) -> Iterator[MatchState]:
        if index == len(self.pattern.roots):
            yield state
            return
        root = self.pattern.widest_first[index]
        if id(root) in state.parts:
            yield from self._other_roots(index + 1, state)
            return
        for candidate in self._readers(root, state):
            for found in self.part(root, candidate, state):
                yield from self._other_roots(index + 1, found)

    def _readers(self, root: Operation, state: MatchState) -> Iterator[Term]:
        """Terms computed from what is matched already, by the operation wanted."""
        bound = [b.term.node for b in state.variables.values()]
        level = [n for n in (*state.nodes, *bound) if n is not None]
        seen = set(level)
        for _ in range(self.pattern.operations):
            level = [u for source in level for u in source.users if u.op != "output"]
            level = [u for u in dict.fromkeys(level) if u not in seen]
            seen.update(level)
            for user in level[:MAX_READERS]:
                term = self.graph.term(user)
                if term.op == root.op:
                    yield term

    def _record_miss(self, state: MatchState, code: Reason, text: str, node: fx.Node) -> None:
        depth = len(state.parts)
        if self.miss is None or depth > self.miss.matched:
            self.miss = NearMiss(depth, self.pattern.operations, code, text, node)

    def part(self, wanted: Any, found: Any, state: MatchState) -> Iterator[MatchState]:
        """Ways in which ``found``, of the graph, is ``wanted``, of the pattern."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            return
        if isinstance(wanted, Variable):
            yield from self._variable(wanted, found, state)
        elif isinstance(wanted, Operation):
            yield from self._operation(wanted, found, state)
        elif isinstance(wanted, Scalar):
            yield from self._scalar(wanted, found, state)
        elif isinstance(wanted, tuple):
            if isinstance(found, tuple) and len(found) == len(wanted):
                yield from self._sequence(list(zip(wanted, found, strict=True)), state)
        elif same_constant(wanted, found):
            yield state
        elif state.nodes:
            text = f"a constant is {display(found)}, the rule wants {display(wanted)}"
            self._record_miss(state, Reason.VARIANT, text, state.nodes[-1])

    def _sequence(self, pairs: list[tuple[Any, Any]], state: MatchState) -> Iterator[MatchState]:
        if not pairs:
            yield state
            return
        (wanted, found), *rest = pairs
        for settled in self.part(wanted, found, state):
            yield from self._sequence(rest, settled)

    def _variable(
        self, wanted: Variable, found: Any, state: MatchState, dims: tuple[int, ...] | None = None
    ) -> Iterator[MatchState]:
        if not isinstance(found, Term):
            return
        if found.node is None and found.op != "permute":
            return  # inside a composite call: there is no such value in the graph
        held = state.variables.get(wanted.name)
        if held is not None:
            if held.term.key == found.key and held.dims == dims:
                yield state
            else:
                text = f"{wanted.name} would be two different values"
                self._record_miss(state, Reason.OTHER_OP, text, found.owner)
            return
        bound = {**state.variables, wanted.name: BoundTerm(found, dims)}
        yield MatchState(state.parts, bound, state.scalars, state.nodes)

    def _operation(self, wanted: Operation, found: Any, state: MatchState) -> Iterator[MatchState]:
        held = state.parts.get(id(wanted))
        if held is not None:
            through = self._rows_of(found, held)
            if through is not None:
                grown = tuple(dict.fromkeys((*state.nodes, *through)))
                yield MatchState(state.parts, state.variables, state.scalars, grown)
            elif isinstance(found, Term):
                text = f"{wanted.op} is read twice in the pattern, here it is two values"
                self._record_miss(state, Reason.OTHER_OP, text, found.owner)
            return
        if not isinstance(found, Term):
            return
        if found.op != wanted.op:
            yield from self._other_layouts(wanted, found, state)
            return
        grown = tuple(dict.fromkeys((*state.nodes, *_calls(found))))
        parts = {**state.parts, id(wanted): found}
        inside = MatchState(parts, state.variables, state.scalars, grown)
        orders = list(self._argument_orders(wanted, found, inside))
        if not orders:
            self._record_flavour(wanted, found, state)
        for pairs in orders:
            yield from self._sequence(pairs, inside)

    def _rows_of(self, found: Any, held: Term) -> list[fx.Node] | None:
        """Reshapes between a value and ``held`` that keep its rows; None if it is another value."""
        calls: list[fx.Node] = []
        while isinstance(found, Term):
            if found.key == held.key:
                return [*calls, *found.passed]
            if not (self.pattern.rowwise and keeps_rows(found)):
                return None
            calls += _calls(found)
            found = found.args[0][1]
        return None

    def _other_layouts(
        self, wanted: Operation, found: Term, state: MatchState
    ) -> Iterator[MatchState]:
        """A transposition the graph has not, or a reshape the pattern has not."""
        if wanted.op == "permute":
            source = dict(wanted.args)["self"]
            if isinstance(source, Variable) and (found.node is not None):
                dims = dict(wanted.args)["dims"]
                undone = tuple(dims.index(i) for i in range(len(dims)))
                value = tensor_value(found.node)
                if value is not None and value.dim() == len(dims):
                    yield from self._variable(source, found, state, undone)
                    return
                if value is not None:
                    text = f"{source.name} has {value.dim()} dimensions, the rule's has {len(dims)}"
                    self._record_miss(state, Reason.SHAPE_MISMATCH, text, found.owner)
                    return
        if self.pattern.rowwise and keeps_rows(found):
            calls, below = _calls(found), found.args[0][1]
            while isinstance(below, Term) and below.op != wanted.op and keeps_rows(below):
                calls += _calls(below)
                below = below.args[0][1]
            grown = tuple(dict.fromkeys((*state.nodes, *calls)))
            through = MatchState(state.parts, state.variables, state.scalars, grown)
            yield from self._operation(wanted, below, through)
            return
        if found.blocked:
            self._record_miss(state, Reason.ALIAS, found.blocked, found.owner)
        else:
            have = "a value from elsewhere" if found.op == INPUT else found.op
            text = f"the rule wants {wanted.op} here, the program has {have}"
            self._record_miss(state, Reason.OTHER_OP, text, found.owner)

    def _argument_orders(
        self, wanted: Operation, found: Term, state: MatchState
    ) -> Iterator[list[tuple[Any, Any]]]:
        """Arguments paired, commuted too; only if both have the same arguments and constants."""
        mine, theirs = dict(wanted.args), dict(found.args)
        for name in mine.keys() - theirs.keys():  # a scalar binds to a default, too
            if isinstance(mine[name], Scalar) or name in DIMENSIONS:
                theirs[name] = default_of(wanted.op, name)
        for name in (theirs.keys() - mine.keys()) & DIMENSIONS:  # -1 of a matrix is 1
            mine[name] = default_of(wanted.op, name)
        if mine.keys() != theirs.keys() or REQUIRED in (*mine.values(), *theirs.values()):
            return
        names = list(mine)
        orders = [names]
        # A further argument applies to one side, as alpha does of other. One that the call leaves
        # at its default does not: adding one times a tensor is adding it.
        if wanted.op in COMMUTATIVE and {n for n, _ in found.args} == {"self", "other"}:
            rest = [n for n in names if n not in ("self", "other")]
            orders = [["self", "other", *rest], ["other", "self", *rest]]
        for order in orders:
            target = names if order is names else ["self", "other", *order[2:]]
            pairs = [(mine[a], theirs[b]) for a, b in zip(target, order, strict=True)]
            if all(
                self._may_match(a, found, b, n) for (a, b), n in zip(pairs, target, strict=True)
            ):
                # Dimensions are settled. What is most particular first: a variable is anything.
                left = [p for p, n in zip(pairs, target, strict=True) if not is_dims(n, p[0])]
                yield sorted(left, key=lambda pair: isinstance(pair[0], Variable))

    def _may_match(self, mine: Any, found: Term, theirs: Any, name: str) -> bool:
        if isinstance(mine, (Operation, Variable)):
            return isinstance(theirs, Term)
        if isinstance(mine, Scalar):
            return not isinstance(theirs, (Term, tuple))
        if isinstance(mine, tuple) and any(isinstance(m, (Operation, Variable)) for m in mine):
            return isinstance(theirs, tuple) and len(mine) == len(theirs)
        if isinstance(theirs, Term):
            return False
        if is_dims(name, mine):
            return same_dims(mine, theirs, found)
        return isinstance(mine, (Size, tuple)) or same_argument(mine, theirs, found)

    def _record_flavour(self, wanted: Operation, found: Term, state: MatchState) -> None:
        said = differing_arguments(wanted, found)
        text = f"another variant of {wanted.op}: {said}"
        self._record_miss(state, Reason.VARIANT, text, found.owner)

    def _scalar(self, wanted: Scalar, found: Any, state: MatchState) -> Iterator[MatchState]:
        if isinstance(found, (Term, tuple)):
            return
        held = state.scalars.get(wanted.name, _MISSING)
        if held is _MISSING:
            bound = {**state.scalars, wanted.name: found}
            yield MatchState(state.parts, state.variables, bound, state.nodes)
        elif held is found or self._same_number(held, found, state):
            yield state
        elif state.nodes:
            numbers = f"{display(held)} and {display(found)}"
            text = f"{wanted.name} would be two different numbers, {numbers}"
            self._record_miss(state, Reason.VARIANT, text, state.nodes[-1])

    def _same_number(self, held: Any, found: Any, state: MatchState) -> bool:
        """Whether every call that reads ``found`` may read what the scalar is bound to already."""
        calls = [c for c in state.parts.values() if any(v is found for _, v in c.args)]
        return same_constant(held, found) and all(same_argument(held, found, c) for c in calls)


_MISSING = object()


def _calls(term: Term) -> list[fx.Node]:
    """The calls that stand for a term's own operation."""
    return [*term.passed, *([term.node] if term.node is not None else [])]


def keeps_rows(term: Term) -> bool:
    """Whether a call is a reshape that leaves the last dimension, and so every row, as it is."""
    source = term.args[0][1] if term.op in RESHAPES and term.args else None
    if not isinstance(source, Term) or source.node is None or term.node is None:
        return False
    before, after = tensor_value(source.node), tensor_value(term.node)
    return (
        before is not None
        and after is not None
        and before.dim() > 0
        and after.dim() > 0
        and before.dtype == after.dtype
        and known_equal(before.shape[-1], after.shape[-1])
    )
