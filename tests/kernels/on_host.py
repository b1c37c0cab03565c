"""CUDA C++ without a device: the kernel's text compiled by g++, its threads run one after another.

For kernels whose threads do not talk to each other. Number formats that CUDA converts by PTX are
converted by g++; everything else is the text as it is, and its parameter as the launch makes it.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

# In the place of ``nvrtc._EMPTY``: as strict as that about its arguments.
empty = torch._C._dynamo.guards._empty_strided_cpu  # type: ignore[attr-defined]

_BEFORE = """\
#include <cmath>
#include <cstring>
#define __device__
#define __global__
#define __forceinline__ inline
#define __align__(n) alignas(n)
#define __grid_constant__
#define __launch_bounds__(n)
static struct { unsigned x; } blockIdx, threadIdx;
static inline float __uint_as_float(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline float of_half(unsigned short bits) {
  _Float16 x; memcpy(&x, &bits, 2); return (float)x;
}
static inline unsigned short to_half(float x) {
  _Float16 y = (_Float16)x; unsigned short bits; memcpy(&bits, &y, 2); return bits;
}
static inline unsigned short to_bfloat(float x) {
  unsigned bits; memcpy(&bits, &x, 4);
  if (x != x) return 0x7fff;
  return (unsigned short)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
"""
_PTX = {
    'asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));': "y = of_half(x.bits);",
    'asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to->bits) : "f"(x));': "to->bits = to_bfloat(x);",
    'asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to->bits) : "f"(x));': "to->bits = to_half(x);",
    'asm("{.reg .f16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}"\n'
    '      : "=f"(to[0]), "=f"(to[1]) : "r"(word));': (
        "to[0] = of_half(word & 0xffffu); to[1] = of_half(word >> 16);"
    ),
}
_BEHIND = """
extern "C" void on_host(const Table* t, unsigned blocks, unsigned threads) {
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) KERNEL(*t);
}
"""


@functools.cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="fusepass-on-host-"))


@functools.cache
def compiled(text: str, name: str) -> Any:
    """A kernel with one parameter, a ``Table`` by value; in the place of ``cubin_cache.load_or_compile``."""
    for ptx, plain in _PTX.items():
        text = text.replace(ptx, plain)
    assert "asm" not in text
    where = _folder() / hashlib.sha256(text.encode()).hexdigest()[:16]
    where.with_suffix(".cpp").write_text(_BEFORE + text + _BEHIND.replace("KERNEL", name))
    library = where.with_suffix(".so")
    options = ["-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-ffp-contract=off"]
    subprocess.run(
        ["g++", *options, str(where.with_suffix(".cpp")), "-o", str(library)], check=True
    )
    return ctypes.CDLL(str(library)).on_host


def launch(kernel: Any, blocks: int, threads: int, table: ctypes.Structure, device: int) -> None:
    """In the place of ``nvrtc.launch``."""
    kernel(ctypes.byref(table), ctypes.c_uint(blocks), ctypes.c_uint(threads))
