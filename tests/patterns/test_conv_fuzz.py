"""Random networks of convolutions: with every rule for them and without any, the same results."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fusepass
from fusepass.kernels.conv import implicit_gemm
from fusepass.numerics import rms, rms_error
from tests.patterns.conv_programs import norm

RULES = ("conv_relu", "depthwise", "conv_1x1", "conv_region", "horizontal")
ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    F.relu,
    F.silu,
    F.hardswish,
    F.relu6,
    torch.sigmoid,
    F.gelu,
    lambda x: F.leaky_relu(x, 0.1),
    lambda x: x,
    lambda x: (x * 0.5 - 1).clamp(min=-0.5),
    lambda x: 0.25 - x / 2,
)


class Net(nn.Module):
    """Layers that a seed draws; each may read any earlier result of its own shape."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.channels = draw.choice([3, 4, 8, 12])
        self.layers = nn.ModuleList()
        self.plan: list[dict[str, Any]] = []
        channels = self.channels
        for _ in range(draw.randint(2, 6)):
            kind = draw.choice(["1x1", "depthwise", "3x3", "3x3", "pool", "gate", "mean"])
            made, bias = draw.choice([channels, channels, 8]), draw.random() < 0.4
            layer: nn.Module = nn.Identity()
            if kind == "1x1":
                layer = nn.Conv2d(channels, made, 1, bias=bias)
            elif kind == "depthwise":
                made, size = channels, draw.choice([1, 3, 5])
                how = {"stride": draw.choice([1, 1, 2]), "dilation": draw.choice([1, 1, 2])}
                reach = size // 2 * how["dilation"]
                layer = nn.Conv2d(
                    channels, made, size, padding=reach, groups=channels, bias=bias, **how
                )
            elif kind == "3x3":
                layer = nn.Conv2d(channels, made, 3, padding=1, bias=bias)
            else:
                made = channels
            self.layers.append(nn.Sequential(layer, norm(made)) if draw.random() < 0.6 else layer)
            self.plan.append(
                {
                    "kind": kind,
                    "act": draw.randrange(len(ACTIVATIONS)),
                    "residual": draw.choice([None, None, "before", "behind"]),
                    "which": draw.random(),
                    "kept": draw.random() < 0.2,
                }
            )
            channels = made

    def forward(self, x: Tensor) -> list[Tensor]:
        """(B, channels, H, W) -> some of the results on the way, and the last."""
        seen, kept = [x], []
        for layer, plan in zip(self.layers, self.plan, strict=True):
            y = layer(x)
            if plan["kind"] == "pool" and min(y.shape[2:]) > 1:
                y = F.max_pool2d(y, 2)
            if plan["kind"] == "gate":
                y = y * torch.sigmoid(y.mean((2, 3), keepdim=True))
            if plan["kind"] == "mean":
                y = y - y.mean(1, keepdim=True)
            like = [one for one in seen if one.shape == y.shape]
            other = like[int(plan["which"] * len(like))] if like else None
            if plan["residual"] == "before" and other is not None:
                y = y + other
            y = ACTIVATIONS[plan["act"]](y)
            if plan["residual"] == "behind" and other is not None:
                y = other * y
            seen.append(y)
            kept += [y] * plan["kept"]
            x = y
        return [*kept, x]


def run(module: Net, x: Tensor, rules: bool, train: bool) -> tuple[list[Tensor], Counter[str]]:
    """Results (and gradients), and how often each rule acted."""
    torch.compiler.reset()
    options = {
        "codegen": "eager-decomposed",
        "candidate": "reference",
        "rules": dict.fromkeys(RULES, rules),
    }
    compiled = torch.compile(module, backend="fusepass", options=options)
    given = x.detach().clone(memory_format=torch.preserve_format).requires_grad_(train)
    module.zero_grad()
    with torch.set_grad_enabled(train):
        outs = compiled(given)
        if train:
            sum((one.float() ** 2).mean() for one in outs).backward()  # type: ignore[union-attr]
    decisions = fusepass.last_report(compiled).decisions
    grads = [p.grad for p in (given, *module.parameters()) if p.grad is not None] if train else []
    return [one.detach() for one in (*outs, *grads)], Counter(
        one.rule for one in decisions if one.outcome == "applied"
    )


def lying(tensor: Tensor) -> list[int]:
    """Its strides; run op by op, those of 1×1 images differ from what was traced anyway."""
    return [n for size, n in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def held(seed: int) -> Counter[str]:
    """One random network; how often the rules acted on it."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    module = Net(draw).eval()
    dtype = draw.choice([torch.float32, torch.bfloat16, torch.float16])
    train, last = draw.random() < 0.3, draw.random() < 0.7
    module = module.to(dtype)
    sizes = draw.choice([1, 2, 3]), module.channels, draw.randint(1, 9), draw.randint(1, 9)
    x = torch.randn(sizes).to(dtype)
    if last:
        module, x = (
            module.to(memory_format=torch.channels_last),
            x.to(memory_format=torch.channels_last),
        )  # type: ignore[call-overload]
    got, counts = run(module, x, True, train)
    want, none = run(module, x, False, train)
    wide = copy.deepcopy(module).double()
    exact, _ = run(wide, x.double(), False, train)
    assert not set(none) & set(RULES)
    assert len(got) == len(want)
    for one, other, true in zip(got, want, exact, strict=True):
        assert (one.dtype, one.shape, lying(one)) == (other.dtype, other.shape, lying(other))
        floor = 4 * torch.finfo(dtype).eps * max(rms(true), 1e-3)
        assert rms_error(one, true) <= 2 * rms_error(other, true) + floor
    return counts


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seeds", [range(first, first + 6) for first in range(0, 30, 6)], ids=str)
def test_random_networks(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(x: torch.Tensor, weight: torch.Tensor, dilation: Any) -> str | None:
        """Only what its reference cannot compute: these networks are narrower than its kernel."""
        return (
            None if x.dtype is weight.dtype and x.dtype in implicit_gemm.HALF else "another dtype"
        )

    monkeypatch.setattr(implicit_gemm, "refuses", refuses)
    acted: Counter[str] = sum((held(seed) for seed in seeds), Counter())
    assert {"conv_relu", "depthwise", "conv_1x1", "conv_region"} & set(acted)
