"""Branches together with no_grad, enable_grad, autocast and inference blocks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..support.inputs import B, signs
from ..support.opaque import note
from ..support.program import FREE, WHERE, Family, keep

FAMILY = Family("modes")
ONE = signs((B, 4))
MAT = signs((4, 4), (4, 4))


@FAMILY.program(ONE, WHERE, grad=True)
def inside_no_grad_block(x: Tensor) -> Tensor:
    with torch.no_grad():
        if x.sum() > 0:
            scale = x.abs().sum()
        else:
            scale = x.abs().mean()
    return x / scale


@FAMILY.program(ONE, WHERE, grad=True)
def predicate_inside_no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        positive = x.sum() > 0
    return x * 2 if positive else x * 3


@FAMILY.program(ONE, WHERE, grad=True)
@torch.no_grad()
def decorated_with_no_grad(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x * 3


@FAMILY.program(ONE, WHERE, grad=True)
def no_grad_block_inside_both_arms(x: Tensor) -> Tensor:
    if x.sum() > 0:
        with torch.no_grad():
            s = x.abs().amax()
        y = x * s
    else:
        with torch.no_grad():
            s = x.abs().amin() + 1
        y = x / s
    return y


@FAMILY.program(ONE, WHERE, grad=True)
def enable_grad_inside_no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        h = x * 2
        with torch.enable_grad():
            y = x * 2 if x.sum() > 0 else x * 3
    return y + h


# Only x itself can carry a gradient, but grad mode is off where the branch is.
@FAMILY.program(ONE, WHERE, expect_grad=(keep("none_grad"),), grad=True)
def input_returned_from_no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x if x.sum() > 0 else x.abs()
    return y


@FAMILY.program(MAT, WHERE, grad=True, tags="contexts")
def inside_autocast_block(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        if x.sum() > 0:
            y = x @ w
        else:
            y = w @ x
    return y


@FAMILY.program(MAT, WHERE, grad=True)
def autocast_makes_the_arms_differ(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w if x.sum() > 0 else x + w
    return y


@FAMILY.program(MAT, WHERE, grad=True)
def autocast_in_one_arm(x: Tensor, w: Tensor) -> Tensor:
    if x.sum() > 0:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
    else:
        y = x @ w
    return y


@FAMILY.program(MAT, WHERE, grad=True)
def autocast_in_both_arms(x: Tensor, w: Tensor) -> Tensor:
    if x.sum() > 0:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = (x @ w).float()
    else:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = (w @ x).float() + 1
    return y


@FAMILY.program(MAT, WHERE, grad=True)
def autocast_switched_off_inside(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = x @ w
        with torch.autocast("cpu", enabled=False):
            h = h.float()
            y = h @ w if x.sum() > 0 else w @ h
    return y


@FAMILY.program(MAT, WHERE, grad=True)
class AutocastLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.proj(x @ w)
            if x.sum() > 0:
                h = h.relu()
        return h


@FAMILY.program(ONE, WHERE | FREE)
def inside_inference_mode_block(x: Tensor) -> Tensor:
    with torch.inference_mode():
        y = x * 2 if x.sum() > 0 else x * 3
    return y


@FAMILY.program(ONE, WHERE | FREE, grad=True)
def return_inside_no_grad_block(x: Tensor) -> Tensor:
    with torch.no_grad():
        if x.sum() > 0:
            return x * 2
    return x * 3


@FAMILY.program(ONE, keep("untraceable"), grad=True)
def kept_inside_no_grad_block(x: Tensor) -> Tensor:
    with torch.no_grad():
        if x.sum() > 0:
            note("inside")
            y = x * 2
        else:
            y = x * 3
    return x * y


@FAMILY.program(ONE, WHERE, grad=True)
def grad_mode_asked_for(x: Tensor) -> Tensor:
    h = x * 2 if torch.is_grad_enabled() else x * 5
    return h.sin() if x.sum() > 0 else h.cos()
