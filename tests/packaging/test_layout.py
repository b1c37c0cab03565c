"""Folders, the package list and the wheel say the same; files stay within their limits."""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SOURCE_FOLDERS = ("fusepass", "patterns", "kernels", "examples", "tests", ".ci")
MOST_LINES = 700
MOST_LINES_OF_A_FUNCTION = 60
MOST_FILES = 30


Sources = Callable[..., dict[str, str]]


def test_every_folder_with_code_is_a_listed_package(
    root: Path, package_dirs: dict[str, Path], sources: Sources
) -> None:
    # An editable install finds a folder that the list lacks; a wheel silently leaves it out.
    on_disk = {(root / file).parent for file in sources("fusepass", "patterns", "kernels")}
    assert set(package_dirs.values()) == on_disk
    assert sorted(package_dirs) == list(package_dirs), "keep the list in order"


def test_every_package_has_an_init(package_dirs: dict[str, Path]) -> None:
    missing = [name for name, path in package_dirs.items() if not (path / "__init__.py").exists()]
    assert not missing


def test_a_folder_has_at_most_thirty_files(package_dirs: dict[str, Path]) -> None:
    """A room whose files one look takes in."""
    counts = {name: len(list(path.glob("*.py"))) for name, path in package_dirs.items()}
    assert {name: count for name, count in counts.items() if count > MOST_FILES} == {}


def test_the_top_of_the_package_is_the_road_of_a_graph(root: Path) -> None:
    names = {file.name for file in (root / "fusepass").glob("*.py")}
    assert names == {
        *("__init__.py", "__main__.py", "backend.py", "default_rules.py"),
        *("errors.py", "numerics.py", "options.py"),
    }


@pytest.mark.parametrize("folder", ["patterns", "kernels"])
def test_top_level_folders_are_inert(root: Path, folder: str) -> None:
    body = ast.parse((root / folder / "__init__.py").read_text()).body
    # transformers imports a top-level `kernels` by its bare name when it looks for its own library.
    assert [type(statement) for statement in body] == [ast.Expr], "a docstring and nothing else"


def test_only_fusepass_is_installed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        top = {name.split("/")[0] for name in archive.namelist()}
    (metadata,) = (name for name in top if name.endswith(".dist-info"))
    assert top == {"fusepass", metadata}


def test_wheel_holds_each_source_file_and_no_other(
    wheel: Path, package_dirs: dict[str, Path]
) -> None:
    expected = {
        f"{name.replace('.', '/')}/{path.name}"
        for name, folder in package_dirs.items()
        for path in folder.glob("*.py")
    }
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    tables = (Path(__file__).parents[2] / "fusepass/tune/shipped").glob("*.json")
    expected |= {f"fusepass/tune/shipped/{path.name}" for path in tables}
    assert found == expected | {"fusepass/py.typed"}


def test_wheel_names_the_entry_points_and_licence(wheel: Path, pyproject: dict[str, Any]) -> None:
    prefix = f"fusepass-{pyproject['project']['version']}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        entry_points = archive.read(f"{prefix}/entry_points.txt").decode().strip()
        licence = archive.read(f"{prefix}/licenses/LICENSE").decode()
    expected = {
        "pytest11": "fusepass = fusepass.testing.plugin",
        "torch_dynamo_backends": "fusepass = fusepass.backend:fusepass",
    }
    assert entry_points.split("\n\n") == [f"[{k}]\n{v}" for k, v in expected.items()]
    assert licence.startswith("BSD 3-Clause License")


def test_no_file_is_long(sources: Sources) -> None:
    lines = {file: len(text.splitlines()) for file, text in sources(*SOURCE_FOLDERS).items()}
    assert len(lines) > len(SOURCE_FOLDERS)
    long = {file: count for file, count in lines.items() if count > MOST_LINES}
    assert not long, f"split these by idea: over {MOST_LINES} lines"


def test_no_function_is_long(sources: Sources) -> None:
    """Its docstring counts, and so do the functions and classes in it; decorators do not."""
    lines = {
        f"{file}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for file, text in sources("fusepass", "kernels", "patterns", "tests", "examples").items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    assert lines
    long = {name: count for name, count in lines.items() if count > MOST_LINES_OF_A_FUNCTION}
    assert not long, f"split these by idea: over {MOST_LINES_OF_A_FUNCTION} lines"
