"""Build the control-flow graph of bytecode, and find the join of a jump.

The join of a jump is its immediate post-dominator: the first instruction every path from the jump
must pass. Paths that end in ``raise`` are left out, so a guard that only raises does not hide the
join; an arm with no other path is recognised as raising. Post-dominators are the immediate
dominators of the reversed graph (Cooper, Harvey and Kennedy, "A simple, fast dominance algorithm",
as implemented by networkx).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import networkx as nx

from fusepass.capture.bytecode.instructions import RETURNS, successors

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

    def only_raises(self, index: int) -> bool:
        """Whether every path from the instruction at ``index`` raises."""
        return self.block[index] not in self.returns


_cache: weakref.WeakKeyDictionary[CodeType, tuple[int, Region]] = weakref.WeakKeyDictionary()


def region_of(code: CodeType, instructions: Sequence[Any]) -> Region:
    """The region facts of a code object as Dynamo holds it (cached while the code object lives)."""
    cached = _cache.get(code)
    if cached is not None and cached[0] == len(instructions):
        return cached[1]
    region = analyse(instructions)
    _cache[code] = (len(instructions), region)
    return region


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
