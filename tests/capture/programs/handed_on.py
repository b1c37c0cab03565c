"""An arm hands on a parameter: what is selected is none, and where autograd is off needs no grad."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..support.inputs import B, signs
from ..support.program import SINK, WHERE, Family, Verdict, keep

FAMILY = Family("handed_on")
ONE = signs((B, 4))
ALIAS, NONE = keep("alias"), keep("none_grad")


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 4))

    def choose(self, x: Tensor) -> Tensor:
        return self.weight


def add(*verdicts: Verdict, grad: tuple[Verdict, ...] | None = None, **rest: Any) -> Any:
    """A module whose parameters require grad only where gradients are compared."""
    return FAMILY.program(ONE, *verdicts, grad=True, expect_grad=grad, **rest)


@add(WHERE, tags="contexts inductor")
class WithoutAutograd(Weighted):
    """Weights divided by their norm at inference, as spectral normalization has it."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            weight = self.weight if x.sum() > 0 else self.weight / self.weight.norm()
            return x * weight


@add(WHERE)
class ViewsWithoutAutograd(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            weight = self.weight if x.sum() > 0 else self.weight * 2
            h = x * weight.view(1, 4).contiguous() + weight[0]
        return h + x * 2


@add(WHERE, grad=(NONE,))
class ReturnedWithoutAutograd(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.weight if x.sum() > 0 else self.weight * 2


@add(WHERE, grad=(NONE,))
class ReturnedByCall(Weighted):
    """``contiguous`` gives the tensor itself."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return (self.weight if x.sum() > 0 else self.weight * 2).contiguous()


@add(WHERE, grad=(NONE,))
class UsedWithAutograd(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            weight = self.weight if x.sum() > 0 else self.weight * 2
        return x * weight


@add(WHERE, grad=(NONE,))
class UsedWithAutogradInside(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            weight = self.weight if x.sum() > 0 else self.weight * 2
            with torch.enable_grad():
                h = x * weight
            return h * 2


@add(WHERE, grad=(keep("alias") | NONE,))
class AskedWithoutAutograd(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            weight = self.weight if x.sum() > 0 else self.weight * 2
            return x + 1 if weight.requires_grad else x + 2


@add(ALIAS)
class AskedForItsClass(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight if x.sum() > 0 else self.weight * 2
        return x * weight + (1 if isinstance(weight, nn.Parameter) else 2)


@add(ALIAS)
class AskedForItsType(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight if x.sum() > 0 else self.weight * 2
        return x * weight + (1 if type(weight) is nn.Parameter else 2)


@add(ALIAS)
class AskedWhetherLeaf(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight if x.sum() > 0 else self.weight * 2
        return x * weight + (1 if weight.is_leaf else 2)


@add(WHERE)
class AskedWhetherTensor(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight if x.sum() > 0 else self.weight * 2
        return x * weight + (1 if isinstance(weight, (Tensor, float)) else 2)


@add(WHERE, keep("raises"), grad=(ALIAS, SINK | keep("raises")))
class InAMessage(Weighted):
    """Its text begins with "Parameter containing"."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight if x.sum() > 0 else self.weight * 2
        if x.sum() < 0:
            raise ValueError(f"found {weight}")
        return x * weight


@add(WHERE, SINK)
class ItsNumberInAMessage(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight if x.sum() > 0 else self.weight * 2
        if x.sum() < 0:
            raise ValueError(f"found {weight.max():.3f}")
        return x * weight
