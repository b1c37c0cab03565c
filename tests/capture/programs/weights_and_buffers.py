"""Parameters and buffers in arms and predicates of modules."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..support.inputs import B, signs
from ..support.program import WHERE, Family

FAMILY = Family("weights_and_buffers")
ONE = signs((B, 4))


@FAMILY.program(ONE, WHERE, grad=True)
class LinearInOneArm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = x * 2
        if x.sum() > 0:
            h = self.proj(h)
        return h


@FAMILY.program(ONE, WHERE, grad=True, tags="inductor")
class ChooseExpert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 4)
        self.right = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) if x.sum() > 0 else self.right(x)


@FAMILY.program(ONE, WHERE, grad=True, tags="contexts")
class SameWeightsOtherOrder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4, bias=False)
        self.b = nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return self.b(self.a(x))
        return self.a(self.b(x))


@FAMILY.program(ONE, WHERE, grad=True, tags="contexts")
class BufferAsPredicate(nn.Module):
    flag: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("flag", torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        if self.flag * 0 + (x.sum() > 0):
            return x * 2
        return x * 3


@FAMILY.program(ONE, WHERE, grad=True)
class BufferInBothArms(nn.Module):
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0, 4.0]))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale if x.sum() > 0 else x / self.scale


@FAMILY.program(ONE, WHERE, grad=True)
class ParameterAsPredicate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.tensor([1.0]))

    def forward(self, x: Tensor) -> Tensor:
        if self.gate * x.sum().sign() > 0:
            return x * self.gate
        return x - self.gate


@FAMILY.program(ONE, WHERE, grad=True, tags="inductor")
class TiedWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.randn(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        logits = x @ self.embed.t()
        if logits.sum() * 0 + x.sum() > 0:
            h = logits.softmax(-1) @ self.embed
        else:
            h = logits.sigmoid() @ self.embed
        return h


@FAMILY.program(ONE, WHERE, grad=True)
class FrozenAndTrainable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.free = nn.Parameter(torch.ones(4) * 2)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.frozen if x.sum() > 0 else x * self.free


@FAMILY.program(ONE, WHERE, grad=True)
class TwoFrozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(4), requires_grad=False)
        self.b = nn.Parameter(torch.ones(4) * 2, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.a if x.sum() > 0 else x * self.b
