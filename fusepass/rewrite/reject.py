"""A rule's ``check`` returns this: a rejection, or an acceptance with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import fx

from fusepass.report.decision import Reason


@dataclass(frozen=True)
class _Verdict:
    """What the two have in common."""

    reason_code: Reason | str
    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason_code", Reason(self.reason_code))

    @property
    def code(self) -> Reason:
        """The reason code as a member of the list."""
        return Reason(self.reason_code)


@dataclass(frozen=True)
class Reject(_Verdict):
    """Why a rule does not act at a site.

    Attributes:
        reason_code: member of the closed list of reasons (:class:`fusepass.Reason`), or its value.
        text: one sentence.
        node: the node that stands in the way.
        microseconds: what was timed or estimated, by candidate; for the report.

    Raises:
        ValueError: a reason code that is not on the list.
    """

    node: fx.Node | None = None
    microseconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Accept(_Verdict):
    """Why a rule acts at a site, for checks that have more to say than None.

    Attributes:
        reason_code: member of the closed list of reasons, or its value.
        text: one sentence.
        microseconds: what was timed or estimated, by candidate; for the report.

    Raises:
        ValueError: a reason code that is not on the list.
    """

    microseconds: Mapping[str, float] = field(default_factory=dict)
