"""Numbers read from tensors only to be tested: they stay on the device, compared as Python would.

``.item()`` and ``float()`` give doubles, ``int`` tensors Python integers; a comparison in the
tensor's own dtype would differ. A number that anything else uses is read, as eager reads it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..support.inputs import B, InputSets, cases, signs
from ..support.program import FREE, UNTOUCHED, WHERE, Family, Verdict, keep

FAMILY = Family("item_predicates")
ONE = signs((B, 4))
NAN, INF = float("nan"), float("inf")
PREDICATE = keep("predicate")


LIMITED = cases(
    lambda: [
        (torch.tensor(v),)
        for v in ([3.0, -1.0, 0.5], [-1.0, 0.5, 0.25], [0.0, -0.0, 0.0], [NAN, 1.0, 1.0])
    ]
)


def add(*verdicts: Verdict, inputs: Callable[[int], InputSets] = LIMITED, **rest: Any) -> Any:
    """A program all of whose conditional jumps test numbers."""
    return FAMILY.program(inputs, *verdicts, jumps=True, **rest)


@add(WHERE, grad=True, tags="inductor contexts")
def largest_scaled(x: Tensor) -> Tensor:
    if x.abs().max().item() > 2.0:
        x = x / x.abs().max()
    return x + 1


@add(WHERE, grad=True)
def stored_in_a_local(x: Tensor) -> Tensor:
    total = x.sum().item()
    h = x * 2
    if total > 0:
        h = h + 1
    return h


@add(WHERE, WHERE, inputs=signs((3,), flips=1), one_sided=True, grad=True)
def tested_twice(x: Tensor) -> Tensor:
    total = x.sum().item()
    if total > 0:
        y = x * 2
    elif total < -3:
        y = x * 3
    else:
        y = x + 1
    return y


@add(WHERE, WHERE, grad=True, one_sided=True)
def count_compared(x: Tensor) -> Tensor:
    n = (x > 0).sum().item()
    if n > 1.5:
        x = x * 2
    if n == 0:
        x = x - 1
    return x + 1


@add(WHERE, one_sided=True, grad=True)
def two_terms(x: Tensor) -> Tensor:
    if float(x.sum()) > 1e-8 and bool((x >= -2).all()):
        x = x * 2
    return x + 1


@add(WHERE, grad=True, tags="inductor")
def difference_of_two(x: Tensor) -> Tensor:
    if x.max().item() - x.min().item() > 1:
        x = x * 2
    return x + 1


@add(WHERE, inputs=signs((3, 4)), one_sided=True, grad=True)
def in_a_loop(x: Tensor) -> Tensor:
    for i in range(3):
        if x[i].sum().item() < 0:
            x = x * 0.5
    return x + 1


@add(WHERE, grad=True, tags="inductor contexts")
def half_and_tiny(x: Tensor) -> Tensor:
    smallest = x.half().relu().sum() * 6e-8
    if smallest.item() > 1e-8:
        return x * 2
    return x - 1


@add(WHERE, grad=True)
def not_an_item(x: Tensor) -> Tensor:
    if not x.isnan().any().item():
        x = x + 1
    return x * 2


@add(WHERE, grad=True)
def truth_stored(x: Tensor) -> Tensor:
    positive = bool((x > -2).all())
    h = x * 2
    if positive:
        h = h + 1
    return h


@add(WHERE, inputs=signs((B, 4)), grad=True, tags="inductor")
def any_batch(x: Tensor) -> Tensor:
    if x.sum().item() > 0:
        return x * 2
    return x + 1


@add(WHERE, inputs=signs((1, 1)), grad=True)
def one_element_of_two_dimensions(x: Tensor) -> Tensor:
    if x.item() > 0.125:
        return x * 2
    return x + 1


@add(WHERE, grad=True)
def in_one_arm_of_another(x: Tensor) -> Tensor:
    h = x * 2
    if x[0].item() > 0:
        h = h + x
    return h


@add(WHERE, one_sided=True, grad=True)
class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.limit = 0.25

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        if x.max().item() > self.limit:
            h = h.clamp(max=1)
        return h


# Near misses: the number is read, and nothing is made of it that eager would not have made.
@add(FREE, extra=True)
def used_in_an_arm(x: Tensor) -> Tensor:
    total = x.sum().item()
    if total > 0:
        return x * total
    return x + 1


@add(FREE, extra=True)
def used_after_the_branch(x: Tensor) -> Tensor:
    total = x.sum().item()
    h = x * 2
    if total > 0:
        h = h + 1
    return h * total


@add(FREE, extra=True)
def returned_as_well(x: Tensor) -> tuple[Tensor, float]:
    total = x.sum().item()
    h = x * 2
    if total > 0:
        h = h + 1
    return h, total


@add(FREE, extra=True)
def outcome_returned(x: Tensor) -> tuple[Tensor, bool]:
    positive = x.sum().item() > 0
    if positive:
        x = x * 2
    return x + 1, positive


@add(FREE, extra=True)
def truth_returned(x: Tensor) -> tuple[Tensor, bool]:
    positive = bool(x.sum() > 0)
    if positive:
        x = x * 2
    return x + 1, positive


@add(FREE, extra=True)
def put_in_a_list(x: Tensor) -> tuple[Tensor, list[float]]:
    seen = [x.sum().item()]
    if seen[0] > 0:
        x = x * 2
    return x + 1, seen


@add(FREE, extra=True)
def given_to_math(x: Tensor) -> Tensor:
    if math.isnan(x.sum().item()):
        return x * 2
    return x + 1


@add(FREE, extra=True)
def printed(x: Tensor) -> Tensor:
    total = x.sum().item()
    print(total)
    if total > 0:
        x = x * 2
    return x + 1


@add(PREDICATE, inputs=cases(lambda: [(torch.tensor([v]),) for v in (2.9, -2.9, 3.0, 2.0)]))
def integer_of_a_float(x: Tensor) -> Tensor:
    # It rounds towards zero.
    if int(x.sum()) > 2:
        return x * 2
    return x + 1


@add(
    PREDICATE,
    inputs=cases(lambda: [(torch.tensor([v]),) for v in (2.9, NAN, INF)]),
    one_sided=True,
)
def integer_of_nan(x: Tensor) -> Tensor:
    # int(nan) is an error, in eager and so here.
    if int(x.sum()) > 2:
        return x * 2
    return x + 1


@add(
    PREDICATE,
    inputs=cases(lambda: [(torch.tensor([v]),) for v in (2**62, 1, -(2**62))]),
)
def integers_that_would_overflow(x: Tensor) -> Tensor:
    if x[0].item() * 4 > 2**63:
        return x * 2
    return x + 1


@add(PREDICATE, inputs=cases(lambda: [(torch.tensor([v]),) for v in (2**53 + 1, 2**53, 1)]))
def integer_and_float_read_back(x: Tensor) -> Tensor:
    if x[0].item() > x[0].clamp(max=2**53).double().item():
        return x * 2
    return x + 1


@add(inputs=cases(lambda: [(torch.ones(2),), (torch.ones(2) * -1,)]), one_sided=True, extra=True)
def item_of_several_raises(x: Tensor) -> Tensor:
    if x.item() > 0:
        return x * 2
    return x + 1


@add(FREE, inputs=cases(lambda: [(torch.tensor([v + 0j]),) for v in (1.0, -1.0)]), extra=True)
def complex_number(x: Tensor) -> Tensor:
    if x.item() == 1:
        return x * 2
    return x + 1


@FAMILY.program(LIMITED, UNTOUCHED, one_sided=True, jumps=True)
def shape_from_it(x: Tensor) -> Tensor:
    n = (x > 0).sum().item()
    if n > 1:
        return x.new_ones(int(n))
    return x.new_zeros(int(n))
