"""Depthwise convolutions with what follows them: what is taken, what comes close, nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
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
RULE = "depthwise"
ONLY = {**OPTIONS, "rules": {"conv_relu": False, "conv_1x1": False}}
Around = Callable[[Layer, Tensor, Tensor], Tensor]


def images(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape).to(dtype).to(memory_format=LAST)


def layer(around: Around, dtype: torch.dtype = torch.bfloat16, **given: Any) -> Layer:
    given.setdefault("groups", CHANNELS)
    made = Layer(around, **given).eval().to(dtype)
    return made.to(memory_format=LAST)  # type: ignore[call-overload,no-any-return]


def found_in(module: nn.Module, x: Tensor) -> int:
    agrees(module, x, options=ONLY)
    torch.compiler.reset()
    compiled = torch.compile(module, backend="fusepass", options=ONLY)
    with torch.no_grad():
        compiled(x)
    return applied(compiled, RULE)


TAKEN: dict[str, Around] = {
    "silu": lambda m, y, x: F.silu(m.norm(y)),
    "relu": lambda m, y, x: F.relu(m.norm(y)),
    "hardswish": lambda m, y, x: F.hardswish(m.norm(y)),
    "relu6": lambda m, y, x: F.relu6(m.norm(y)),
    "nothing": lambda m, y, x: y,
    "norm alone": lambda m, y, x: m.norm(y),
    "residual": lambda m, y, x: m.norm(y) + x,
    "gated": lambda m, y, x: F.silu(m.norm(y)) * torch.sigmoid(m.scale),
    "per pixel": lambda m, y, x: m.norm(y) * x.amax(1, keepdim=True),
    "two results": lambda m, y, x: F.silu(z := m.norm(y)).amax(1, keepdim=True) + z,
    "before a norm": lambda m, y, x: F.layer_norm(y.permute(0, 2, 3, 1), (CHANNELS,)),
    "before a mean": lambda m, y, x: F.silu(z := m.norm(y)).mean((2, 3), keepdim=True) * z,
    "before a convolution": lambda m, y, x: F.conv2d(F.silu(m.norm(y)), m.shortcut.weight),
    "masked": lambda m, y, x: torch.where(x > 0, F.gelu(y), 0.5),
}


@pytest.mark.sampled(3)  # each of them once, with one dtype or another
@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_depthwise_convolutions_are_replaced(name: str, dtype: torch.dtype) -> None:
    module = layer(TAKEN[name], dtype)
    if name == "before a convolution":
        module.shortcut = nn.Conv2d(CHANNELS, CHANNELS, 1, bias=False).to(dtype)
    assert found_in(module, images(3, CHANNELS, 9, 7, dtype=dtype)) == 1


KINDS: list[dict[str, Any]] = [
    {"stride": 2},
    {"stride": (2, 1), "padding": (0, 2)},
    {"dilation": 2, "padding": 2},
    {"width": 5, "dilation": (1, 2)},
    {"width": 7},
    {"width": 1},
    {"padding_mode": "reflect"},
    {"bias": True},
    {"bias": True, "stride": 3, "padding": 0},
    {"padding": (1,)},
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("given", KINDS, ids=str)
@pytest.mark.parametrize("name", ["silu", "nothing"])
def test_kinds_of_convolutions(given: dict[str, Any], name: str) -> None:
    x = images(2, CHANNELS, 11, 13)
    found = found_in(layer(TAKEN[name], **given), x)
    taken = given != {"padding": (1,)}  # one number for both sides is not looked at
    if "padding_mode" in given:  # torch 2.11 traces images in the other order
        with FakeTensorMode() as mode:
            padded = F.pad(mode.from_tensor(x), (1, 1, 1, 1), given["padding_mode"])
        taken = padded.is_contiguous(memory_format=LAST)
    assert found == taken


CLOSE: dict[str, dict[str, Any]] = {
    "groups of two": {"groups": CHANNELS // 2},
    "no groups": {"groups": 1},
}


@pytest.mark.parametrize("name", CLOSE)
def test_near_misses_are_not_replaced(name: str) -> None:
    assert found_in(layer(TAKEN["silu"], **CLOSE[name]), images(3, CHANNELS, 9, 8)) == 0


def test_more_channels_than_there_were() -> None:
    module = nn.Sequential(nn.Conv2d(4, 8, 3, groups=4), nn.SiLU()).eval().bfloat16()
    assert found_in(module.to(memory_format=LAST), images(2, 4, 7, 7)) == 0  # type: ignore[call-overload]


def test_one_channel() -> None:
    module = nn.Sequential(nn.Conv2d(1, 1, 3), nn.SiLU()).eval().bfloat16()
    assert found_in(module, images(2, 1, 7, 7)) == 0


def test_images_that_do_not_lie_channels_last() -> None:
    module = Layer(TAKEN["silu"], groups=CHANNELS).eval().bfloat16()
    assert found_in(module, torch.randn(3, CHANNELS, 9, 8).bfloat16()) == 0


def test_a_batch_of_nothing() -> None:
    assert found_in(layer(TAKEN["silu"]), images(0, CHANNELS, 9, 8)) == 0


def test_double_precision() -> None:
    module, x = layer(TAKEN["silu"], torch.float64), images(2, CHANNELS, 7, 5, dtype=torch.float64)
    compiled = torch.compile(module, backend="fusepass", options=ONLY)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x))
    assert applied(compiled, RULE) == 0


@pytest.mark.parametrize("name", ["silu", "residual", "nothing"])
def test_gradients(name: str) -> None:
    module = layer(TAKEN[name])
    agrees(module, images(3, CHANNELS, 9, 7), train=True, options=ONLY)
    compiled = torch.compile(module, backend="fusepass", options=ONLY)
    compiled(images(3, CHANNELS, 9, 7)).sum().backward()
    assert applied(compiled, RULE) == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nonfinite_values(value: float) -> None:
    x = images(2, CHANNELS, 7, 5)
    x[0, 3, 2, 2] = value
    assert found_in(layer(TAKEN["silu"]), x) == 1


def test_weights_that_change_between_calls() -> None:
    module, x = layer(TAKEN["silu"]), images(2, CHANNELS, 6, 6)
    compiled = torch.compile(module, backend="fusepass", options=ONLY)
    for _ in range(3):
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), module(x), rtol=2e-2, atol=2e-2)
        module.conv.weight.data.mul_(0.5)
        assert module.norm.running_mean is not None
        module.norm.running_mean.add_(0.3)
    assert applied(compiled, RULE) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["silu", "before a norm", "before a mean", "two results"])
def test_through_inductor(name: str) -> None:
    module, x = layer(TAKEN[name]), images(3, CHANNELS, 9, 7)
    compiled = torch.compile(module, backend="fusepass", options={"candidate": "reference"})
    with torch.no_grad():
        got, want = compiled(x), module(x)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    assert applied(compiled, RULE) == 1
    fusepass.reset()
