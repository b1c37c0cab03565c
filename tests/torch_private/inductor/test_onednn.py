"""Activations behind calls of oneDNN, of frozen weights: NaN and infinity as in eager."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import config
from torch._inductor.utils import run_and_get_code

from fusepass.numerics import error_bound, half_ulp, passes, rms, rms_error

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="a build of torch without oneDNN"
)
DROPPING: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "hardtanh": lambda: nn.Hardtanh(-0.3, 0.7),
    "hardsigmoid": nn.Hardsigmoid,
    "leaky_relu of 0": lambda: nn.LeakyReLU(0.0),
}
KEEPING: dict[str, Callable[[], nn.Module]] = {
    "swish": nn.SiLU,
    "hardswish": nn.Hardswish,
    "leaky_relu": nn.LeakyReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


class Residual(nn.Module):
    """A convolution to which its own input is added."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.conv, self.act = nn.Conv2d(8, 8, 1), act

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.act(self.conv(x) + x)
        return made


LAYERS: dict[str, tuple[Callable[[nn.Module], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda act: nn.Sequential(nn.Linear(64, 32), act), (8, 64)),
    "conv": (lambda act: nn.Sequential(nn.Conv2d(8, 8, 3), act), (2, 8, 9, 9)),
    "transposed": (lambda act: nn.Sequential(nn.ConvTranspose2d(8, 8, 3), act), (2, 8, 9, 9)),
    "residual": (Residual, (2, 8, 9, 9)),
}


def built(layer: str, act: nn.Module, dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
    make, shape = LAYERS[layer]
    return make(act).to(dtype).eval(), torch.randn(shape).to(dtype)


def frozen(module: nn.Module) -> Callable[..., Tensor]:
    return torch.compile(module, backend="fusepass", options={"frozen": True})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", DROPPING | KEEPING)
@pytest.mark.sampled(11)
def test_what_is_not_finite(name: str, layer: str, dtype: torch.dtype) -> None:
    module, x = built(layer, (DROPPING | KEEPING)[name](), dtype)
    compiled, exact = frozen(module), copy.deepcopy(module).double()
    with torch.no_grad():
        for special in (math.nan, math.inf, -math.inf):
            x.view(-1)[3] = special
            want, of_eager = exact(x.double()), module(x)
            finite = want[want.isfinite()]
            bound = error_bound(half_ulp(dtype, rms(finite)), rms_error(of_eager, want), None)
            assert passes(rms_error(compiled(x), want), bound)
            assert want.isnan().any() or math.isinf(special)


@pytest.mark.parametrize("layer", ["linear", "conv", "residual"])
def test_relu_keeps_nan(layer: str) -> None:
    """Each kind of call once, also where others are sampled."""
    module, x = built(layer, nn.ReLU(), torch.bfloat16)
    x.view(-1)[3] = math.nan
    with torch.no_grad():
        made, want = frozen(module)(x), module(x)
    assert want.isnan().any()
    assert torch.equal(made.isnan(), want.isnan())


def code_of(module: Any, x: Tensor) -> str:
    with torch.no_grad():
        _, codes = run_and_get_code(module, x)
    return "\n".join(codes)


@pytest.mark.parametrize("name", KEEPING)
def test_what_keeps_nan_stays_in_the_call(name: str) -> None:
    module, x = built("conv", KEEPING[name](), torch.float32)
    assert f"'{name}'" in code_of(frozen(module), x)


def test_frozen_weights_of_others_are_theirs() -> None:
    """Only where fusepass compiles is anything changed, also after it has been."""
    module, x = built("conv", nn.ReLU(), torch.float32)
    with torch.no_grad():
        assert "'relu'" not in code_of(frozen(module), x)
        torch.compiler.reset()
        with config.patch(freezing=True):
            assert "'relu'" in code_of(torch.compile(module), x)
