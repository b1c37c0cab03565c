"""``explain(...).syncs``: the waits left in the call that is explained."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass.report.host_syncs import residence


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is compiled runs op by op; the CPU stands in for a device on every machine."""
    monkeypatch.setattr(residence, "no_device", lambda: True)
    with fusepass.options(codegen="eager"):
        yield


def mixed(t: Tensor) -> object:
    t = t * 2 if t.sum() > 0 else t - 1
    if not t.isfinite().all():
        raise ValueError("not finite")
    return {t.mean().item(): t.nonzero()}


def rows(report: fusepass.Report) -> list[tuple[str, int, int]]:
    assert report.syncs is not None
    first = mixed.__code__.co_firstlineno
    return [(row.kind.value, row.line - first, row.remaining) for row in report.syncs]


def test_what_is_left() -> None:
    report = fusepass.explain(mixed, torch.ones(3))
    kinds = {(kind, line) for kind, line, _ in rows(report) if kind != "read_back"}
    assert kinds == {("item", 4), ("nonzero", 4)}
    assert [left for kind, _, left in rows(report) if kind == "read_back"] == [1]
    assert "the host still waits for the device:" in str(report)


def test_nothing_left() -> None:
    report = fusepass.explain(lambda t: t * 2 if t.sum() > 0 else t - 1, torch.ones(3))
    assert report.syncs == ()
    assert report.to_dict()["syncs"] == []
    assert "still waits" not in str(report)


def test_in_a_graph() -> None:
    report = fusepass.explain(lambda t: t.abs().histc(4) + 1, torch.ones(3))
    assert report.syncs is not None
    assert [(row.kind.value, row.remaining) for row in report.syncs] == [("operation", 2)]


def test_last_report_has_watched_no_call() -> None:
    compiled = torch.compile(lambda t: t * 2, backend="fusepass", options={"codegen": "eager"})
    compiled(torch.ones(3))
    report = fusepass.last_report(compiled)
    assert report.syncs is None
    assert report.to_dict()["syncs"] is None
