"""Programs whose decisions are promised but not made yet: it must get empty."""

from __future__ import annotations

_BY_FAMILY: dict[str, str] = {
    "print_traps": """
        text_returned text_held_and_printed pretty_printed
    """,
    "prints_kept": """
        before_a_list_changes writes_to_stdout between_two_side_effects
    """,
}
PENDING = frozenset(
    f"{family}.{name}" for family, names in _BY_FAMILY.items() for name in names.split()
)

# Programs whose results differ from eager: faults that are known, and must be repaired.
WRONG: frozenset[str] = frozenset()
