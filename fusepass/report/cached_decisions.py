"""Decisions of passes inside Inductor: they travel in its counters, which its caches keep."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator

from fusepass.report.decision import Decision
from fusepass.torch_private.inductor.compile import inductor_counters

logger = logging.getLogger("fusepass")
_PREFIX = "fusepass:"


def note(decisions: list[Decision]) -> None:
    """Put decisions of a pass inside Inductor where its caches keep them and give them back."""
    payload = json.dumps([d.to_dict() for d in decisions], sort_keys=True)
    inductor_counters()[_PREFIX + payload] += 1


def snapshot() -> dict[str, int]:
    """The counters that carry decisions, as they stand."""
    counters = inductor_counters()
    return {k: v for k, v in counters.items() if isinstance(k, str) and k.startswith(_PREFIX)}


@contextlib.contextmanager
def forgotten() -> Iterator[None]:
    """What passes inside Inductor say meanwhile is about a compile that nobody will run."""
    before = snapshot()
    try:
        yield
    finally:
        taken_back(before)


def taken_back(before: dict[str, int]) -> list[Decision]:
    """What the counters have gained since a snapshot; they are put back to it."""
    found = decisions_since(before)
    counters = inductor_counters()
    for key in snapshot():
        del counters[key]
    counters.update(before)
    return found


def decisions_since(before: dict[str, int]) -> list[Decision]:
    """What the counters have gained since a snapshot."""
    found: list[Decision] = []
    for key, count in snapshot().items():
        for _ in range(count - before.get(key, 0)):
            try:
                found += [Decision.from_dict(d) for d in json.loads(key[len(_PREFIX) :])]
            except (ValueError, TypeError, KeyError):
                logger.warning("fusepass: an artifact carries a report this version cannot read")
    return found
