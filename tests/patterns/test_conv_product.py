"""Convolutions of single pixels as products: what is taken, what comes close, nothing changes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import fusepass
from fusepass import tune
from fusepass.patterns import gemm_region
from tests.patterns.conv_programs import (
    CHANNELS,
    OPTIONS,
    Layer,
    agrees,
    applied,
    aten_graph,
    check,
)

LAST = torch.channels_last
RULE = "conv_product"
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


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_is_taken(name: str, dtype: torch.dtype) -> None:
    module = layer(TAKEN[name]).to(dtype)
    assert found_in(module, images(3, CHANNELS, 9, 7, dtype=dtype)) >= 1


@pytest.mark.parametrize("bias", [False, True])
def test_other_channels(bias: bool) -> None:
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
def test_what_comes_close(name: str) -> None:
    given, around = CLOSE[name]
    assert found_in(layer(around, **given), images(3, CHANNELS, 9, 8)) == 0


@pytest.mark.parametrize("name", ["silu", "residual", "norm alone", "two results"])
@pytest.mark.parametrize("sizes", [(3, 1, 1), (80, 1, 1), (1, 1, 5), (1, 5, 1), (2, 1, 1)])
def test_strides_of_few_pixels(name: str, sizes: tuple[int, int, int]) -> None:
    """Inductor's without the rule: of one pixel there is more than one way to lie in order."""
    module, x = layer(TAKEN[name]), images(sizes[0], CHANNELS, *sizes[1:])
    made = []
    for rules in ({}, {RULE: False}):
        options = {"candidate": "reference", "rules": rules}
        compiled = torch.compile(module, backend="fusepass", options=options)
        with torch.no_grad():
            made.append(compiled(x))
        assert applied(compiled, RULE) == (not rules)
        torch.compiler.reset()
    got, want = made
    assert (got.shape, got.stride()) == (want.shape, want.stride())
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


def test_images_that_do_not_lie_channels_last() -> None:
    module = Layer(TAKEN["silu"], width=1).eval().bfloat16()
    assert found_in(module, torch.randn(3, CHANNELS, 9, 8).bfloat16()) == 0


@pytest.mark.parametrize("name", ["silu", "residual", "two results"])
def test_a_batch_size_that_varies(name: str) -> None:
    module = layer(TAKEN[name])
    wide = copy.deepcopy(module).double()
    compiled = torch.compile(module, backend="fusepass", options=OPTIONS)
    for batch in (2, 5, 3):
        x = images(batch, CHANNELS, 6, 7)
        torch._dynamo.mark_dynamic(x, 0)
        with torch.no_grad():
            check(compiled(x), module(x), wide(x.double()))
    assert applied(compiled, RULE) == 1  # in one compile


def test_a_batch_of_nothing() -> None:
    assert found_in(layer(TAKEN["silu"]), images(0, CHANNELS, 9, 8)) == 0


@pytest.mark.parametrize("name", ["silu", "gelu", "residual"])
def test_gradients(name: str) -> None:
    module = layer(TAKEN[name])
    agrees(module, images(3, CHANNELS, 9, 7), train=True)
    compiled = torch.compile(module, backend="fusepass", options=OPTIONS)
    compiled(images(3, CHANNELS, 9, 7)).sum().backward()
    assert applied(compiled, RULE) == 1


@pytest.mark.parametrize("name", ["silu", "relu"])
def test_equal_results_are_tensors_of_their_own(name: str) -> None:
    def twice(m: Layer, y: Tensor, x: Tensor) -> Any:
        return getattr(F, name)(y), getattr(F, name)(y)

    module, x = layer(twice), images(2, CHANNELS, 6, 7)
    compiled = torch.compile(module, backend="fusepass", options=OPTIONS)
    with torch.no_grad():
        one, other = compiled(x)
        want = other.clone()
        one.zero_()
    assert torch.equal(other, want)
    assert want.any()


BY_CHANNEL: dict[str, Around] = {
    "times a number in a tensor": lambda m, y, x: F.silu(y * (m.scale * m.scale[:1] * 2)),
    "where": lambda m, y, x: F.silu(y * torch.where(m.scale > 0, m.scale, 0.1)),
    "masked": lambda m, y, x: F.silu(
        y + torch.where(m.scale > m.scale.mean(), m.scale, m.scale * 2)
    ),
    "of integers": lambda m, y, x: F.silu(y * (torch.arange(CHANNELS)[:, None, None] * 0.5)),
}


@pytest.mark.parametrize("name", BY_CHANNEL)
def test_what_is_computed_by_channel(name: str) -> None:
    assert found_in(layer(BY_CHANNEL[name]), images(2, CHANNELS, 6, 7)) == 1


@pytest.mark.parametrize("name", ["silu", "residual", "two results", "equal calls", "norm alone"])
def test_a_trial_that_is_taken_back_leaves_the_graph_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tune.Choice(tune.INDUCTOR, {}, "measured", "a test says so")
    asked: list[Any] = []
    monkeypatch.setattr(gemm_region, "choose", lambda *given: asked.append(given) or left)
    twice: Around = lambda m, y, x: F.silu(y) * 2 + F.silu(y)  # noqa: E731
    module, x = layer(twice if name == "equal calls" else TAKEN[name]), images(3, CHANNELS, 9, 7)
    assert aten_graph(module, x, RULE) == aten_graph(module, x)
    assert asked


def test_through_inductor() -> None:
    module, x = layer(TAKEN["before a convolution"]), images(3, CHANNELS, 9, 7)
    compiled = torch.compile(module, backend="fusepass", options={"candidate": "reference"})
    with torch.no_grad():
        got, want = compiled(x), module(x)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    assert applied(compiled, RULE) == 1
    fusepass.reset()
