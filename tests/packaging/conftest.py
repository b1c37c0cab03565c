"""Where the source is, and one wheel built from it for all packaging tests of a run."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the checkout, or of the unpacked source distribution."""
    return ROOT


@pytest.fixture(scope="session")
def pyproject() -> dict[str, Any]:
    """pyproject.toml, parsed."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="session")
def package_dirs(pyproject: dict[str, Any]) -> dict[str, Path]:
    """Import name of each listed package to the folder it is built from."""
    tool = pyproject["tool"]["setuptools"]
    mapped = tool["package-dir"]
    return {name: ROOT / mapped.get(name, name.replace(".", "/")) for name in tool["packages"]}


@pytest.fixture(scope="session")
def sources() -> Callable[..., dict[str, str]]:
    """A function from folders to the Python files in them: path below the root to text."""

    def read(*folders: str) -> dict[str, str]:
        paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
        return {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}

    return read


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the source, with the tools already installed (no network)."""
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("setuptools is not installed, and building must not reach for the network")
    copy = tmp_path_factory.mktemp("source") / "fusepass"
    # Only what git would track: a stale build/ or egg-info would decide what the wheel holds.
    unwanted = shutil.ignore_patterns(
        ".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", "tests", "docs"
    )
    shutil.copytree(ROOT, copy, ignore=unwanted)
    out = tmp_path_factory.mktemp("dist")
    options = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check", "-q"]
    command = [sys.executable, "-m", "pip", "wheel", *options, "-w", str(out), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("fusepass-*.whl")
    return built
