"""The page of measurements: it is what the records say, losing rows too."""

from __future__ import annotations

import re

import pytest

from tests.perf.performance_page import (
    TOPICS,
    anchor,
    number,
    outputs,
    page,
    ratio,
    read,
    table,
)


def test_generated_files_are_up_to_date() -> None:
    stale = [path.name for path, text in outputs().items() if path.read_text() != text]
    assert stale == [], "run python -m tests.perf.performance_page"


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.record)
def test_every_row_of_a_record_is_shown(topic: object) -> None:
    text, ratios = table(topic)
    labels = [label for label, _ in topic.rows(read(topic.record))]
    assert labels
    shown = [line.split(" | ")[0][2:] for line in text.splitlines()[2:]]
    if topic.split is not None:
        assert shown == list(dict.fromkeys(topic.split(label)[0] for label in labels))
        assert len(ratios) == text.count("×)") == len(labels)
    else:
        assert shown == labels
        assert len(ratios) == len([row for row in text.splitlines()[2:] if "×)" in row])


def test_each_row_of_a_record_is_in_some_topic() -> None:
    record = read("reductions-h200-torch2.11")["rows"]
    topics = [topic for topic in TOPICS if topic.record == "reductions-h200-torch2.11"]
    shown = [label for topic in topics for label, _ in topic.rows({"rows": record})]
    assert sorted(shown) == sorted(record)


def test_losing_rows_are_on_the_page() -> None:
    ratios = [float(found) for found in re.findall(r"\((\d+\.\d\d)×\)", page())]
    assert min(ratios) < 1 < max(ratios)


def test_ratio_is_taken_in_the_same_mode() -> None:
    times = {"Inductor": 8.0, "fusepass": 4.0, "Inductor, called": 9.0, "fusepass, called": 18.0}
    assert ratio(times, "fusepass", "Inductor") == 2
    assert ratio(times, "fusepass, called", "Inductor") == 0.5
    assert ratio(times, "Inductor", "Inductor") is None
    assert ratio({"Inductor": 8.0, "fusepass": None}, "fusepass", "Inductor") is None


def test_links_of_the_contents_lead_to_headings() -> None:
    text = page()
    for target in re.findall(r"\]\(#([^)]*)\)", text):
        assert target in {anchor(title) for title in re.findall(r"^## (.*)$", text, re.MULTILINE)}


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1,234"), (123.4, "123"), (12.34, "12.3"), (1.234, "1.23")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text
