"""The table itself: big enough, of every kind, and half of it must be left alone."""

from __future__ import annotations

from collections import Counter

from .pending import PENDING, WRONG
from .program import _clause
from .table import TABLE

# Issue 5, bar 1, names sixty programs; families by kind.
KINDS = {
    "scalars": ("items", "items_kept", "item_traps"),
    "prints": ("prints", "prints_kept", "print_traps"),
    "host tensors": ("host_tensors", "host_traps"),
    "masks": ("masks", "masks_kept", "mask_traps"),
    "copies": ("copies",),
}


def test_size_and_names() -> None:
    names = [program.name for program in TABLE]
    assert len(names) == len(set(names))
    families = Counter(name.split(".")[0] for name in names)
    assert set(families) == {family for kind in KINDS.values() for family in kind}
    assert families["copies"] >= 5
    for kind, members in KINDS.items():
        assert kind == "copies" or sum(families[name] for name in members) >= 20, kind


def test_what_is_removed_and_what_must_be_kept() -> None:
    removed = [
        p for p in TABLE if not p.kept and any(() not in c.values() for c in p.lines.values())
    ]
    assert len(removed) >= 60
    assert sum(program.kept for program in TABLE) >= 35


def test_pending_names_programs() -> None:
    assert {program.name for program in TABLE} >= PENDING | WRONG


def test_clauses() -> None:
    device = frozenset({("item", "device", frozenset({"on_device"}))})
    assert _clause("item device on_device") == ("", (device,))
    assert _clause("item device on_device or none") == ("", (device, frozenset()))
    assert _clause("grad: item keep size|python_value")[0] == "grad"
    assert _clause("i8: any") == ("i8", ())
