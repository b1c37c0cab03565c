"""examples/find_syncs.py: the lines it says wait do, and its second version does not."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from fusepass.report.host_syncs import residence


@pytest.fixture
def find_syncs(example: Callable[[str], ModuleType]) -> ModuleType:
    """The example."""
    return example("find_syncs")


@pytest.fixture
def result(find_syncs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """One run on the CPU."""
    monkeypatch.setattr(residence, "no_device", lambda: True)
    return find_syncs.run("cpu", codegen="eager")


def line_of(function: Any, text: str) -> int:
    """The line of a function that has ``text``."""
    lines, first = inspect.getsourcelines(function)
    (number,) = (first + n for n, line in enumerate(lines) if text in line)
    return number


def test_each_line_is_found(find_syncs: ModuleType, result: dict[str, Any]) -> None:
    step, forward = find_syncs.step, find_syncs.Model.forward
    found = {(row.line, row.kind.value): row for row in result["step"]}
    assert {
        (line_of(forward, "isinf"), "branch"),
        (line_of(step, ".item()"), "item"),
        (line_of(step, ".to(tokens.device)"), "copy_in"),
        (line_of(step, "cross_entropy"), "nonzero"),
        (line_of(step, "print"), "print"),
    } == {key for key, row in found.items() if row.count}
    assert found[line_of(forward, "isinf"), "branch"].count == 3
    assert found[line_of(step, "cross_entropy"), "nonzero"].count == 2


def test_what_remains_has_advice(result: dict[str, Any]) -> None:
    assert all(row.instead for row in result["step"].remaining)


def test_better_version(result: dict[str, Any]) -> None:
    assert result["better"].remaining == ()
    assert [(row.kind.value, row.count) for row in result["better"]] == [("branch", 3)]
    first, second = result["losses"]
    assert first == pytest.approx(second, rel=1e-5)


def test_what_is_printed(
    find_syncs: ModuleType,
    result: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(find_syncs, "run", lambda _: result)
    capsys.readouterr()
    assert find_syncs.main([]) == 0
    printed = capsys.readouterr().out
    assert str(result["step"]) in printed
    assert "find_syncs.py" in printed


@pytest.mark.gpu
def test_on_cuda(find_syncs: ModuleType) -> None:
    result = find_syncs.run("cuda")
    kinds = {row.kind.value for row in result["step"] if row.count}
    assert {"branch", "item", "copy_in", "nonzero", "print"} <= kinds
    assert result["better"].remaining == ()
    assert all(row.wait_us is not None for row in result["step"] if row.count)
    assert torch.cuda.get_sync_debug_mode() == 0
