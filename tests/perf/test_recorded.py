"""Records of measurements: what is written after each row, and what stands at its head."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.perf.recorded import keeper, options


def test_each_row_is_written_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = options("Some.").parse_args(["--json", str(tmp_path / "record.json")]).json
    keep = keeper("What is measured.\n\nPrediction: 2.", path, "microseconds", "cpu")
    for name, row in (("small", {"ours": 1.5}), ("large", {"ours": 20})):
        keep(name, row)
        assert json.loads(path.read_text())["microseconds"][name] == row
        assert capsys.readouterr().out == f"{name}: {json.dumps(row)}\n"
    written = json.loads(path.read_text())
    assert list(written["microseconds"]) == ["small", "large"]
    head = json.dumps({key: value for key, value in written.items() if key != "microseconds"})
    assert "Prediction: 2." in head
    assert "torch" in head


def test_no_record_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keeper("What is measured.", options("Some.").parse_args([]).json, device="cpu")("row", 1)
    assert list(tmp_path.iterdir()) == []
