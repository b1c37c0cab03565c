"""Whole programs on a machine without a device: models of other libraries, and a sampler."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import torch

import fusepass
from fusepass.report.host_syncs import residence
from fusepass.report.host_syncs.api import listed
from fusepass.report.host_syncs.result import Syncs

PROGRAMS = Path(__file__).resolve().parents[2] / "gpu" / "sync_programs.py"


@pytest.fixture(scope="module")
def programs() -> ModuleType:
    """tests/gpu/sync_programs.py as a module."""
    spec = importlib.util.spec_from_file_location("sync_programs", PROGRAMS)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["sync_programs"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU stands in for a device on every machine."""
    monkeypatch.setattr(residence, "no_device", lambda: True)


def eagerly(programs: ModuleType, name: str) -> Syncs:
    fn, args, kwargs = programs.PROGRAMS[name]("cpu", True)
    with torch.no_grad():
        return listed(fn, args, kwargs, with_fusepass=False)


def functions(found: Syncs) -> Counter[str]:
    """How often the host waits, by function and kind."""
    counts: Counter[str] = Counter()
    for row in found:
        tree = ast.parse(Path(row.file).read_text())
        around = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.lineno <= row.line <= node.end_lineno
        ]
        counts[f"{max(around, key=lambda node: node.lineno).name} {row.kind.value}"] += row.count
    return counts


def test_sampler_each_line_and_no_other(programs: ModuleType) -> None:
    found = eagerly(programs, "sampler")
    assert {(row.line, row.kind.value) for row in found} == programs.tagged_lines()
    assert {row.file for row in found} == {str(PROGRAMS)}
    by_kind = Counter[str]()
    for row in found:
        by_kind[row.kind.value] += row.count
    assert by_kind == {
        "copy_in": 2 + 1 + 2,
        "nonzero": 4 + 4 * 2,
        "item": 4,
        "branch": 4 + 4,
        "print": 2,
        "copy_out": 1,
    }


def test_sampler_with_fusepass(programs: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    fn, args, kwargs = programs.PROGRAMS["sampler"]("cpu", True)
    with torch.no_grad(), fusepass.options(codegen="eager"):
        found = fusepass.syncs(fn, *args, **kwargs)
    assert capsys.readouterr().out.count("step 0") == 1
    rows = {(row.line, row.kind.value): row for row in found}
    assert programs.tagged_lines() <= set(rows)
    assert all(row.instead for row in found if row.remaining)


def test_bart_guards_each_layer(programs: ModuleType) -> None:
    pytest.importorskip("transformers")
    found = eagerly(programs, "bart")
    counts = functions(found)
    assert counts["forward branch"] == 2  # the guards of the encoder layers, in half precision
    assert all("transformers" in row.file for row in found)
    assert {row.kind.value for row in found} == {"branch"}


def test_detr(programs: ModuleType) -> None:
    pytest.importorskip("transformers")
    assert {row.kind.value for row in eagerly(programs, "detr")} <= {"branch"}


def test_mask_rcnn(programs: ModuleType) -> None:
    pytest.importorskip("torchvision")
    counts = functions(eagerly(programs, "mask_rcnn"))
    assert counts["remove_small_boxes nonzero"] >= 2
    assert counts["normalize copy_in"] == 2
    assert counts["paste_mask_in_image item"] >= 4 * 2
