"""Arms that draw random numbers: running one untaken would move the generator."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..support.inputs import B, signs
from ..support.program import WHERE, Family, cond, keep

FAMILY = Family("random_ops")
ONE = signs((B, 4))
RANDOM = cond("random_op")
# The backward of torch.cond would draw again.
TRAINED = (keep("random_op"),)
DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.5, training=True),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, training=True),
    "rand_like": lambda x: x + torch.rand_like(x),
    "randn": lambda x: x + torch.randn(4),
    "randint": lambda x: x + torch.randint(0, 5, (4,)),
    "randperm": lambda x: x * torch.randperm(4),
    "bernoulli_half": lambda x: x * torch.bernoulli(torch.full((4,), 0.5)),
    "uniform_in_place_on_fresh": lambda x: x * torch.zeros(4).uniform_(),
    "normal_in_place_on_fresh": lambda x: x + torch.zeros(4).normal_(),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x),
}


def drawing(draw: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = draw(x)
    else:
        y = x * 2
    return y


for name, draw in DRAWS.items():
    # bernoulli also fails for probabilities out of range, whichever is found first.
    verdict = RANDOM | cond("partial_op") if name == "bernoulli_half" else RANDOM
    FAMILY.add(
        name,
        lambda draw=draw: partial(drawing, draw),
        ONE,
        verdict,
        grad=name == "dropout",
        expect_grad=TRAINED,
    )


@FAMILY.program(ONE, RANDOM)
def both_arms_draw(x: Tensor) -> Tensor:
    return x + torch.rand(4) if x.sum() > 0 else x - torch.rand(4)


@FAMILY.program(ONE, RANDOM, grad=True, expect_grad=TRAINED)
class DropoutModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        h = x * 2
        if x.sum() > 0:
            h = self.drop(h)
        return h


@FAMILY.program(ONE, WHERE, grad=True)
def draws_before_and_after(x: Tensor) -> Tensor:
    h = x + torch.rand(4)
    h = h * 2 if x.sum() > 0 else h * 3
    return h + torch.rand(4)


@FAMILY.program(ONE, WHERE, grad=True)
def random_predicate(x: Tensor) -> Tensor:
    if torch.rand(()) + x.sum().sign() > 0.5:
        return x * 2
    return x * 3


@FAMILY.program(ONE, RANDOM)
def after_an_early_return(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x * 2
    h = x.exp()
    return h * torch.rand_like(h)


@FAMILY.program(ONE, RANDOM)
def ancestral_sampler_step(x: Tensor) -> Tensor:
    sigma = x.mean()
    x = x * 0.5
    if sigma > 0:
        x = x + torch.randn_like(x) * sigma
    return x
