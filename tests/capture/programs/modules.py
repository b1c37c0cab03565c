"""Branches in the forward of modules: parameters, buffers, submodules, lists of layers, hooks."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..support.inputs import B, signs
from ..support.program import WHERE, Family

FAMILY = Family("modules")
ONE = signs((B, 4))


@FAMILY.program(ONE, WHERE, grad=True, tags="inductor contexts")
class SharedLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.proj(x)
        if x.sum() > 0:
            h = F.gelu(h)
        else:
            h = F.silu(h)
        return h


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.proj = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = x + self.proj(self.norm(x))
        if h.abs().max() > 2:
            h = torch.clamp(h, -2, 2)
        return h


@FAMILY.program(ONE, WHERE, grad=True, tags="inductor contexts")
class LoopOverLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = x * 4 if x.dim() == 1 else x * (x.sum() > 0) * 4
        for layer in self.layers:
            h = layer(h)
        return h


@FAMILY.program(ONE, WHERE, grad=True, tags="contexts")
class SequentialOfLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(Layer(), nn.Tanh(), Layer())

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x * (x.sum() > 0) * 5)


@FAMILY.program(ONE, WHERE, grad=True)
class BranchInLoopBody(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for layer in self.layers:
            h = layer(h)
            if h.sum() + x.sum() * 50 > 0:
                h = h.relu() + h
        return h


@FAMILY.program(ONE, WHERE, grad=True)
class BranchInRangeLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        h = x + 0
        for i in range(3):
            h = h * self.scales[i] if h.sum() > 0 else h / self.scales[i]
        return h


@FAMILY.program(signs((2, 3, 5, 5)), WHERE, grad=True, tags="inductor")
class ConvolutionArms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            y = self.conv(x).relu()
        else:
            y = self.conv(x * 2) - 1
        return y


@FAMILY.program(signs((4, 3, 2, 2)), WHERE, grad=True, tags="contexts")
class BatchNormInEval(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) if x.sum() > 0 else self.norm(x * 2) + 1


@FAMILY.program(signs((B, 5, 8)), WHERE, grad=True, tags="contexts inductor")
class AttentionGuard(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) / 8**0.5
        if x.sum() > 0:
            scores = scores - scores.amax(-1, keepdim=True)
        return self.out(scores.softmax(-1) @ v)


@FAMILY.program(ONE, WHERE, grad=True)
class MethodOfModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def gate(self, h: Tensor) -> Tensor:
        if h.sum() > 0:
            return h.sigmoid()
        return h.tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x) * self.gate(x)


class Base(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = x * 2
        else:
            x = x * 3
        return x


@FAMILY.program(ONE, WHERE, grad=True)
class SuperForward(Base):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + 0) - 1


@FAMILY.program(ONE, WHERE, grad=True)
class ModuleDictByName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Tanh()})

    def forward(self, x: Tensor) -> Tensor:
        h = self.parts["a"](x)
        if x.sum() > 0:
            h = self.parts["b"](h)
        return h


@FAMILY.program(ONE, WHERE, grad=True)
class ActivationFromAttribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act: Callable[[Tensor], Tensor] = F.relu
        self.slope = 0.1

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x) if x.sum() > 0 else F.leaky_relu(x, self.slope)


@FAMILY.program(ONE, WHERE, grad=True)
class OutputsInADict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.proj(x)
        pooled = h.mean(0) if x.sum() > 0 else h.amax(0)
        return {"hidden": h, "pooled": pooled}


@FAMILY.program(ONE, WHERE, grad=True)
class DropoutInEval(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        h = x * 2
        if x.sum() > 0:
            h = self.drop(h) + 1
        return h


@FAMILY.program(ONE, WHERE, grad=True, tags="contexts")
class DropoutOutsideArms(nn.Module):
    # The generator moves once per call, whichever way the branch goes.
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(x)
        h = h * 2 if x.sum() > 0 else h - 1
        return self.drop(h)
