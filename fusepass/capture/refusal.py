"""Why a branch stays a graph break, as an exception that unwinds the attempt to capture it."""

from __future__ import annotations

from fusepass.report.decision import Reason


class Refusal(Exception):
    """The branch must keep its graph break.

    Attributes:
        code: reason code of the report.
        text: one sentence for a person.
    """

    def __init__(self, code: Reason, text: str) -> None:
        super().__init__(f"{code.value}: {text}")
        self.code = code
        self.text = text


class ArmRaises(Refusal):
    """An arm was traced into an exception: it may be one that always raises."""


class ArmStops(ArmRaises):
    """An arm cannot be traced on: what stands in the way may be part of a message."""
