"""The README's two commands can be found, run the right files, and are what the pipeline runs."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def helper(root: Path) -> ModuleType:
    """.ci/readme_command.py as a module."""
    path = root / ".ci" / "readme_command.py"
    spec = importlib.util.spec_from_file_location("readme_command", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "extra", "runs"),
    [("quickstart", "examples", "python examples/quickstart.py"), ("test", "test", "pytest")],
)
def test_command_is_one_chain(
    helper: ModuleType, root: Path, name: str, extra: str, runs: str
) -> None:
    line = helper.command(name, (root / "README.md").read_text())
    make, install, run = line.split(" && ")
    assert make == "python3 -m venv .venv"
    assert install == f".venv/bin/pip install -c constraints-cpu.txt -e '.[{extra}]'"
    assert run.startswith(f".venv/bin/{runs}")


def test_redirected_command_keeps_its_words(helper: ModuleType, root: Path) -> None:
    line = helper.command("test", (root / "README.md").read_text())
    moved = helper.redirect(line, "/elsewhere/venv", "/dist/fusepass-1.whl")
    assert ".venv" not in moved
    assert "'/dist/fusepass-1.whl[test]'" in moved
    back = moved.replace("/elsewhere/venv", ".venv")
    assert back.replace("'/dist/fusepass-1.whl[test]'", "-e '.[test]'") == line


@pytest.mark.parametrize(
    "line", ["pytest", ".venv/bin/pip install . && .venv/bin/pytest", "pip install -e '.[test]'"]
)
def test_redirection_refuses_what_it_does_not_know(helper: ModuleType, line: str) -> None:
    with pytest.raises(ValueError, match="cannot redirect"):
        helper.redirect(line, "/elsewhere/venv", "/dist/fusepass-1.whl")


def test_missing_or_doubled_command_is_an_error(helper: ModuleType) -> None:
    block = "<!-- command: test -->\n```sh\npytest\n```\n"
    assert helper.command("test", block) == "pytest"
    for text in ("", block * 2, block.replace("test -->", "other -->")):
        with pytest.raises(ValueError, match="expected one"):
            helper.command("test", text)


def test_links_are_absolute_and_lead_to_files(root: Path) -> None:
    """The package index shows the README without the repository beside it."""
    text = (root / "README.md").read_text()
    targets = re.findall(r"\]\(([^)]+)\)", text) + re.findall(r'src(?:set)?="([^"]+)"', text)
    assert len(targets) > 10
    for target in targets:
        place = re.fullmatch(
            r"https://(?:github\.com|raw\.githubusercontent\.com)/fusepass/fusepass(?:/blob)?/main/([^#]+)",
            target,
        )
        assert place is not None, target
        assert (root / place[1]).exists(), target


def test_pipeline_builds_the_site(root: Path) -> None:
    assert '/mkdocs" build -q --strict' in (root / ".ci" / "run").read_text()


def test_pipeline_runs_both_commands(root: Path) -> None:
    script = (root / ".ci" / "run").read_text()
    for name in ("quickstart", "test"):
        assert f"\nreadme_command {name}\n" in script
    assert ".ci/readme_command.py" in script
    assert "pytest" not in re.sub(r"#.*", "", script), "the command comes from the README"
    assert subprocess.run(["bash", "-n", root / ".ci" / "run"], check=False).returncode == 0


def test_helper_prints_the_command(root: Path) -> None:
    command = [sys.executable, str(root / ".ci" / "readme_command.py"), "test"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\n")
    assert ".venv/bin/pytest" in done.stdout


def test_constraints_allow_what_is_declared(root: Path) -> None:
    pins = dict(
        line.split("==")
        for line in (root / "constraints-cpu.txt").read_text().splitlines()
        if line and not line.startswith("#")
    )
    major, minor = (int(part) for part in pins["torch"].split(".")[:2])
    assert (2, 11) <= (major, minor) < (2, 16)
