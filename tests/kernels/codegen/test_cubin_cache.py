"""Binaries of kernels, kept for other processes: what is compiled again, and what is not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fusepass.errors import CacheNotPrivate
from fusepass.kernels.codegen import cubin_cache
from fusepass.tune import cache_files


class Compiler:
    """Counts what it compiles, and loads what it compiled."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.refuses: list[bytes] = []

    def binary_of(self, source: str, name: str, architecture: str) -> tuple[bytes, str]:
        self.compiled.append(source)
        return f"{source} for {architecture}\n\0end".encode(), f"_{name}"

    def loaded(self, binary: bytes, entry: str) -> Any:
        if binary in self.refuses:
            raise RuntimeError("invalid device function")
        return binary, entry


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    made = Compiler()
    nvrtc = SimpleNamespace(binary_of=made.binary_of, loaded=made.loaded)
    monkeypatch.setattr(cubin_cache, "nvrtc", nvrtc)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setenv("FUSEPASS_CACHE_DIR", str(tmp_path))
    return made


def only(folder: Path) -> Path:
    (path,) = (folder / "cubins").iterdir()
    return path


def test_a_kernel_is_compiled_once(compiler: Compiler, tmp_path: Path) -> None:
    first = cubin_cache.load_or_compile("source", "name")
    assert first == (b"source for 90\n\0end", "_name")
    assert cubin_cache.load_or_compile("source", "name") == first
    assert compiler.compiled == ["source"]
    assert only(tmp_path).suffix == ".cubin"


def test_cache_key_has_source_and_architecture(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [
        cubin_cache.load_or_compile("source", "name"),
        cubin_cache.load_or_compile("source", "name", "90a"),
    ]
    assert made[1] == (b"source for 90a\n\0end", "_name")
    cubin_cache.load_or_compile("another", "name")
    cubin_cache.load_or_compile("source", "other")
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    cubin_cache.load_or_compile("source", "name")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))
    assert cubin_cache.load_or_compile("source", "name")[0] == b"source for 80\n\0end"
    assert len(compiler.compiled) == 6


@pytest.mark.parametrize("left", [0, 10, 70, -1])
def test_half_a_file_is_compiled_again(compiler: Compiler, tmp_path: Path, left: int) -> None:
    """And replaced: as a full disk or a killed process leaves it, at whatever byte."""
    want = cubin_cache.load_or_compile("source", "name")
    path = only(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:left])
    assert cubin_cache.load_or_compile("source", "name") == want
    assert path.read_bytes() == whole
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert cubin_cache.load_or_compile("source", "name") == want
    assert len(compiler.compiled) == 3


def test_what_the_driver_refuses_is_compiled_again(compiler: Compiler) -> None:
    made, _ = cubin_cache.load_or_compile("source", "name")
    compiler.refuses.append(made)
    with pytest.raises(RuntimeError, match="invalid device function"):
        cubin_cache.load_or_compile("source", "name")
    assert len(compiler.compiled) == 2


@pytest.mark.parametrize("which", [".", "cubins", "file"])
def test_what_others_could_have_written_is_not_loaded(
    compiler: Compiler, tmp_path: Path, which: str
) -> None:
    cache_files._warn_not_private.cache_clear()
    want = cubin_cache.load_or_compile("source", "name")
    path = only(tmp_path) if which == "file" else tmp_path / which
    path.chmod(0o777)
    with pytest.warns(CacheNotPrivate) as caught:
        assert [cubin_cache.load_or_compile("source", "name") for _ in range(2)] == [want] * 2
    assert len(caught) == 1
    assert len(compiler.compiled) == (2 if which == "file" else 3), "a new file is this user's"
    path.chmod(0o700)


def test_kernels_compile_without_a_writable_cache(compiler: Compiler, tmp_path: Path) -> None:
    """Nothing is kept, and nothing is said: the kernel is there all the same."""
    (tmp_path / "cubins").write_text("a file where a folder should be")
    want = b"source for 90\n\0end", "_name"
    assert [cubin_cache.load_or_compile("source", "name") for _ in range(2)] == [want] * 2
    assert len(compiler.compiled) == 2
