"""Which versions of torch and Python run, and which were tested."""

from __future__ import annotations

import functools
import sys

import torch
import torch._dynamo
import torch._inductor

TESTED_TORCH = ((2, 11), (2, 15))
TESTED_PYTHON = ((3, 11), (3, 13))


def torch_version() -> tuple[int, int]:
    """Major and minor version of the torch that runs."""
    major, minor = torch.__version__.split("+")[0].split(".")[:2]
    return int(major), int(minor)


def capture_supported() -> bool:
    """Whether this (torch, Python) pair is one that branch capture was tested on."""
    low, high = TESTED_TORCH
    py_low, py_high = TESTED_PYTHON
    return low <= torch_version() <= high and py_low <= sys.version_info[:2] <= py_high


@functools.cache
def clamps_to_nan() -> bool:
    """Whether ``x.clamp(max=nan)`` is NaN, which it is from torch 2.13 at the latest."""
    with torch.inference_mode():
        return bool(torch.zeros((), device="cpu").clamp(max=float("nan")).isnan())


def version_text() -> tuple[str, str, str]:
    """The running torch, the running Python, and the tested ranges, as text."""
    low, high = (".".join(map(str, v)) for v in TESTED_TORCH)
    py_low, py_high = (".".join(map(str, v)) for v in TESTED_PYTHON)
    python = ".".join(map(str, sys.version_info[:3]))
    return torch.__version__, python, f"torch {low} to {high} with Python {py_low} to {py_high}"
