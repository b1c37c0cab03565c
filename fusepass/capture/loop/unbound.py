"""Raise, behind the graph, where a loop that makes no round leaves a name unbound that is read.

    while err > tol:            def solve(err):
        p = step(p0)                p, err = loop(…)      # zeros if there is no round
    return p            ->          raise UnboundLocalError if there is no round
                                    return p

The error is raised as if at the end of the loop. So nothing may happen between there and the place
that reads the name but what cannot be seen: loads and arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fusepass.capture.branch.raise_arm import check_site, due_here, user_stack, write_sink
from fusepass.capture.bytecode.exception_handlers import who_sees
from fusepass.capture.bytecode.instructions import names_of, successors
from fusepass.capture.frame_state import BranchSite, Frame, Place
from fusepass.capture.nodes.select_node import Branch
from fusepass.capture.nodes.value_recipe import ValueWriter
from fusepass.capture.refusal import Refusal
from fusepass.report.decision import Outcome, Reason
from fusepass.torch_private.dynamo import stack

_UNSEEN = ("LOAD_", "STORE_FAST", "BINARY_", "UNARY_", "COMPARE_OP", "COPY", "SWAP", "BUILD_TUPLE")
_LEADS_ON = ("NOP", "CACHE", "JUMP_FORWARD", "RESUME", "POP_TOP", "PRECALL", "PUSH_NULL", "END_FOR")
_TEXT = "cannot access local variable '{}' where it is not associated with a value"


def raise_unbound(
    translator: Any, frame: Frame, place: Place, names: Iterable[str], index: int, skips: Any
) -> BranchSite:
    """Record that an error is due where a loop makes no round.

    Args:
        translator: Dynamo's.
        frame: of capture.
        place: of the loop's test.
        names: left unbound if there is no round.
        index: of the instruction behind the loop.
        skips: the tracked 0-d bool that says that there is none.

    Raises:
        Refusal: eager might do something first.
    """
    name = first_read(translator.instructions, index, frozenset(names))
    if name is None:
        text = f"{min(names)!r} is not bound before the loop, which may make no round"
        raise Refusal(Reason.UNBOUND, text)
    check_site(translator, frame)
    seen_by = who_sees(translator, UnboundLocalError)
    if seen_by is not None:
        text = f"{name!r} may not be bound behind the loop, and that error would pass {seen_by}"
        raise Refusal(Reason.RAISES, text)
    site = frame.new_id()
    writer = ValueWriter()
    recipe = writer.call(UnboundLocalError, [stack.constant(_TEXT.format(name))], {})
    bad = due_here(translator, frame, skips, True)
    write_sink(translator, site, bad, writer, recipe, tuple(user_stack(translator)))
    outer = frame.arms[-1] if frame.arms else None
    facts = Branch(site, outer, "sink", False, place.file, place.line)
    text = f"without a round {name!r} is not bound: the error is raised after the graph"
    decision = place.decided(Outcome.APPLIED, Reason.RAISES, text, "sink")
    inside = frozenset(site for site, _ in frame.arms)
    return BranchSite(facts, None, decision, place, inside=inside)


def first_read(instructions: Sequence[Any], index: int, names: frozenset[str]) -> str | None:
    """The first of some names that code reads, if it does nothing before that can be seen."""
    leads = successors(instructions)
    at: int | None = index
    while at is not None:
        one = instructions[at]
        if one.opname.startswith("LOAD_FAST"):
            read = names.intersection(names_of(one))
            if read:
                return min(read)
        after, jump, _ = leads[at]
        forward = jump is None or (after is None and jump > at)
        if not forward or not one.opname.startswith((*_UNSEEN, *_LEADS_ON)):
            return None
        at = after if jump is None else jump
    return None
