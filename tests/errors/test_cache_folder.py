"""A cache folder that cannot be written to, or holds garbage: a warning at most, and a working program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

import fusepass
from fusepass import cache_check, errors
from fusepass.report import artifact

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def product(x: Tensor, w: Tensor) -> Tensor:
    return x @ w  # one library call: no C++ to compile


def run() -> None:
    torch.compiler.reset()
    x, w = torch.randn(3, 3), torch.randn(3, 3)
    compiled = torch.compile(product, backend="fusepass")
    torch.testing.assert_close(compiled(x, w), x @ w)
    assert [d.station for d in fusepass.last_report(compiled).decisions] == ["hand_off", "after"]


@pytest.fixture
def below_a_file(cache_dir: Path) -> Path:
    """A folder nobody can make, whatever the user's rights: its parent is a file.

    torch.compile itself raises on such a folder, so it is set between compile and call; a folder
    that exists and takes no files is what gets as far as a backend.
    """
    cache_dir.mkdir()
    (cache_dir / "file").write_text("a file")
    return cache_dir / "file" / "cache"


def test_unwritable_folder_warns_once_and_the_program_works(
    below_a_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = torch.compile(product, backend="fusepass", dynamic=False)
    monkeypatch.setenv(VARIABLE, str(below_a_file))
    with pytest.warns(errors.CacheUnusable) as caught:
        for size in (2, 3):
            x, w = torch.randn(size, size), torch.randn(size, size)
            torch.testing.assert_close(compiled(x, w), x @ w)
    (warning,) = (w for w in caught if w.category is errors.CacheUnusable)
    text = str(warning.message)
    assert str(below_a_file) in text
    assert "Not a directory" in text
    assert Path(os.environ[VARIABLE]).is_dir()
    run()


def test_checked_before_inductor_runs_only(
    below_a_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = torch.compile(product, backend="fusepass", options={"codegen": "eager"})
    monkeypatch.setenv(VARIABLE, str(below_a_file))
    compiled(torch.ones(2, 2), torch.ones(2, 2))
    assert os.environ[VARIABLE] == str(below_a_file)


def test_writable_folder_is_left_alone(cache_dir: Path) -> None:
    cache_check.ensure_writable()
    assert os.environ[VARIABLE] == str(cache_dir)
    assert list(cache_dir.iterdir()) == []


def test_folder_is_asked_once(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache_check.ensure_writable()
    monkeypatch.setattr(cache_check.tempfile, "TemporaryFile", None)  # would raise when called
    cache_check.ensure_writable()


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs Linux's read-only /sys")
def test_read_only_folder_in_a_process_of_its_own(tmp_path: Path) -> None:
    """/sys takes no file from anybody, root included."""
    script = tmp_path / "program.py"
    script.write_text(
        "import torch\n"
        "f = torch.compile(lambda x, w: x @ w, backend='fusepass')\n"
        "print(f(torch.eye(2), torch.ones(2, 2)).sum().item())\n"
    )
    environment = {**os.environ, VARIABLE: "/sys/kernel"}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "4.0\n"
    assert done.stderr.count("CacheUnusable") == 1


def test_damaged_entries_are_compiled_again(cache_dir: Path) -> None:
    run()
    entries = [
        path
        for kind in ("fxgraph", "aotautograd")
        for path in (cache_dir / kind).rglob("*")
        if path.is_file()
    ]
    assert len(entries) >= 2
    for path in entries:
        path.write_bytes(b"garbage")
    counters.clear()
    run()
    assert counters["inductor"]["fxgraph_cache_hit"] == 0
    assert counters["inductor"]["fxgraph_cache_miss"] == 1


def test_artifact_of_another_version_is_told_from_ours(
    cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A report inside a cached graph that this version cannot read costs the lines, no more."""
    before = artifact.snapshot()
    for text in ("not json", '[{"station": "moon"}]', '{"a": 1}', "[3]"):
        counters["inductor"][artifact._PREFIX + text] += 1
    assert artifact.decisions_since(before) == []
    assert caplog.text.count("cannot read") == 4
