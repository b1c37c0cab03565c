"""Say which versions of torch and Python are tested, and how they differ."""

from __future__ import annotations

import functools
import sys
from typing import Any

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


@functools.cache
def stores_check_halves() -> bool:
    """Whether ``x[...] = 70000`` raises for float16 on the CPU, which it does from torch 2.15."""
    with torch.inference_mode():
        try:
            torch.zeros(2, dtype=torch.float16, device="cpu")[...] = 70000  # one element may
        except RuntimeError:
            return True
    return False


@functools.cache
def clamp_gradients() -> tuple[tuple[bool, bool], tuple[bool, bool]] | None:
    """Where the gradient of ``x.clamp(…)`` by a number passes, if not where one by a tensor does.

    They differ in torch 2.15.

    Returns:
        For the lower and the upper bound: whether it passes at an element equal to the bound, and
        at one that is NaN; None if numbers and tensors bound alike, by a NaN, too.
    """
    if not clamps_to_nan():
        return None  # their own case, whose gradients agree
    number, nan = 1.0, float("nan")
    kinds = []
    for name in ("min", "max"):
        for bound in (number, nan):
            made = [
                _clamp_gradient(**{name: bound}),
                _clamp_gradient(**{name: torch.tensor(bound)}),
            ]
            kinds.append((made[0], made[0] == made[1]))
    if all(alike for _, alike in kinds):
        return None
    (low, _), _, (high, _), _ = kinds
    return (low[0] == 1, low[1] == 1), (high[0] == 1, high[1] == 1)


def _clamp_gradient(**bounds: Any) -> list[float]:
    """For elements equal to one, NaN, smaller, and larger."""
    with torch.inference_mode(False), torch.enable_grad():
        x = torch.tensor([1.0, float("nan"), 0.0, 2.0], device="cpu", requires_grad=True)
        (found,) = torch.autograd.grad(x.clamp(**bounds).sum(), x)
    return list(found.tolist())


def version_text() -> tuple[str, str, str]:
    """The running torch, the running Python, and the tested ranges, as text."""
    low, high = (".".join(map(str, v)) for v in TESTED_TORCH)
    py_low, py_high = (".".join(map(str, v)) for v in TESTED_PYTHON)
    python = ".".join(map(str, sys.version_info[:3]))
    return torch.__version__, python, f"torch {low} to {high} with Python {py_low} to {py_high}"
