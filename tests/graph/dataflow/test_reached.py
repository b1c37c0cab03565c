"""What leads on from something is met once, and only as far as it is asked for."""

from __future__ import annotations

from fusepass.graph.dataflow.reached import reached

LEADS = {"a": "bc", "b": "d", "c": "d", "d": "a", "e": ""}


def test_each_is_met_once() -> None:
    found = list(reached("a", LEADS.__getitem__))
    assert sorted(found) == ["a", "b", "c", "d"]


def test_without_a_start_there_is_nothing() -> None:
    assert list(reached((), LEADS.__getitem__)) == []


def test_the_same_start_twice() -> None:
    assert list(reached("ee", LEADS.__getitem__)) == ["e"]


def test_what_is_not_wanted_is_not_asked() -> None:
    asked = []

    def further(one: str) -> str:
        asked.append(one)
        return LEADS[one]

    assert any(one in "bc" for one in reached("a", further))
    assert asked == ["a"]


def test_as_many_paths_as_nobody_could_walk() -> None:
    """Each number leads to the two below it."""
    assert sum(reached([200], lambda n: [n - 1, n - 2] if n > 1 else [])) == 200 * 201 // 2
