"""What Inductor's cache keys contain of ours: all that can change a graph, and nothing else."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from fusepass.default_rules import default_rules
from fusepass.inductor import passes
from fusepass.options import resolve


def identity(**options: Any) -> str | None:
    return passes.pass_uuid(resolve(given=options), default_rules())


def test_same_again() -> None:
    assert identity() == identity() is not None


def test_changed_engine_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity()
    monkeypatch.setattr(passes, "_engine_source", lambda: b"more")
    assert identity() not in (before, None)


def test_a_changed_file_in_any_folder_changes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes = {"PACKAGE": passes.PACKAGE}
    for package in (passes.patterns, passes.kernels):
        homes[package.__name__] = Path(str(package.__file__)).parent
    for name, home in homes.items():
        copy = tmp_path / name
        shutil.copytree(home, copy, ignore=shutil.ignore_patterns("__pycache__"))
        if name == "PACKAGE":
            monkeypatch.setattr(passes, "PACKAGE", copy)
        else:
            monkeypatch.setattr(sys.modules[name], "__file__", str(copy / "__init__.py"))
    seen = {passes._engine_source.__wrapped__()}
    folders = {path.parent for path in tmp_path.rglob("*.py")}
    assert len(folders) > len(homes)
    for folder in sorted(folders):
        with max(folder.glob("*.py")).open("a") as file:
            file.write("# more\n")
        found = passes._engine_source.__wrapped__()
        assert found not in seen, folder
        seen.add(found)


@pytest.mark.parametrize(
    "options",
    [
        {"rules": {"branch": False}},
        {"treatment": "cond"},
        {"candidate": "reference"},
        {"codegen": "eager"},
        {"mode": "max-autotune"},
        {"verify": False},
    ],
)
def test_options_change_it(options: dict[str, Any]) -> None:
    assert identity(**options) != identity()


def test_version_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity()
    monkeypatch.setattr(passes, "VERSION", "0.0.0")
    assert identity() != before
