"""What is installed is what the checkout says, and it can be found without importing it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FIRST_USE = """
import sys
import torch

assert "fusepass" in torch.compiler.list_backends(), torch.compiler.list_backends()
assert "fusepass" not in sys.modules, "found by name, not by an import"

@torch.compile(backend="fusepass", options={"codegen": "eager"}, fullgraph=True)
def f(x):
    return torch.clamp(x, max=1.0) if x.sum() > 0 else x * 2

for x in (torch.tensor([3.0, 0.5]), torch.tensor([-3.0, 0.5])):
    expected = x.clamp(max=1.0) if x.sum() > 0 else x * 2
    assert torch.equal(f(x), expected), (f(x), expected)
assert "fusepass" in sys.modules
print("first use works")
"""


def run(program: str, where: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *flags, "-c", program]
    return subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)


def test_installed_version_is_this_one(root: Path, pyproject: dict[str, Any]) -> None:
    version = pyproject["project"]["version"]
    assert importlib.metadata.version("fusepass") == version, "reinstall: this copy is another"
    changelog = (root / "CHANGELOG.md").read_text()
    assert re.findall(r"^## \[(\d[^\]]*)\]", changelog, re.MULTILINE)[0] == version


def test_installed_package_is_typed_and_complete(package_dirs: dict[str, Path]) -> None:
    spec = importlib.util.find_spec("fusepass")
    assert spec is not None
    assert spec.origin is not None
    assert (Path(spec.origin).parent / "py.typed").exists()
    missing = [name for name in package_dirs if importlib.util.find_spec(name) is None]
    assert not missing


@pytest.mark.parametrize("name", ["torch", "networkx"])
def test_needs_are_few(pyproject: dict[str, Any], name: str) -> None:
    needs = {re.split(r"[<>=!~ ]", need)[0] for need in pyproject["project"]["dependencies"]}
    assert name in needs
    assert needs == {"torch", "networkx"}, "each further dependency has to earn its place"


def test_backend_is_found_by_name(tmp_path: Path) -> None:
    done = run(FIRST_USE, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "first use works\n"


def test_works_without_triton(tmp_path: Path) -> None:
    # None in sys.modules makes `import triton` fail, as on a CPU install.
    blocked = 'import sys\nsys.modules["triton"] = None\n'
    done = run(blocked + FIRST_USE, tmp_path)
    assert done.returncode == 0, done.stderr
    packages = "import fusepass, fusepass.patterns, fusepass.kernels\n"
    done = run(blocked + packages, tmp_path)
    assert done.returncode == 0, done.stderr


def test_works_from_the_root_of_the_checkout(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # There `fusepass`, `patterns` and `kernels` are also found in the current folder.
    spec = importlib.util.find_spec("fusepass")
    assert spec is not None
    if Path(spec.origin or "").parent.parent != root:
        pytest.skip("a wheel is installed: only an editable install is used from the checkout")
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    program = (
        "import fusepass.kernels, fusepass.patterns, sys\n"
        'assert "kernels" not in sys.modules and "patterns" not in sys.modules\n'
    )
    done = run(program, root, "-B")
    assert done.returncode == 0, done.stderr
