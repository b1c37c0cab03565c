"""Why a rule does not act at a place where it could have."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from fusepass.report.decision import Reason


@dataclass(frozen=True)
class Reject:
    """Why a rule does not act at a site.

    Attributes:
        reason_code: member of the closed list of reasons (:class:`fusepass.Reason`), or its value.
        text: one sentence.
        node: the node that stands in the way.

    Raises:
        ValueError: a reason code that is not on the list.
    """

    reason_code: Reason
    text: str
    node: fx.Node | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason_code", Reason(self.reason_code))
