"""Suite ``linear``: a linear layer with its activation, against the linear layer alone.

With a residual besides, against the product to which the residual is added (``addmm``).

The GEMM is the floor: a perfect epilogue would cost nothing on top of it. The sizes are those of
feed-forward layers, from a small inner size, where the pass over the result takes half as long as
the GEMM, to a large one, where it hardly shows. bfloat16 with bias on CUDA; on CPU small float32
layers, which show that the programs run and nothing else.

:func:`programs` is what is timed; :func:`compile_programs` is what ``--compile-only`` compiles.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from fusepass.bench.program import Program

Model = tuple[nn.Module, tuple[torch.Tensor]]

FEED_FORWARD = (
    (8192, 1024, 4096),
    (4096, 2048, 8192),
    (4096, 4096, 14336),
    (1024, 4096, 14336),
    (256, 4096, 14336),
)
ROWS = {
    "cuda": (*FEED_FORWARD, (8192, 768, 3072), (2048, 1024, 1024)),
    "cpu": ((64, 32, 128), (16, 64, 256)),
}
DTYPE = {"cuda": torch.bfloat16, "cpu": torch.float32}
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "squared-relu": lambda x: F.relu(x).square(),
}
RESIDUAL = "silu-residual"
COMPILE_LAYERS = (4, 8, 16)


class LinearActivation(nn.Module):
    """``activation(linear(x))``."""

    def __init__(self, inner: int, columns: int, activation: str) -> None:
        super().__init__()
        self.linear = nn.Linear(inner, columns)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, inner] -> [rows, columns]."""
        return self.activation(self.linear(x))


def linear_activation(device: str, rows: int, inner: int, columns: int, activation: str) -> Model:
    """One linear layer with bias, and its activation."""
    with torch.device(device):
        model = LinearActivation(inner, columns, activation).to(DTYPE[device]).eval()
        return model, (torch.randn(rows, inner, dtype=DTYPE[device]),)


class LinearResidual(nn.Module):
    """``silu(linear(x)) + residual``."""

    def __init__(self, inner: int, columns: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inner, columns)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """[rows, inner], [rows, columns] -> [rows, columns]."""
        return F.silu(self.linear(x)) + residual


class FullSum(nn.Module):
    """``x @ weight.T + residual``, as one ``addmm``: what adding a matrix to a product takes."""

    def __init__(self, inner: int, columns: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inner, columns)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """[rows, inner], [rows, columns] -> [rows, columns]."""
        return torch.addmm(residual, x, self.linear.weight.t())


def with_residual(
    device: str, rows: int, inner: int, columns: int, kind: type[nn.Module]
) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """A linear layer to which a matrix of the result's size is added."""
    with torch.device(device):
        model = kind(inner, columns).to(DTYPE[device]).eval()
        x = torch.randn(rows, inner, dtype=DTYPE[device])
        return model, (x, torch.randn(rows, columns, dtype=DTYPE[device]))


def linear_alone(device: str, rows: int, inner: int, columns: int) -> Model:
    """The same layer, weights and input without the activation."""
    with torch.device(device):
        model = nn.Linear(inner, columns).to(DTYPE[device]).eval()
        return model, (torch.randn(rows, inner, dtype=DTYPE[device]),)


def feed_forward(device: str, rows: int, width: int, layers: int, activation: str) -> Model:
    """A stack of Linear(width, 4 width), activation, Linear(4 width, width)."""
    with torch.device(device):
        blocks: list[nn.Module] = []
        for _ in range(layers):
            blocks += [LinearActivation(width, 4 * width, activation), nn.Linear(4 * width, width)]
        model = nn.Sequential(*blocks).to(DTYPE[device]).eval()
        return model, (torch.randn(rows, width, dtype=DTYPE[device]),)


def programs(device: str) -> tuple[Program, ...]:
    """The suite, sized for ``device``."""
    found = []
    for activation in (*ACTIVATIONS, RESIDUAL):
        for rows, inner, columns in ROWS[device]:
            size = device, rows, inner, columns
            build: Callable[[], Any] = partial(linear_activation, *size, activation)
            floor: Callable[[], Any] = partial(linear_alone, *size)
            if activation == RESIDUAL:
                build = partial(with_residual, *size, LinearResidual)
                floor = partial(with_residual, *size, FullSum)
            sizes = {"rows": rows, "inner": inner, "columns": columns, "dtype": _name(device)}
            name = f"{activation}-{rows}x{inner}x{columns}"
            found.append(Program(name, build, sizes, floor=floor))
    return tuple(found)


def compile_programs(device: str) -> tuple[Program, ...]:
    """For the compile-time table: more and more feed-forward blocks, the tuner's time included."""
    rows, width = (1024, 1024) if device == "cuda" else (16, 32)
    found = []
    for layers in COMPILE_LAYERS:
        make: Callable[[], Any] = partial(feed_forward, device, rows, width, layers, "gelu-tanh")
        sizes = {"rows": rows, "width": width, "layers": layers, "dtype": _name(device)}
        name = f"feed-forward-{layers}-layers"
        found.append(Program(name, make, sizes, twin=make, family="feed-forward", layers=layers))
    return tuple(found)


def _name(device: str) -> str:
    return str(DTYPE[device]).removeprefix("torch.")
