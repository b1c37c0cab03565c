"""Programs whose decisions are promised but not made yet: it must get empty."""

from __future__ import annotations

_BY_FAMILY: dict[str, str] = {
    "mask_traps": """
        two_axes_of_three other_ways_to_count
    """,
    "masks": """
        how_many_are_selected divides_by_how_many counts_by_where counts_by_nonzero
    """,
}
PENDING = frozenset(
    f"{family}.{name}" for family, names in _BY_FAMILY.items() for name in names.split()
)

# Programs whose results differ from eager: faults that are known, and must be repaired.
WRONG: frozenset[str] = frozenset()
