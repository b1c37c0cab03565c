"""NVRTC itself, which needs no device: what it makes of a source, and what it says of a wrong one."""

from __future__ import annotations

import ctypes

import pytest
import torch

from fusepass.torch_private.cuda import nvrtc
from tests.kernels.nvrtc import library_path, needs_nvrtc


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """That which pip installed, as a torch for CUDA has one."""
    found = ctypes.CDLL(str(library_path()))
    monkeypatch.setattr(nvrtc, "_library", lambda: found)


@needs_nvrtc
def test_a_binary(library: None) -> None:
    plain = "template <int N> __global__ void add(float* x) { x[threadIdx.x] += N; }"
    binary, entry = nvrtc.binary_of(plain, "add<3>", "90a")
    assert binary.startswith(b"\x7fELF")
    assert entry.encode() in binary
    assert entry != "add<3>"
    _, named = nvrtc.binary_of('extern "C" __global__ void one() {}', "one", "80")
    assert named == "one"


@needs_nvrtc
@pytest.mark.parametrize(
    ("source", "architecture", "said"),
    [
        ("__global__ void one() { two(); }", "80", "two"),
        ("__global__ void two() {}", "80", "one"),
        ("__global__ void one() {}", "12345", "nvrtcCompileProgram"),
    ],
)
def test_what_it_refuses(library: None, source: str, architecture: str, said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        nvrtc.binary_of(source, "one", architecture)


def test_a_torch_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    nvrtc.is_there.cache_clear()
    assert not nvrtc.is_there()
    nvrtc.is_there.cache_clear()
    with pytest.raises(RuntimeError, match="CUDA only"):
        nvrtc.binary_of("", "one", "80")
