"""A captured branch is given back: it could not stay after what the program does later."""

from __future__ import annotations

from typing import Any

from fusepass.capture import read_back
from fusepass.capture.frame import Frame
from fusepass.report import log
from fusepass.report.decision import Decision, Outcome, Reason, Station


def take_back(output_graph: Any, frame: Frame, lost: dict[int, tuple[Reason, str]]) -> None:
    """Give the first of the sites in ``lost`` back to Dynamo, which starts the frame again."""
    lost = {frame.stands_for.get(site, site): why for site, why in lost.items()}
    for site in frame.sites:
        branch = site.branch
        if branch.site in lost:
            where = (branch.file, branch.line)
            decision = Decision(
                Station.CAPTURE, "branch", Outcome.REJECTED, *lost[branch.site], "keep", *where
            )
            log.kept(frame.compiler, decision, site.position)
            if site.items:
                read_back.give_back(output_graph, frame, site.items)
            site.speculation.fail_and_restart_analysis(False)
