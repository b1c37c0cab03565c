"""What the ``treatment`` option does to branches, legal and not."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..support.inputs import B, signs
from ..support.program import WHERE, Family, cond, keep, where

FAMILY = Family("forced")
ONE = signs((B, 4))
TWO = signs((B, 4), (B, 4), flips=2)
KEEP = {"options": {"treatment": "keep"}}
COND = {"options": {"treatment": "cond"}}
SELECT = {"options": {"treatment": "where"}}


@FAMILY.program(ONE, keep("forced"), grad=True, **KEEP)
def keep_plain(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x * 3


@FAMILY.program(TWO, keep("forced"), keep("forced"), grad=True, **KEEP)
def keep_nested(x: Tensor, y: Tensor) -> Tensor:
    z = x + y
    if x.sum() > 0:
        if y.sum() > 0:
            z = z * 2
    return z


@FAMILY.program(ONE, keep("forced"), **KEEP)
def keep_comes_before_other_reasons(x: Tensor) -> Tensor:
    if x.sum() > 0:
        print("positive")
        x.add_(1)
    return x * 2


@FAMILY.program(ONE, cond("forced"), grad=True, **COND)
def cond_pointwise(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x.sin()


@FAMILY.program(ONE, cond("forced"), grad=True, **COND)
def cond_early_return(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x.exp()
    h = x.tanh()
    return h * 2


@FAMILY.program(ONE, cond("forced"), grad=True, **COND)
def cond_with_identity_arm(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0:
        h = h.clamp(max=1)
    return h + 1


@FAMILY.program(ONE, cond("forced"), grad=True, **COND)
def cond_two_results(x: Tensor) -> tuple[Tensor, Tensor]:
    if x.sum() > 0:
        a, b = x * 2, x.sum(0)
    else:
        a, b = x - 2, x.mean(0)
    return a, b


@FAMILY.program(ONE, cond("forced"), grad=True, **COND)
class CondWithWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.proj(x)) if x.sum() > 0 else F.gelu(self.proj(x * 2))


@FAMILY.program(TWO, cond("forced"), cond("forced"), grad=True, **COND)
def cond_in_a_row(x: Tensor, y: Tensor) -> Tensor:
    h = x * y if x.sum() > 0 else x + y
    return h * 2 if y.sum() > 0 else h - 1


@FAMILY.program(ONE, cond("forced"), **COND)
def cond_hands_back_the_input(x: Tensor) -> Tensor:
    return x if x.sum() > 0 else x * 2


@FAMILY.program(ONE, cond("forced"), **COND)
def cond_leaves_other_shapes(x: Tensor) -> Tensor:
    return x.sum() if x.sum() > 0 else x * 2


@FAMILY.program(ONE, WHERE | where("forced"), grad=True, **SELECT)
def where_plain(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x * 3


@FAMILY.program(ONE, where("forced"), **SELECT)
def where_leaves_other_dtypes(x: Tensor) -> Tensor:
    return x.half() if x.sum() > 0 else x * 3


@FAMILY.program(ONE, where("forced"), **SELECT)
def where_does_not_run_writes(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x.add_(1)
    return x * torch.ones(4)
