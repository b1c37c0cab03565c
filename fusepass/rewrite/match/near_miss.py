"""The match that almost was: how far a rule got, at which node, and what would have to change.

A pattern is compared from its result downwards. Where already the last operation differs that
finds nothing, so the pattern is also climbed from its first operation upwards, along the chain of
values to its result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import fx

from fusepass.graph.dataflow.readers import readers
from fusepass.graph.ops.op_names import tensor_value
from fusepass.graph.terms.term import Term, plain_name, root_names
from fusepass.graph.terms.term_graph import TermGraph
from fusepass.report.decision import Reason
from fusepass.rewrite.match.matcher import MatchAttempt, MatchState, NearMiss, keeps_rows
from fusepass.rewrite.match.pattern import Operation, Pattern, Variable

MAX_CLIMBS = 48  # a report does not get better with more, and a long graph has thousands


def keep_best(best: dict[str, NearMiss], rule: str, miss: NearMiss) -> None:
    """Note a miss if it got further than the best one of its rule so far."""
    if miss.matched > 0 and (rule not in best or miss.matched > best[rule].matched):
        best[rule] = miss


def search_from_below(
    terms: TermGraph, patterns: Sequence[Pattern]
) -> Iterator[tuple[fx.Node, Pattern, NearMiss]]:
    """Look from below, at the first :data:`MAX_CLIMBS` places of each pattern.

    Yields:
        The call of the pattern's first operation, the pattern, and how far it could be followed.
    """
    chains = {p: _chain(p) for p in patterns if p.operations > 1}
    wanted = {chain[0].op for chain in chains.values()}
    names = frozenset().union(*map(root_names, wanted), *map(_composites, wanted))
    left = dict.fromkeys(chains, MAX_CLIMBS)
    for node in terms.graph.nodes:
        if not left:
            return
        if plain_name(node) not in names or tensor_value(node) is None:
            continue
        for start in _starts(terms, node, wanted):
            for pattern, chain in chains.items():
                if chain[0].op == start.op and pattern in left:
                    left[pattern] -= 1
                    if not left[pattern]:
                        del left[pattern]
                    miss = _search_from(terms, pattern, chain, start)
                    if miss is not None:
                        yield node, pattern, miss


def _composites(op: str) -> frozenset[str]:
    """Calls that hold an operation inside another one."""
    return frozenset({"linear", "addmm", "baddbmm"} if op == "matmul" else ())


def _starts(terms: TermGraph, node: fx.Node, wanted: set[str]) -> list[Term]:
    """The term of a node, or what is inside it when it is a composite call."""
    term = terms.term(node)
    found = [term] if term.op in wanted else []
    inner = [v for _, v in term.args if isinstance(v, Term) and v.node is None]
    return found + [t for t in inner if t.op in wanted]


def _search_from(
    terms: TermGraph,
    pattern: Pattern,
    chain: list[Operation],
    start: Term,
) -> NearMiss | None:
    reached = 0
    where, last = start, start.owner
    why: NearMiss | None = None
    for level, operation in enumerate(chain):
        above = [where] if level == 0 else _above(terms, where, operation.op)
        step, why = _first(terms, pattern, operation, above)
        if step is None:
            break
        reached, where, last = level + 1, step, step.owner
    if reached in (0, len(chain)):
        return None
    if why is None:
        have = _readers(terms, last)
        found = ", ".join(sorted({t.op for t in have}))
        there = f"the program has {found}" if found else "the graph ends"
        text = f"after {chain[reached - 1].op} the rule wants {chain[reached].op}, {there}"
        at = have[0].owner if have else last
        why = NearMiss(reached, pattern.operations, Reason.OTHER_OP, text, at)
    return replace(why, matched=reached)


def _first(
    terms: TermGraph, pattern: Pattern, operation: Operation, above: list[Term]
) -> tuple[Term | None, NearMiss | None]:
    """The first term that is ``operation``, or what is wrong with those that nearly are."""
    why = None
    for term in above:
        attempt = MatchAttempt(pattern, terms)
        found = next(attempt.part(operation, term, MatchState({}, {}, {}, ())), None)
        if found is not None:
            return term, None
        why = why or attempt.miss
    return None, why


def _above(terms: TermGraph, term: Term, op: str) -> list[Term]:
    if term.node is None:
        outer = terms.term(term.owner)
        return [outer] if outer.op == op else []
    return [t for t in _readers(terms, term.node) if t.op == op]


def _readers(terms: TermGraph, node: fx.Node) -> list[Term]:
    """What reads a value, reshapes that keep rows looked through."""

    def keeps(user: fx.Node) -> bool:
        return user.op != "output" and keeps_rows(terms.term(user))

    found = (user for user, _ in readers(node, keeps) if user.op != "output")
    return [terms.term(user) for user in found if not keeps(user)]


def _chain(pattern: Pattern) -> list[Operation]:
    """From the deepest operation that reads only variables up to the first root."""
    path: list[Operation] = [pattern.widest_first[0]]
    while True:
        inner = [
            part
            for _, value in path[-1].args
            for part in (value if isinstance(value, tuple) else (value,))
            if isinstance(part, Operation)
            and not (part.op == "permute" and isinstance(dict(part.args)["self"], Variable))
        ]
        if not inner:
            return path[::-1]
        path.append(inner[0])
