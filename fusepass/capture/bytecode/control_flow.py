"""Find the join of a jump, and the local names that may be read after an instruction.

The join of a jump is its immediate post-dominator: the first instruction every path from the jump
must pass. Paths that end in ``raise`` are left out, so a guard that only raises does not hide the
join; an arm with no other path is recognised as raising. Post-dominators are the immediate
dominators of the reversed graph (Cooper, Harvey and Kennedy, "A simple, fast dominance algorithm",
as implemented by networkx).

Live names are found by classic backward data flow: live-in = reads + (live-out − writes), to a
fixed point. That is exact for straight-line rebinding (a name written before it is read again is
dead), where Dynamo's own ``livevars_analysis`` errs towards live: a branch inside which a scratch
name is bound would be refused for it.
"""

from __future__ import annotations

import dis
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, TypeVar

import networkx as nx

from fusepass.capture.bytecode.instructions import RETURNS, names_of, successors

_TESTS = ("IF_TRUE", "IF_FALSE")
_STATEMENTS = ("STORE_", "DELETE_", "POP_TOP", "LIST_", "SET_", "DICT_", "MAP_", "YIELD", "SEND")
EXIT = -1


@dataclass(frozen=True)
class Region:
    """Joins and raising paths of one code object.

    Attributes:
        join: block start to the block start where its paths meet; :data:`EXIT` is the return.
        block: instruction index to the start of its block.
        returns: block starts from which a return can be reached without raising.
        chains: jumps that another test follows, as ``and`` and ``or`` leave them: index to the
            last jump of the chain, and the truth value there that leads where the first one jumps.
    """

    join: dict[int, int]
    block: dict[int, int]
    returns: frozenset[int]
    chains: dict[int, tuple[int, bool]]

    def join_of(self, index: int) -> int:
        """The place where the arms of a jump meet: an instruction index or :data:`EXIT`."""
        return self.join.get(self.block[index], EXIT)

    def join_of_both(self, first: int, second: int) -> int:
        """The first instruction that every path from either of two passes, or :data:`EXIT`."""
        from_first = set(self._passed(first))
        return next(at for at in self._passed(second) if at in from_first)

    def join_of_all(self, places: Sequence[int]) -> int:
        """The first instruction that every path from any of some places passes, or :data:`EXIT`."""
        join = places[0]
        for place in places[1:]:
            join = join if join == EXIT else self.join_of_both(join, place)
        return join

    def _passed(self, index: int) -> Iterator[int]:
        yield index
        while index != EXIT:
            index = self.join_of(index)
            yield index

    def only_raises(self, index: int) -> bool:
        """Whether every path from the instruction at ``index`` raises."""
        return self.block[index] not in self.returns


Found = TypeVar("Found")
_caches: weakref.WeakKeyDictionary[CodeType, dict[Any, tuple[int, Any]]] = (
    weakref.WeakKeyDictionary()
)


def facts_of(
    analysis: Callable[[Sequence[Any]], Found], code: CodeType, instructions: Sequence[Any]
) -> Found:
    """The facts about a code object as Dynamo holds it, cached while the code object lives."""
    cache = _caches.setdefault(code, {})
    count, found = cache.get(analysis, (-1, None))
    if count != len(instructions):
        found = analysis(instructions)
        cache[analysis] = len(instructions), found
    return found  # type: ignore[no-any-return]


def region_of(code: CodeType, instructions: Sequence[Any]) -> Region:
    """The region facts of a code object."""
    return facts_of(analyse, code, instructions)


def live_names(code: CodeType, instructions: Sequence[Any], index: int) -> frozenset[str]:
    """Names of locals and cells that may be read at or after instruction ``index``."""
    return facts_of(live_sets, code, instructions)[index]


def analyse(instructions: Sequence[Any]) -> Region:
    """Build the block graph and its post-dominators."""
    leads = successors(instructions)
    jumps = [jump for _, jump, _ in leads]
    starts = {0, *(jump for jump in jumps if jump is not None)}
    ends = (at for at, (after, jump, _) in enumerate(leads) if after is None or jump is not None)
    ordered = sorted(starts.union(end + 1 for end in ends) - {len(instructions)})
    block: dict[int, int] = {}
    graph: nx.DiGraph = nx.DiGraph()
    graph.add_node(EXIT)
    for start, end in zip(ordered, [*ordered[1:], len(instructions)], strict=True):
        graph.add_node(start)
        block |= dict.fromkeys(range(start, end), start)
        after, jump, _ = leads[end - 1]
        returns_here = instructions[end - 1].opname in RETURNS
        graph.add_edges_from(
            (start, to) for to in ((EXIT,) if returns_here else (jump, after)) if to is not None
        )
    returns = frozenset(nx.ancestors(graph, EXIT))
    live = graph.subgraph(returns | {EXIT}).reverse(copy=True)
    join = {
        node: up
        for node, up in nx.immediate_dominators(live, EXIT).items()
        if up is not None and node != EXIT
    }
    return Region(join, block, returns, _chains(instructions, jumps, ordered))


def _chains(
    instructions: Sequence[Any], jumps: list[int | None], starts: list[int]
) -> dict[int, tuple[int, bool]]:
    """The chains of tests; those of their ends first, which longer ones are made of.

    ``if a and b`` jumps past the body from both tests, and nothing lies between them but what
    computes ``b``: the first jump only decides whether ``b`` is asked.
    """
    later = [*starts[1:], len(instructions)]
    ends = {start: end - 1 for start, end in zip(starts, later, strict=True)}
    chains: dict[int, tuple[int, bool]] = {}
    for last in sorted(ends.values(), reverse=True):
        following = ends.get(last + 1)
        if following is None or not _is_test(instructions[last]):
            continue
        if any(inst.opname.startswith(_STATEMENTS) for inst in instructions[last + 1 : following]):
            continue
        target = jumps[last]
        for end in (following, *(chains[following][:1] if following in chains else ())):
            jump = instructions[end]
            if _is_test(jump) and target in (jumps[end], end + 1):
                jumps_if = jump.opname.endswith("IF_TRUE")
                chains[last] = (end, jumps_if is (jumps[end] == target))
                break
    return chains


def _is_test(instruction: Any) -> bool:
    """Whether an instruction pops a value and jumps by its truth."""
    name = instruction.opname
    return bool(name.startswith("POP_JUMP") and name.endswith(_TESTS))


_LOCAL = frozenset(dis.haslocal)
_FREE = frozenset(dis.hasfree)


def live_sets(instructions: Sequence[Any]) -> list[frozenset[str]]:
    """Live-in set of every instruction."""
    live: list[frozenset[str]] = [frozenset()] * len(instructions)
    leads = [[at for at in found if at is not None] for found in successors(instructions)]
    effects = [_reads_and_writes(inst) for inst in instructions]
    changed = True
    while changed:
        changed = False
        for i in range(len(instructions) - 1, -1, -1):
            out = frozenset().union(*(live[s] for s in leads[i]))
            reads, writes = effects[i]
            now = reads | (out - writes)
            if now != live[i]:
                live[i] = now
                changed = True
    return live


def _reads_and_writes(inst: Any) -> tuple[frozenset[str], frozenset[str]]:
    if inst.opcode not in _LOCAL and inst.opcode not in _FREE:
        return frozenset(), frozenset()
    name_set = frozenset(n for n in names_of(inst) if isinstance(n, str))
    if inst.opname.startswith("STORE") and "LOAD" not in inst.opname:
        return frozenset(), name_set
    return name_set, frozenset()
