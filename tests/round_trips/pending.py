"""Programs whose decisions are promised but not made yet: it must get empty."""

from __future__ import annotations

_BY_FAMILY: dict[str, str] = {}
PENDING = frozenset(
    f"{family}.{name}" for family, names in _BY_FAMILY.items() for name in names.split()
)

# Programs whose results differ from eager: faults that are known, and must be repaired.
WRONG: frozenset[str] = frozenset()
