"""1×1 convolutions as products: what is taken, what comes close, nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import fusepass
from tests.patterns.conv_programs import (
    CHANNELS,
    OPTIONS,
    Layer,
    agrees,
    applied,
)

LAST = torch.channels_last
RULE = "conv_1x1"
Around = Callable[[Layer, Tensor, Tensor], Tensor]


def images(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape).to(dtype).to(memory_format=LAST)


def layer(around: Around, **given: Any) -> Layer:
    made = Layer(around, width=1, **given).eval().bfloat16()
    return made.to(memory_format=LAST)  # type: ignore[call-overload,no-any-return]


def found_in(module: Layer, x: Tensor) -> int:
    compiled = torch.compile(module, backend="fusepass", options=OPTIONS)
    agrees(module, x)
    with torch.no_grad():
        compiled(x)
    return applied(compiled, RULE)


TAKEN: dict[str, Around] = {
    "silu": lambda m, y, x: F.silu(m.norm(y)),
    "hardswish": lambda m, y, x: F.hardswish(m.norm(y)),
    "gelu": lambda m, y, x: F.gelu(y),
    "leaky relu": lambda m, y, x: F.leaky_relu(m.norm(y), 0.1),
    "sigmoid": lambda m, y, x: torch.sigmoid(m.norm2(m.norm(y))),
    "relu6": lambda m, y, x: F.relu6(m.norm(y)),
    "norm alone": lambda m, y, x: m.norm(y),
    "residual": lambda m, y, x: m.norm(y) + x,
    "residual first": lambda m, y, x: F.silu(x + m.norm(y)) * 0.5,
    "channels behind the activation": lambda m, y, x: F.silu(m.norm(y)) * m.scale,
    "two results": lambda m, y, x: F.silu(z := m.norm(y)).amax(1, keepdim=True) + z,
    "before a convolution": lambda m, y, x: F.conv2d(F.silu(m.norm(y)), m.shortcut.weight),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_1x1_convolutions_become_gemms(name: str, dtype: torch.dtype) -> None:
    module = layer(TAKEN[name]).to(dtype)
    assert found_in(module, images(3, CHANNELS, 9, 7, dtype=dtype)) == 1


@pytest.mark.parametrize("bias", [False, True])
def test_1x1_convolutions_with_odd_channels(bias: bool) -> None:
    module = layer(TAKEN["silu"], inputs=5, bias=bias)
    assert found_in(module, images(2, 5, 9, 8)) == 1


CLOSE: dict[str, tuple[dict[str, Any], Around]] = {
    "strides": ({"stride": 2}, TAKEN["silu"]),
    "padding": ({"padding": 1}, TAKEN["silu"]),
    "groups": ({"groups": 2}, TAKEN["silu"]),
    "nothing behind it": ({}, lambda m, y, x: y),
    "a reduction": ({}, lambda m, y, x: y.softmax(1)),
    "a running sum": ({}, lambda m, y, x: y.cumsum(0)),
}


@pytest.mark.parametrize("name", CLOSE)
def test_near_misses_stay_convolutions(name: str) -> None:
    given, around = CLOSE[name]
    assert found_in(layer(around, **given), images(3, CHANNELS, 9, 8)) == 0


def test_images_that_do_not_lie_channels_last() -> None:
    module = Layer(TAKEN["silu"], width=1).eval().bfloat16()
    assert found_in(module, torch.randn(3, CHANNELS, 9, 8).bfloat16()) == 0


def test_a_batch_of_nothing() -> None:
    assert found_in(layer(TAKEN["silu"]), images(0, CHANNELS, 9, 8)) == 0


@pytest.mark.parametrize("name", ["silu", "gelu", "residual"])
def test_gradients(name: str) -> None:
    module = layer(TAKEN[name])
    agrees(module, images(3, CHANNELS, 9, 7), train=True)
    compiled = torch.compile(module, backend="fusepass", options=OPTIONS)
    compiled(images(3, CHANNELS, 9, 7)).sum().backward()
    assert applied(compiled, RULE) == 1


def test_through_inductor() -> None:
    module, x = layer(TAKEN["before a convolution"]), images(3, CHANNELS, 9, 7)
    compiled = torch.compile(module, backend="fusepass", options={"candidate": "reference"})
    with torch.no_grad():
        got, want = compiled(x), module(x)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    assert applied(compiled, RULE) == 1
    fusepass.reset()
