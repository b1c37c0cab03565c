"""A cache folder that cannot be written to, or holds garbage: a warning at most, and a working program."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._dynamo.utils import counters

import fusepass
from fusepass import errors
from fusepass.inductor import cache_folder
from fusepass.inductor.retry_without_rules import compiled_or_without_rules
from fusepass.options import Options
from fusepass.report import cached_decisions
from fusepass.report.log import GraphRecord

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
    cache_folder.ensure_writable()
    assert os.environ[VARIABLE] == str(cache_dir)
    assert list(cache_dir.iterdir()) == []


def test_a_folder_is_tried_once(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[str]()
    temporary_file = cache_folder.tempfile.TemporaryFile

    def counted(**given: Any) -> Any:
        tried.append(given["dir"])
        return temporary_file(**given)

    monkeypatch.setattr(cache_folder.tempfile, "TemporaryFile", counted)
    cache_folder.ensure_writable()
    cache_folder.ensure_writable()
    assert tried == [str(cache_dir)]
    other = cache_dir / "another"
    monkeypatch.setenv(VARIABLE, str(other))
    cache_folder.ensure_writable()
    assert tried == [str(cache_dir), str(other)]


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
    before = cached_decisions.snapshot()
    for text in ("not json", '[{"station": "moon"}]', '{"a": 1}', "[3]"):
        counters["inductor"][cached_decisions._PREFIX + text] += 1
    assert cached_decisions.decisions_since(before) == []
    assert caplog.text.count("cannot read") == 4


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()  # a library that this process has loaded stays as it is
    path.write_bytes(content[: len(content) // 2])


@pytest.mark.sampled(3)
def test_damaged_code_is_named_and_compiled_elsewhere(cache_dir: Path, tmp_path: Path) -> None:
    """A damaged module ends a compile; a damaged library Inductor makes again."""
    script = tmp_path / "program.py"
    script.write_text(
        "import warnings, torch\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    f = torch.compile(lambda x: torch.sin(x) * 2, backend='fusepass')\n"
        "    print(f(torch.zeros(9)).sum().item())\n"
        "    print(f(torch.zeros(3, 3, 2)).sum().item())\n"
        "for one in caught:\n"
        "    if one.category.__module__.startswith('fusepass'): print(one.message)\n"
    )

    def output() -> str:
        environment = {**os.environ, VARIABLE: str(cache_dir)}
        done = subprocess.run(
            [sys.executable, str(script)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert output() == "0.0\n0.0\n"
    for path in [p for p in cache_dir.rglob("*") if p.suffix in (".py", ".so")]:
        cut(path)
    numbers, said = output().split("0.0\n")[:2], output().split("0.0\n")[-1]
    assert numbers == ["", ""]
    assert f"{cache_dir}/" in said
    assert "is damaged" in said
    assert "Delete the file" in said
    assert "rules" not in said
    assert said.count("\n") == 1, "said once: the process goes on in a folder of its own"


def test_what_names_no_file_of_the_folder_is_not_blamed_on_it(cache_dir: Path) -> None:
    assert cache_folder.damaged_file_advice(ValueError("no such loop")) is None
    assert cache_folder.damaged_file_advice(ValueError(f"{cache_dir}")) is None
    inner = OSError(f"{cache_dir}/ab/cdef.so: file too short")
    outer = RuntimeError("InductorError")
    outer.__cause__ = inner
    said = cache_folder.damaged_file_advice(outer)
    assert isinstance(said, errors.CacheDamaged)
    assert said.path == f"{cache_dir}/ab/cdef.so"


def test_empty_module_is_named(cache_dir: Path) -> None:
    module = ModuleType("generated")
    module.__file__ = f"{cache_dir}/ab/cdef.py"
    with pytest.raises(AttributeError) as caught:
        module.call  # noqa: B018 - what Inductor asks a generated module for
    said = cache_folder.damaged_file_advice(caught.value)
    assert isinstance(said, errors.CacheDamaged)
    assert said.path == f"{cache_dir}/ab/cdef.py"


def test_what_a_damaged_file_stopped_is_compiled_elsewhere(cache_dir: Path) -> None:
    """And all that comes after it in this process."""
    folders = list[str]()
    made = fx.symbolic_trace(lambda x: x + 1)

    def compiled(options: Options) -> Callable[..., object]:
        folders.append(os.environ[VARIABLE])
        if folders[-1] == str(cache_dir):
            raise OSError(f"{cache_dir}/ab/cdef.so: file too short")
        return made

    gm = fx.symbolic_trace(lambda x: x + 1)
    with pytest.warns(errors.CacheDamaged, match="is damaged") as caught:
        for _ in range(2):
            given = gm, GraphRecord("f", "", 0), Options(), compiled
            assert compiled_or_without_rules(*given) is made
    (warning,) = caught
    assert f"{cache_dir}/ab/cdef.so" in str(warning.message)
    assert "Delete the file" in str(warning.message)
    first, *later = folders
    assert first == str(cache_dir)
    assert len(later) == 2
    assert len(set(later)) == 1


def test_full_disk_is_no_damage(cache_dir: Path) -> None:
    full = OSError(28, "No space left on device", f"{cache_dir}/ab/cdef.cpp")
    said = cache_folder.damaged_file_advice(full)
    assert isinstance(said, errors.CacheUnusable)
    assert "No space left on device" in str(said)


def test_folder_is_left_and_gone_back_to(cache_dir: Path) -> None:
    go_back = cache_folder.use_temporary_folder()
    assert os.environ[VARIABLE] != str(cache_dir)
    go_back()
    assert os.environ[VARIABLE] == str(cache_dir)


def test_other_failures_are_not_the_cache_folder_s(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph that does not compile in an empty folder either is compiled without the rules."""
    calls = list[str]()

    def compiled(options: Options) -> Callable[..., object]:
        calls.append(os.environ[VARIABLE])
        if len(calls) < 3:
            raise OSError(f"{cache_dir}/ab/cdef.so: wrong symbol")
        return lambda: None

    gm = fx.symbolic_trace(lambda x: x + 1)
    with pytest.warns(errors.InductorFault, match="wrong symbol"):
        compiled_or_without_rules(gm, GraphRecord("f", "", 0), Options(), compiled)
    assert calls[0] == calls[2] == str(cache_dir)
    assert calls[1] != str(cache_dir)
