"""Trace a frame again without some of its captures, which are left to Dynamo.

A branch, a number that is read, a selection by a mask, a line that is written: later code, or the
complete graph, may forbid to capture it. Dynamo then traces the frame again, and takes its graph
break there. What is left to it in one frame is in ``frame.attempts.kept``, which goes when Dynamo
has done with the frame. What is left to it in every frame is in ``CompileLog.settled``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import NoReturn, TypeVar

from torch import fx

from fusepass.capture.frame_state import PLAIN, BranchSite, Frame, Instruction, Place
from fusepass.report import log
from fusepass.report.decision import Outcome, Reason
from fusepass.torch_private.dynamo.hooks import Attempts

Why = tuple[Reason, str]
Captured = int | Place  # the site of a branch or of a sink, or where something else is asked for
One = TypeVar("One", bound=Captured)
AT_ENTRY = "specialize"  # among what is left: nothing, but numbers of inputs are read first
NUMBERS = "numbers"  # among what is left: tensor work with numbers that differ between arms
_AFRESH = (
    "chain",
    "frame",
    "print",
    AT_ENTRY,
    NUMBERS,
    "loop",
    "loop refused",
    "loop values",
)  # without them the frame may take another way before them


def is_kept(frame: Frame, place: Place) -> bool:
    """Whether a place is left to Dynamo, in this frame or in every frame."""
    here = (place.rule, place.instruction) in frame.attempts.kept
    return here or place.everywhere in log.log_of(frame.compiler).settled


def why_kept(frame: Frame, rule: str, instruction: Instruction) -> Why | None:
    """Why a place is left to Dynamo in this frame; None if it is not."""
    return frame.attempts.kept.get((rule, instruction))  # type: ignore[no-any-return]


def settle(frame: Frame, place: Place, text: str) -> None:
    """Leave a place to Dynamo in every frame of this torch.compile call from now on."""
    log.log_of(frame.compiler).settled[place.everywhere] = text


def why_settled(frame: Frame, place: Place) -> str | None:
    """Why a place is left to Dynamo in every frame; None if it is not."""
    return log.log_of(frame.compiler).settled.get(place.everywhere)


def keep(frame: Frame, place: Place, code: Reason, text: str) -> None:
    """Put on record that a place is left to Dynamo; the trace goes on."""
    decision = place.decided(Outcome.REJECTED, code, text, "keep")
    log.kept(frame.compiler, decision, place.position)


def keep_branch(frame: Frame, place: Place, why: Why, site: BranchSite | None = None) -> None:
    """The same for a branch, and for those tested with it: the break follows their tests, too."""
    keep(frame, place, *why)
    for other in frame.tests_before(place.instruction, site):
        if not other.asks:
            keep(frame, other.place, *why)


def restart_without(frame: Frame, lost: Mapping[One, Why], *, together: bool = False) -> None:
    """Start the frame again without some of what is captured; go on if that is nothing.

    Args:
        frame: of capture.
        lost: what cannot stay, each with the reason. All places go at once. The branches go one by
            one, the first in the program now: the others may do without it.
        together: whether each number that a branch of these leaves is at fault, so that all are
            to be known at once.
    """
    places: dict[Place, Why] = {}
    sites: dict[int, Why] = {}
    for one, why in lost.items():
        place = frame.empties.get(one) if isinstance(one, int) else one
        if place is not None:
            places[place] = why
        elif isinstance(one, int):
            sites[frame.stands_for.get(one, one)] = why
    for place, why in places.items():
        keep(frame, place, *why)
        if place.dtype is not None:  # a selection is looked for in the report
            settle(frame, place, why[1])
    if places:
        restart_leaving(frame, {(p.rule, p.instruction): why for p, why in places.items()})
    reasons: dict[Captured, Why] = dict(lost.items())
    for at, site in enumerate(frame.sites):
        own = reasons.get(site.branch.site)
        if own is not None and own[0] is Reason.PYTHON_VALUE and site.leaves_numbers:
            others = _left_one(frame, frame.sites[at + 1 :], lost) if together else ()
            restart_with_phis(frame, site.place, own, others)
    for site in frame.sites:
        if site.branch.site in sites:
            if site.instead is not None:
                site.instead()
            keep_branch(frame, site.place, sites[site.branch.site], site)
            restart_reading(frame, site.items, site.place, sites[site.branch.site])
            site.speculation.fail_and_restart_analysis(False)


def restart_with_inputs(frame: Frame, place: Place, why: Why) -> None:
    """Start the frame again, once, if a number that was unknown at first is now known.

    Dynamo expects the restarted frame to take the same way, and counts the calls in the graph.
    """
    again = (place.rule, place.instruction) in frame.attempts.kept
    if again and (AT_ENTRY, place.instruction) not in frame.attempts.kept:
        restart_leaving(frame, {(AT_ENTRY, place.instruction): why})


def _left_one(
    frame: Frame, sites: Iterable[BranchSite], lost: Mapping[One, Why]
) -> Iterator[Place]:
    """The branches among those lost that leave one number: it is at fault, and no other is."""
    for site in sites:
        tried = site.place.instruction not in frame.long_loops
        if site.branch.site in lost and site.leaves_numbers == 1 and tried:
            yield site.place


def restart_with_phis(
    frame: Frame, branch: Place, why: Why, others: Iterable[Place] = ()
) -> NoReturn:
    """Start the frame again, the numbers that the arms of a branch leave two known values each.

    In a long loop each round would double what a number may be: the loop is tried first.
    ``others`` are branches whose numbers are to be known, too.
    """
    if (try_loop := frame.long_loops.get(branch.instruction)) is not None:
        try_loop()
    for broken, key in frame.attempts.broken:
        log.take_back(frame.compiler, broken, key)
    places = (branch, *others)
    restart_leaving(frame, {(NUMBERS, place.instruction): why for place in places})


def restart_reading(frame: Frame, items: Iterable[fx.Node], branch: Place, why: Why) -> None:
    """Start the frame again if a branch that is kept tests numbers, which then are read."""
    places = [frame.items[node] for node in items]
    for place in places:
        if (place.file, place.line) != (branch.file, branch.line):
            text = f"a branch that is kept tests it (line {branch.line}): {why[1]}"
            keep(frame, place, why[0], text)
    if places:
        restart_leaving(frame, {(place.rule, place.instruction): why for place in places})


def restart_without_saving(frame: Frame, lost: Mapping[int, Why]) -> None:
    """Start the frame again without branches whose arms save what is written later.

    With a graph break in it, a function that was traced as part of its caller is compiled by
    itself, and nothing there shows the write. So such a branch is left to Dynamo in every frame.
    """
    for site in frame.sites:
        if site.branch.site in lost and site.place.instruction[0] is not frame.code:
            settle(frame, site.place, lost[site.branch.site][1])
    restart_without(frame, lost)


def restart_plain(frame: Frame, code: Reason, text: str) -> NoReturn:
    """Start the frame again without capture."""
    captured = {site.place.position: site.decision for site in frame.sites} | frame.round_trips
    for position, decision in captured.items():
        why = {"outcome": Outcome.REJECTED, "reason_code": code, "reason": text}
        log.kept(frame.compiler, dataclasses.replace(decision, treatment="keep", **why), position)
    for place in frame.items.values():
        keep(frame, place, code, text)
    restart_leaving(frame, {PLAIN: (code, text)})


def restart_leaving(frame: Frame, kept: Mapping[tuple[str, Instruction | None], Why]) -> NoReturn:
    """Start the frame again, with nothing in the report."""
    attempts: Attempts = frame.attempts
    attempts.kept.update(kept)
    text = next(text for _, text in kept.values())
    attempts.restart(f"fusepass: {text}", afresh=any(rule in _AFRESH for rule, _ in kept))
