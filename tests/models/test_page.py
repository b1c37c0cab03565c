"""docs/models.md and the records that it is made of."""

from __future__ import annotations

import copy
from typing import Any

from tests.models import page

WAY: dict[str, Any] = {
    "breaks": 0,
    "graphs": [1] * 6,
    "left": [],
    "compiles": 2,
    "error": "",
    "kept": [],
}
RECORD: dict[str, Any] = {
    "name": "some/Model",
    "mode": "eval",
    "torch": "2.13.0",
    "library": "some 1.0",
}


def _record(plain: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(RECORD | {"plain": WAY | plain, "fusepass": WAY | ours})


def test_page_is_made_of_the_records() -> None:
    assert page.PAGE.read_text() == page.text(page.records())


def test_one_graph_in_each_call_and_two_compiles_are_whole() -> None:
    assert page.is_whole(WAY)
    for other in ({"compiles": 3}, {"graphs": [1, 1, 2, 1, 1, 1]}, {"left": ["f"]}, {"error": "E"}):
        assert not page.is_whole(WAY | other)


def test_more_breaks_or_more_in_eager_mode_lose() -> None:
    assert page.is_loser(_record({}, {"breaks": 1}))
    assert page.is_loser(_record({"breaks": 1}, {"left": ["f"]}))
    assert not page.is_loser(_record({"breaks": 1}, {"breaks": 1}))


def test_rows_have_both_numbers_and_the_causes() -> None:
    kept = [{"code": "size"}, {"code": "size"}, {"code": "predicate"}]
    said = page.text(
        [_record({"breaks": 4, "graphs": [5] * 6}, {"breaks": 3, "graphs": [4] * 6, "kept": kept})]
    )
    assert "| some | Model | 4 → 3 | 5 → 4 | 0 | 2 | size 2, predicate 1 |" in said
    assert "4 breaks, 3 with fusepass" in said


def test_what_was_not_measured_is_named() -> None:
    assert "do not build from a small config, or take too long: some/Model." in page.text([RECORD])
