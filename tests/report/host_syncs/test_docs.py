"""docs/syncs.md says what the code has: kinds, columns, and an example that runs."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

import fusepass
from fusepass.report.host_syncs import residence
from fusepass.report.host_syncs.advice import advice
from fusepass.report.host_syncs.kinds import Kind
from fusepass.report.host_syncs.result import Sync

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "syncs.md").read_text()


def test_each_kind_has_a_section() -> None:
    kinds = PAGE.split("## Kinds")[1]
    assert re.findall(r"^### `(\w+)`$", kinds, re.MULTILINE) == [kind.value for kind in Kind]


def test_each_column_is_described() -> None:
    cells = re.findall(r"^\| (`[^|]+) \|", PAGE.split("## Columns")[1], re.MULTILINE)
    named = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted(field.name for field in fields(Sync))


def test_the_example_runs_and_finds_its_three_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "program.py"
    file.write_text(program.replace("print(", "found = ("))
    names: dict[str, object] = {}
    monkeypatch.setattr(residence, "no_device", lambda: True)
    with fusepass.options(codegen="eager"):
        exec(compile(file.read_text(), str(file), "exec"), names)
    found = names["found"]
    assert [(row.kind, row.line) for row in found] == [  # type: ignore[attr-defined]
        ("branch", 7),
        ("item", 9),
        ("nonzero", 9),
    ]


def test_each_kind_has_advice() -> None:
    for kind in Kind:
        assert advice(kind, ()).endswith(".")
