"""Paths in tables: short, and enough to find the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusepass.report.paths import short_path


def test_a_file_of_the_working_directory_is_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert short_path(str(tmp_path / "program.py")) == "program.py"
    assert short_path(str(tmp_path / "a" / "b" / "c" / "d.py")) == "b/c/d.py"


def test_a_file_elsewhere_keeps_three_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert short_path("/usr/lib/python3/site/torch/nn.py") == "site/torch/nn.py"
    assert short_path("<string>") == "<string>"
    assert short_path("") == ""
