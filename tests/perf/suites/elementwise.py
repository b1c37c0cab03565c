"""Suite ``elementwise``: work on single elements that Inductor leaves in many kernels, or slow.

Four hundred independent updates of small tensors; ReLU and max-pooling of images, whose floor is a
copy of as many bytes as they read and write. fp32, pooling in fp16, too; on the CPU smaller.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fusepass.bench.program import Program

SIZES = (64, 128, 256, 512, 777, 1024, 2048, 4096)
UPDATES = {"cuda": 400, "cpu": 24}
IMAGES = {"cuda": ((1, 64, 256, 256), (64, 64, 112, 112)), "cpu": ((1, 8, 32, 32),)}
DTYPES = {"": torch.float32, "fp16-": torch.float16}
_SEED = 0


def updated(parameters: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
    """New tensors, each from one of each list."""
    pairs = zip(parameters, gradients, strict=True)
    return [p * 0.99 - 0.01 * g * torch.sigmoid(p) for p, g in pairs]


def updates(device: str) -> tuple[Callable[..., Any], tuple[list[Tensor], list[Tensor]]]:
    """Tensors of sizes that a fixed seed draws."""
    draw = random.Random(_SEED)
    sizes = [draw.choice(SIZES) for _ in range(UPDATES[device])]
    parameters, gradients = ([torch.randn(n, device=device) for n in sizes] for _ in range(2))
    return updated, (parameters, gradients)


def pooled(x: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, C, H / 2, W / 2)."""
    return F.max_pool2d(torch.relu(x), 2)


def pooling(
    device: str, shape: tuple[int, ...], dtype: torch.dtype
) -> tuple[Callable[..., Any], tuple[Tensor]]:
    """A batch of images."""
    return pooled, (torch.randn(shape, device=device).to(dtype),)


def copied(x: Tensor) -> Tensor:
    """What moves as many bytes: five eighths of x read, and as many written."""
    count = x.numel() * 5 // 8
    return x.view(-1)[:count].clone()


def copying(
    device: str, shape: tuple[int, ...], dtype: torch.dtype
) -> tuple[Callable[..., Any], tuple[Tensor]]:
    """The same images."""
    return copied, (torch.randn(shape, device=device).to(dtype),)


def programs(device: str) -> tuple[Program, ...]:
    """The suite, sized for ``device``."""
    count = UPDATES[device]
    found = [
        Program(f"updates-{count}", partial(updates, device), {"count": count}, branches=False)
    ]
    for shape, (kind, dtype) in itertools.product(IMAGES[device], DTYPES.items()):
        name = f"relu-max-pool-{kind}" + "x".join(map(str, shape))
        given = device, shape, dtype
        build, floor = partial(pooling, *given), partial(copying, *given)
        sizes = {"shape": shape, "dtype": str(dtype)}
        found.append(Program(name, build, sizes, floor=floor, branches=False))
    return tuple(found)
