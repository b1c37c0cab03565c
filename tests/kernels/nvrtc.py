"""NVRTC without a device: whether CUDA C++ compiles."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

import pytest

ARCHITECTURES = ["sm_80", "sm_90", "sm_100"]


def library_path() -> Path | None:
    """Where pip has put it."""
    found = importlib.util.find_spec("nvidia")
    places = [] if found is None else list(found.submodule_search_locations or [])
    for place in places:
        for library in sorted(Path(place).glob("*/lib/libnvrtc.so*")):
            return library
    return None


needs_nvrtc = pytest.mark.skipif(
    library_path() is None, reason="needs NVRTC (pip install nvidia-cuda-nvrtc-cu12)"
)


def compile_error(text: str, architecture: str) -> str | None:
    """What NVRTC has against a text; None if it compiles."""
    library = ctypes.CDLL(str(library_path()))
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"x.cu", 0, None, None)
    option = (ctypes.c_char_p * 1)(f"--gpu-architecture={architecture}".encode())
    failed = library.nvrtcCompileProgram(program, 1, option)
    log = ctypes.create_string_buffer(1 << 16)
    library.nvrtcGetProgramLog(program, log)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return log.value.decode() if failed else None
