"""Arms whose backward is infinite or NaN just where they are not taken.

Each arm is safe for one input and has a singular derivative for the other; the branch tests exactly
that. Selecting the outputs alone gives 0 * inf = NaN gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..support.inputs import cases, rows
from ..support.program import WHERE, Family, keep

FAMILY = Family("nan_gradients")
Op = Callable[[Tensor], Tensor]


def guarded(safe: Op, arm: Op, other: Op, x: Tensor) -> Tensor:
    if safe(x):
        y = arm(x)
    else:
        y = other(x)
    return y


def positive(x: Tensor) -> Tensor:
    return (x > 0).all()


def nonzero(x: Tensor) -> Tensor:
    return (x != 0).all()


def below_one(x: Tensor) -> Tensor:
    return (x.abs() < 1).all()


def twice(x: Tensor) -> Tensor:
    return x * 2


GOOD, ZERO = [0.5, 0.25, 0.75], [0.0, 0.25, 0.75]
ONES = [1.0, 0.25, -1.0]
# name: (when the arm is taken, the arm, the other arm, values that are safe, values that are not)
TRAPS: dict[str, tuple[Op, Op, Op, list[float], list[float]]] = {
    "sqrt_at_zero": (positive, torch.sqrt, twice, GOOD, ZERO),
    "rsqrt_at_zero": (positive, torch.rsqrt, twice, GOOD, ZERO),
    "log_at_zero": (positive, torch.log, twice, GOOD, ZERO),
    "log_of_negative": (positive, torch.log, twice, GOOD, [-1.0, 0.5, 0.5]),
    "log2_at_zero": (positive, torch.log2, twice, GOOD, ZERO),
    "log1p_at_minus_one": (lambda x: (x > -1).all(), torch.log1p, twice, GOOD, [-1.0, 0.5, 0.5]),
    "reciprocal_at_zero": (nonzero, torch.reciprocal, twice, GOOD, ZERO),
    "division_by_zero": (nonzero, lambda x: 3 / x, twice, GOOD, ZERO),
    "zero_over_zero": (nonzero, lambda x: x / x, twice, GOOD, ZERO),
    "power_half_at_zero": (positive, lambda x: x**0.5, twice, GOOD, ZERO),
    "negative_power_at_zero": (nonzero, lambda x: x**-2, twice, GOOD, ZERO),
    "tensor_power_at_zero": (positive, lambda x: x ** (x - 0.9), twice, GOOD, ZERO),
    "norm_at_zero": (lambda x: x.norm() > 0, torch.norm, lambda x: x.sum() * 2, GOOD, [0.0] * 3),
    "vector_norm_ord_half": (
        nonzero,
        lambda x: torch.linalg.vector_norm(x, 0.5),
        lambda x: x.sum(),
        GOOD,
        ZERO,
    ),
    "acos_at_one": (below_one, torch.acos, twice, GOOD, ONES),
    "asin_at_one": (below_one, torch.asin, twice, GOOD, ONES),
    "atanh_at_one": (below_one, torch.atanh, twice, GOOD, ONES),
    "acosh_at_one": (lambda x: (x > 1).all(), torch.acosh, twice, [2.0, 3.0, 1.5], [1.0, 2.0, 0.5]),
    "erfinv_at_one": (below_one, torch.erfinv, twice, GOOD, ONES),
    "logit_at_one": (below_one, torch.logit, twice, GOOD, ONES),
    "atan2_at_origin": (nonzero, lambda x: torch.atan2(x, x), twice, GOOD, ZERO),
    "std_of_equal": (lambda x: x.std() > 0, torch.std, lambda x: x.sum(), GOOD, [1.0] * 3),
    "mean_by_empty_mask": (
        lambda x: (x > 0).any(),
        lambda x: x.sum() / (x > 0).sum() / x.clamp(0).sum(),
        lambda x: x.sum() * 3,
        GOOD,
        [-1.0, -2.0, -3.0],
    ),
    "exp_overflow": (
        lambda x: (x < 50).all(),
        lambda x: x.exp() / (1 + x.exp()),
        twice,
        GOOD,
        [200.0, 0.5, 1.0],
    ),
    "softmax_all_masked": (
        lambda x: (x > 0).any(),
        lambda x: x.masked_fill(x <= 0, float("-inf")).softmax(0),
        twice,
        GOOD,
        [-1.0, -2.0, 0.0],
    ),
    "logsumexp_all_masked": (
        lambda x: (x > 0).any(),
        lambda x: x.masked_fill(x <= 0, float("-inf")).logsumexp(0),
        lambda x: x.sum(),
        GOOD,
        [-1.0, -2.0, 0.0],
    ),
    "log_of_sum": (
        lambda x: x.sum() > 0,
        lambda x: x.sum().log() * x,
        twice,
        GOOD,
        [-1.0, 0.5, 0.5],
    ),
    "xlogy_at_zero": (positive, lambda x: torch.xlogy(x, x), twice, GOOD, ZERO),
    "product_of_logs": (positive, lambda x: x.log().prod() + x, twice, GOOD, ZERO),
    "matmul_with_infinity": (
        nonzero,
        lambda x: (1 / x)[None] @ x[:, None] + x,
        lambda x: x[None] * 2,
        GOOD,
        ZERO,
    ),
    "cosine_of_zero": (
        lambda x: x.norm() > 0,
        lambda x: (x / x.norm()) @ x,
        lambda x: x.sum(),
        GOOD,
        [0.0] * 3,
    ),
    "cdist_of_equal": (
        lambda x: x.std() > 0,
        lambda x: torch.cdist(x[:, None], x[:, None].sqrt()).sum(),
        lambda x: x.sum(),
        GOOD,
        [1.0] * 3,
    ),
}
FOR_INDUCTOR = {
    "sqrt_at_zero",
    "log_at_zero",
    "division_by_zero",
    "norm_at_zero",
    "acos_at_one",
    "std_of_equal",
    "softmax_all_masked",
}
for name, (safe, arm, other, good, bad) in TRAPS.items():
    FAMILY.add(
        name,
        lambda safe=safe, arm=arm, other=other: partial(guarded, safe, arm, other),
        rows(good, bad),
        WHERE,
        grad=True,
        tags="inductor" if name in FOR_INDUCTOR else "",
    )


# The singular operation stands before the branch, its result is used by one arm only: in eager its
# backward does not run at all when the other arm is taken. Gating the arm's operand is not enough:
# the operation is made again inside the arm.
BEFORE: dict[str, tuple[Op, Op, list[float], list[float]]] = {
    "sqrt": (torch.sqrt, positive, GOOD, ZERO),
    "log": (torch.log, positive, GOOD, ZERO),
    "reciprocal": (torch.reciprocal, nonzero, GOOD, ZERO),
    "division": (lambda x: 3 / x, nonzero, GOOD, ZERO),
    "power": (lambda x: x**0.5, positive, GOOD, ZERO),
    "acos": (torch.acos, below_one, GOOD, ONES),
    "two_steps": (lambda x: x.sqrt().log(), positive, GOOD, ZERO),
    "std": (lambda x: x.std() * x, lambda x: x.std() > 0, GOOD, [1.0] * 3),
}


def prepared(of: Op, safe: Op, x: Tensor) -> Tensor:
    h = of(x)
    if safe(x):
        y = h * 2
    else:
        y = x * 3
    return y


def prepared_and_used_later(of: Op, safe: Op, x: Tensor) -> tuple[Tensor, Tensor]:
    h = of(x)
    y = h * 2 if safe(x) else x * 3
    return y, h.detach() + x


for name, (of, safe, good, bad) in BEFORE.items():
    for function in (prepared, prepared_and_used_later):
        FAMILY.add(
            f"{function.__name__}_{name}",
            lambda function=function, of=of, safe=safe: partial(function, of, safe),
            rows(good, bad),
            WHERE,
            grad=True,
        )


@FAMILY.program(rows(GOOD, ZERO), WHERE, grad=True)
def prepared_and_used_by_both_arms(x: Tensor) -> Tensor:
    # Whichever arm is taken, eager runs the backward of sqrt: there is nothing to protect.
    root = x.sqrt()
    return root * 2 if (x > 0).all() else root + x


# After the first break the root is an input of what follows, no longer an operation.
@FAMILY.program(
    rows(GOOD, ZERO),
    WHERE,
    WHERE,
    expect_grad=(keep("nan_grad"), WHERE | keep("none_grad")),
    grad=True,
)
def prepared_then_two_branches(x: Tensor) -> Tensor:
    root = x.sqrt()
    y = root * 2 if (x > 0).all() else x * 3
    return y + (root if not (x == 0).any() else x)


@FAMILY.program(rows([[0.5, 1.0]], [[0.0, 1.0]]), WHERE, grad=True, tags="inductor")
class WeightMeetsInfinity(nn.Module):
    """The weight's gradient is x.log() times the cotangent: 0 * -inf unless gated."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        if (x > 0).all():
            return self.proj(x.log())
        return self.proj(x)


