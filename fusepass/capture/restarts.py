"""Restart the trace without a captured branch that later code makes illegal."""

from __future__ import annotations

import dataclasses
from typing import Any

from fusepass.capture.frame_state import Frame, Site
from fusepass.capture.scalars.deferred_items import give_back_tested
from fusepass.report import log
from fusepass.report.decision import Decision, Outcome, Reason, Station


def take_back(attempt: Any, frame: Frame, lost: dict[int, tuple[Reason, str]]) -> None:
    """Give the first of the sites in ``lost`` back to Dynamo, which starts the frame again.

    Args:
        attempt: the output graph of the frame or, after an error has emptied that, its translator.
        frame: ours.
        lost: sites, each with the reason.
    """
    lost = {frame.stands_for.get(site, site): why for site, why in lost.items()}
    for site in frame.sites:
        branch = site.branch
        if branch.site in lost:
            where = (branch.file, branch.line)
            decision = Decision(
                Station.CAPTURE, "branch", Outcome.REJECTED, *lost[branch.site], "keep", *where
            )
            log.kept(frame.compiler, decision, site.position)
            keep_tests(frame, decision, frame.tests_before(site.jump, site))
            if site.items:
                give_back_tested(attempt, frame, site.items, decision)
            site.speculation.fail_and_restart_analysis(False)


def take_back_that_save(attempt: Any, frame: Frame, lost: dict[int, tuple[Reason, str]]) -> None:
    """Give back branches whose arms save what is written later.

    With a graph break in it, a function that was traced as part of its caller is compiled by
    itself, and nothing there shows the write. So such a branch is on record as one to be kept.
    """
    known = log.log_of(frame.compiler).writes_saved
    for site in frame.sites:
        number = frame.stands_for.get(site.branch.site, site.branch.site)
        if number in lost and site.jump[0] is not frame.code:
            known[site.position] = lost[number][1]
    take_back(attempt, frame, lost)


def keep_tests(frame: Frame, decision: Decision, sites: list[Site]) -> None:
    """Tests made together with that of a branch that is kept are in front of a graph break, too."""
    for site in sites:
        file, line = site.branch.file, site.branch.line
        log.kept(frame.compiler, dataclasses.replace(decision, file=file, line=line), site.position)
