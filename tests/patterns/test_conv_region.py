"""Convolutions with what follows them in one kernel: what is taken, what comes close."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fusepass
from fusepass.patterns import conv_region
from fusepass.tune import Choice
from tests.patterns.conv_programs import OPTIONS, Layer, agrees, applied

LAST = torch.channels_last
RULE = "conv_region"
ONLY = {**OPTIONS, "rules": {"conv_relu": False}}
CHANNELS = 32
Around = Callable[[Layer, Tensor, Tensor], Tensor]


def images(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape).to(dtype).to(memory_format=LAST)


def layer(around: Around, dtype: torch.dtype = torch.bfloat16, **given: Any) -> Layer:
    made = Layer(around, **{"channels": CHANNELS, **given}).eval().to(dtype)
    return made.to(memory_format=LAST)  # type: ignore[call-overload,no-any-return]


def found_in(module: nn.Module, x: Tensor, options: Any = ONLY) -> int:
    agrees(module, x, options=options)
    torch.compiler.reset()
    compiled = torch.compile(module, backend="fusepass", options=options)
    with torch.no_grad():
        compiled(x)
    return applied(compiled, RULE)


TAKEN: dict[str, Around] = {
    "silu": lambda m, y, x: F.silu(m.norm(y)),
    "relu": lambda m, y, x: F.relu(m.norm(y)),
    "hardswish": lambda m, y, x: F.hardswish(m.norm(y)),
    "leaky relu": lambda m, y, x: F.leaky_relu(m.norm(y), 0.1),
    "gelu": lambda m, y, x: F.gelu(y),
    "norm alone": lambda m, y, x: m.norm(y),
    "residual": lambda m, y, x: F.silu(m.norm(y)) + x,
    "gated": lambda m, y, x: F.silu(m.norm(y)) * torch.sigmoid(m.scale),
    "before a convolution": lambda m, y, x: F.conv2d(F.silu(m.norm(y)), m.shortcut.weight),
}


@pytest.mark.sampled(2)  # each of them once, with one dtype or the other
@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dense_convolutions_are_replaced(name: str, dtype: torch.dtype) -> None:
    module = layer(TAKEN[name], dtype)
    if name == "before a convolution":
        module.shortcut = nn.Conv2d(CHANNELS, 8, 1, bias=False).to(dtype).to(memory_format=LAST)  # type: ignore[call-overload]
    assert found_in(module, images(2, CHANNELS, 6, 7, dtype=dtype)) == 1


@pytest.mark.parametrize(
    "given",
    [
        {"stride": 2},
        {"stride": (2, 1), "padding": (0, 2)},
        {"dilation": 2, "padding": 2},
        {"width": 5},
        {"width": 1, "stride": 2, "padding": 0},
        {"bias": True},
    ],
    ids=str,
)
def test_kinds_of_convolutions(given: dict[str, Any]) -> None:
    assert found_in(layer(TAKEN["silu"], **given), images(2, CHANNELS, 9, 8)) == 1


def test_with_relu_cudnns_kernel_comes_first() -> None:
    assert found_in(layer(TAKEN["relu"]), images(2, CHANNELS, 6, 7), OPTIONS) == 0
    assert found_in(layer(TAKEN["silu"]), images(2, CHANNELS, 6, 7), OPTIONS) == 1


def _with_weight_in_order(module: Layer) -> Layer:
    module.conv.weight.data = module.conv.weight.data.contiguous()
    return module


CLOSE: dict[str, Callable[[], tuple[Layer, Tensor]]] = {
    "groups": lambda: (layer(TAKEN["silu"], groups=2), images(2, CHANNELS, 6, 7)),
    "few channels": lambda: (layer(TAKEN["silu"], channels=12), images(2, 12, 6, 7)),
    "odd channels": lambda: (layer(TAKEN["silu"], channels=40), images(2, 40, 6, 7)),
    "single precision": lambda: (
        layer(TAKEN["silu"], torch.float32),
        images(2, CHANNELS, 6, 7, dtype=torch.float32),
    ),
    "images in order": lambda: (layer(TAKEN["silu"]), torch.randn(2, CHANNELS, 6, 7).bfloat16()),
    "nothing behind": lambda: (layer(lambda m, y, x: y), images(2, CHANNELS, 6, 7)),
    "a norm of pixels behind": lambda: (
        layer(lambda m, y, x: F.layer_norm(y.permute(0, 2, 3, 1), (CHANNELS,))),
        images(2, CHANNELS, 6, 7),
    ),
    "a number for each pixel": lambda: (
        layer(lambda m, y, x: y * x.amax(1, keepdim=True)),
        images(2, CHANNELS, 6, 7),
    ),
    "a weight in order": lambda: (
        _with_weight_in_order(layer(TAKEN["silu"])),
        images(2, CHANNELS, 6, 7),
    ),
    "read by generated code": lambda: (
        layer(lambda m, y, x: F.silu(m.norm(y)).mean((2, 3))),
        images(2, CHANNELS, 6, 7),
    ),
    "no image": lambda: (layer(TAKEN["silu"]), images(0, CHANNELS, 6, 7)),
}


@pytest.mark.parametrize("name", CLOSE)
def test_near_misses_stay_convolutions(name: str) -> None:
    assert found_in(*CLOSE[name]()) == 0


def test_a_single_pixel_is_a_product() -> None:
    module = layer(TAKEN["silu"], width=1, padding=0)
    assert found_in(module, images(2, CHANNELS, 6, 7)) == 0


@pytest.mark.parametrize("name", ["silu", "gelu"])
def test_gradients(name: str) -> None:
    module, x = layer(TAKEN[name]), images(2, CHANNELS, 6, 7)
    agrees(module, x, train=True, options=ONLY)
    compiled = torch.compile(module, backend="fusepass", options=ONLY)
    compiled(x).sum().backward()
    assert applied(compiled, RULE) == 1


class Block(nn.Module):
    """Two convolutions and a residual, which the next block adds to, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (layer(TAKEN["silu"]) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.second(self.first(x))
        return made


def test_blocks_with_residuals() -> None:
    """What is behind one convolution is not kept from the region of another."""
    module = nn.Sequential(layer(TAKEN["silu"], stride=2), Block(), Block()).eval()
    assert found_in(module, images(1, CHANNELS, 8, 10)) == 5


def test_behind_a_1x1_convolution() -> None:
    """The residual is read by another convolution, too, and stays where that finds it."""
    first = layer(TAKEN["silu"], width=1, padding=0)
    assert found_in(nn.Sequential(first, Block()).eval(), images(2, CHANNELS, 6, 7)) == 2


def test_equal_results_are_tensors_of_their_own() -> None:
    module = layer(lambda m, y, x: (z := F.silu(y), z.float().to(z.dtype)))  # type: ignore[arg-type,return-value]
    x = images(2, CHANNELS, 6, 7)
    compiled = torch.compile(module, backend="fusepass", options=ONLY)
    with torch.no_grad():
        one, other = compiled(x)
        kept = other.clone()
        one.add_(1)
    assert torch.equal(other, kept)
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


def test_batches_that_vary() -> None:
    module = layer(TAKEN["silu"])
    compiled = torch.compile(module, backend="fusepass", options=ONLY)
    for batch in (2, 5, 3):
        x = images(batch, CHANNELS, 6, 7)
        torch._dynamo.mark_dynamic(x, 0)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), module(x), rtol=2e-2, atol=2e-2)
    assert applied(compiled, RULE) == 1


def test_through_inductor() -> None:
    module, x = layer(TAKEN["residual"]), images(2, CHANNELS, 6, 7)
    assert found_in(module, x, {"candidate": "reference", "rules": {"conv_relu": False}}) == 1
    fusepass.reset()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["silu", "residual", "leaky relu", "gelu"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_on_a_device(name: str, dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken whatever it costs, through Inductor."""

    def first_of_ours(problem: Any, options: Any, candidates: Any) -> Choice:
        return Choice(candidates[1].name, {}, "forced", "the test asks for it")

    monkeypatch.setattr(conv_region, "choose", first_of_ours)
    module = layer(TAKEN[name], torch.float16).cuda()
    x = images(2, CHANNELS, 12, 17, dtype=torch.float16).cuda()
    if dynamic:
        torch._dynamo.mark_dynamic(x, 0)
    assert found_in(module, x, {"rules": {"conv_relu": False}}) == 1