@FAMILY.program(rows([4.0, 9.0], [0.0, 9.0]), WHERE, grad=True)
def trap_two_steps_deep(x: Tensor) -> Tensor:
    h = x * 2
    if (h > 0).all():
        root = h.sqrt()
        y = 1 / root + root
    else:
        y = h - 1
    return y * x


@FAMILY.program(rows([4.0, 9.0], [0.0, 9.0], [-1.0, 0.0]), WHERE, WHERE, grad=True)
def trap_in_nested_arm(x: Tensor) -> Tensor:
    if (x >= 0).all():
        if (x != 0).all():
            y = x.log() / x
        else:
            y = x.exp()
    else:
        y = x * 3
    return y


@FAMILY.program(rows([4.0, 9.0], [0.0, 9.0]), WHERE, grad=True)
def traps_in_both_arms(x: Tensor) -> Tensor:
    return x.sqrt() if (x > 0).all() else (x - 4).abs().sqrt()


@FAMILY.program(
    cases(
        lambda: [
            (torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0])),
            (torch.tensor([1.0, 0.0]), torch.tensor([0.0, 4.0])),
        ]
    ),
    WHERE,
    grad=True,
)
def quotient_of_two_inputs(num: Tensor, den: Tensor) -> Tensor:
    return num / den if (den != 0).all() else num * den


@FAMILY.program(rows([0.25, 0.5], [0.0, 0.5]), WHERE, grad=True)
def early_return_before_log(x: Tensor) -> Tensor:
    if (x <= 0).any():
        return x * 5
    return x.log().sum() * F.softmax(x, 0)
