"""Suite ``gated``: gated MLPs, from their first half at many rows to whole ones at one row.

``act(x Wg) * (x Wu)`` with two weights or one packed one, and the MLP around it. The floor of a
first half is one linear layer with both weights side by side and no activation; that of a whole MLP
is its two linear layers with nothing between. At few rows both take the time of reading weights.

bfloat16 without biases on CUDA; on CPU small float32 layers, which show that the programs run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from fusepass.bench.program import Program
from tests.perf.suites.linear import DTYPE, FEED_FORWARD
from tests.perf.suites.linear import ROWS as LINEAR_ROWS

Model = tuple[nn.Module, tuple[torch.Tensor]]

ROWS = {
    "cuda": (*FEED_FORWARD, (64, 4096, 14336), (16, 4096, 14336)),
    "cpu": LINEAR_ROWS["cpu"],
}
MLPS = {
    "cuda": (
        ("geglu-tanh", 8192, 768, 3072),
        ("swiglu", 8192, 1024, 4096),
        ("swiglu", 64, 4096, 14336),
        ("swiglu", 16, 4096, 14336),
        ("swiglu", 1, 4096, 14336),
    ),
    "cpu": (("geglu-tanh", 64, 32, 128), ("swiglu", 1, 32, 128)),
}
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "swiglu": F.silu,
    "geglu": F.gelu,
    "geglu-tanh": partial(F.gelu, approximate="tanh"),
}


class FirstHalf(nn.Module):
    """``activation(gate(x)) * up(x)``, of two weights or of one packed one."""

    def __init__(self, inner: int, columns: int, activation: str, *, packed: bool) -> None:
        super().__init__()
        self.activation, self.packed = ACTIVATIONS[activation], packed
        if packed:
            self.both = nn.Linear(inner, 2 * columns, bias=False)
        else:
            self.gate = nn.Linear(inner, columns, bias=False)
            self.up = nn.Linear(inner, columns, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, inner] -> [rows, columns]."""
        gate, up = self.both(x).chunk(2, -1) if self.packed else (self.gate(x), self.up(x))
        product: torch.Tensor = self.activation(gate) * up
        return product


class Mlp(nn.Module):
    """A first half and the way back."""

    def __init__(self, inner: int, columns: int, activation: str) -> None:
        super().__init__()
        self.first = FirstHalf(inner, columns, activation, packed=False)
        self.down = nn.Linear(columns, inner, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, inner] -> [rows, inner]."""
        down: torch.Tensor = self.down(self.first(x))
        return down


class Products(nn.Module):
    """The products of a whole MLP: the wide one, and the way back from half of its columns."""

    def __init__(self, inner: int, columns: int) -> None:
        super().__init__()
        self.both = nn.Linear(inner, 2 * columns, bias=False)
        self.down = nn.Linear(columns, inner, bias=False)
        self.columns = columns

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, inner] -> [rows, inner]."""
        down: torch.Tensor = self.down(self.both(x)[:, : self.columns])
        return down


def _built(device: str, rows: int, inner: int, make: Callable[[], nn.Module]) -> Model:
    with torch.device(device):
        model = make().to(DTYPE[device]).eval()
        return model, (torch.randn(rows, inner, dtype=DTYPE[device]),)


def programs(device: str) -> tuple[Program, ...]:
    """The suite, sized for ``device``."""
    found = []

    def add(name: str, rows: int, inner: int, columns: int, make: Any, floor: Any) -> None:
        dtype = str(DTYPE[device]).removeprefix("torch.")
        sizes = {"rows": rows, "inner": inner, "columns": columns, "dtype": dtype}
        build = partial(_built, device, rows, inner, make)
        least = partial(_built, device, rows, inner, floor)
        found.append(Program(f"{name}-{rows}x{inner}x{columns}", build, sizes, floor=least))

    for rows, inner, columns in ROWS[device]:
        merged = partial(nn.Linear, inner, 2 * columns, bias=False)
        for activation in ("swiglu", "geglu"):
            for packed in (False, True):
                half = partial(FirstHalf, inner, columns, activation, packed=packed)
                name = f"{activation}{'-packed' * packed}"
                add(name, rows, inner, columns, half, merged)
    for activation, rows, inner, columns in MLPS[device]:
        products = partial(Products, inner, columns)
        mlp = partial(Mlp, inner, columns, activation)
        add(f"{activation}-mlp", rows, inner, columns, mlp, products)
    return tuple(found)
