"""The record of one decision: a site, what acted on it, what came of it, and why."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, field
from typing import Any

from fusepass.errors import current_name


class Station(enum.StrEnum):
    """Where on the road (docs/design/index.md) a decision was taken."""

    TRACE = "trace"
    CAPTURE = "capture"
    BEFORE = "before"
    HAND_OFF = "hand_off"
    AFTER = "after"


class Outcome(enum.StrEnum):
    """What came of a rule at a site."""

    APPLIED = "applied"
    REJECTED = "rejected"
    LEFT_TO_INDUCTOR = "left_to_inductor"
    SLOWER = "slower"


_RENAMED_REASONS = {"flavour": "variant"}  # as 0.1 spelled them


class _ReasonType(enum.EnumMeta):
    """Members of :class:`Reason` by their old names, too, with a warning."""

    def __getattr__(cls, name: str) -> Any:
        code = name.lower()
        if name.isupper() and code in _RENAMED_REASONS:
            return cls(current_name("the reason code", code, _RENAMED_REASONS))
        raise AttributeError(f"{cls.__name__} has no member {name!r}")


class Reason(enum.StrEnum, metaclass=_ReasonType):
    """The closed list of reason codes; docs/reasons.md says what to do about each."""

    # applied
    PURE_TOTAL = "pure_total"
    FORCED = "forced"
    NO_RULE = "no_rule"
    PROVED = "proved"
    ON_DEVICE = "on_device"
    AFTER_GRAPH = "after_graph"
    AT_ENTRY = "at_entry"
    # what tested or traced
    PREDICATE = "predicate"
    UNTRACEABLE = "untraceable"
    RAISES = "raises"
    SIDE_EFFECT = "side_effect"
    LOOP = "loop"
    GENERATOR = "generator"
    PARTIAL_OP = "partial_op"
    RANDOM_OP = "random_op"
    # what the arms leave behind
    PYTHON_VALUE = "python_value"
    UNBOUND = "unbound"
    DTYPE_MISMATCH = "dtype_mismatch"
    SHAPE_MISMATCH = "shape_mismatch"
    DEVICE_MISMATCH = "device_mismatch"
    STRIDE_MISMATCH = "stride_mismatch"
    NONE_GRAD = "none_grad"
    NAN_GRAD = "nan_grad"
    ALIAS = "alias"
    # host round trips
    SIZE = "size"
    OVERFLOW = "overflow"
    INEXACT = "inexact"
    # rules
    VARIANT = "variant"
    NOT_CONSTANT = "not_constant"
    EXTRA_USER = "extra_user"
    OTHER_OP = "other_op"
    CYCLE = "cycle"
    STREAM = "stream"
    OVERLAP = "overlap"
    REPEAT = "repeat"
    NO_GRADIENT = "no_gradient"
    # choices and environment
    COST = "cost"
    MEASURED = "measured"
    INDUCTOR_FAULT = "inductor_fault"
    SLOWER = "slower"
    RULE_OFF = "rule_off"
    UNSUPPORTED_VERSION = "unsupported_version"
    INTERNAL = "internal"

    @classmethod
    def _missing_(cls, value: object) -> Reason | None:
        if value not in _RENAMED_REASONS:
            return None
        return cls(current_name("the reason code", str(value), _RENAMED_REASONS, 5))


def in_short(error: BaseException) -> str:
    """An error's type and the first line of what it says: some of torch's are pages long."""
    first, *_ = str(error).strip().splitlines() or ["no text"]
    return f"{type(error).__name__}: {first}"


@dataclass(frozen=True)
class Decision:
    """One line of the report.

    Attributes:
        station: where it was taken.
        rule: name of the rule (``"branch"`` for capture).
        outcome: what came of it.
        reason_code: a member of :class:`Reason`.
        reason: one sentence for a person.
        treatment: for a branch, ``drop``, ``where``, ``cond``, ``sink``, ``loop`` or ``keep``; for
            a host round trip ``device``, ``late``, ``specialize`` or ``keep``; else ``""``.
        file: source file of the site, ``""`` when unknown.
        line: line in ``file``, 0 when unknown.
        candidates: name to microseconds for what was timed or estimated.
    """

    station: Station
    rule: str
    outcome: Outcome
    reason_code: Reason
    reason: str
    treatment: str = ""
    file: str = ""
    line: int = 0
    candidates: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form documented in docs/report.md."""
        record = asdict(self)
        for key in ("station", "outcome", "reason_code"):
            record[key] = record[key].value
        return record

    @staticmethod
    def from_dict(record: dict[str, Any]) -> Decision:
        """Inverse of :meth:`to_dict`; ValueError, TypeError or KeyError for other records."""
        return Decision(
            **{
                **record,
                "station": Station(record["station"]),
                "outcome": Outcome(record["outcome"]),
                "reason_code": Reason(record["reason_code"]),
            }
        )
