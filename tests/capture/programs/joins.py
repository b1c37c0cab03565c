"""Arms that leave tensors of another dtype, device, shape or strides, which no select joins."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..support.inputs import B, signs
from ..support.program import WHERE, Family, Verdict, keep

FAMILY = Family("joins")
ONE = signs((B, 4))
SQUARE = signs((3, 3))
Op = Callable[[Tensor], Tensor]


def joined(arm: Op, other: Op, x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = arm(x)
    else:
        y = other(x)
    return y


STRIDE = keep("stride_mismatch")

# name: arm, other arm, verdict. The input is (3, 3), float32.
PAIRS: dict[str, tuple[Op, Op, Verdict]] = {
    "half_or_float": (lambda x: x.half(), lambda x: x * 2, WHERE),
    "bfloat16_or_float": (lambda x: x.bfloat16() * 2, lambda x: x * 2, WHERE),
    "double_or_float": (lambda x: x.double(), lambda x: x * 2, WHERE),
    "half_or_bfloat16": (lambda x: x.half(), lambda x: x.bfloat16(), WHERE),
    "long_or_float": (lambda x: x.long() + 1, lambda x: x * 2, WHERE),
    "int_or_long": (lambda x: x.int() + 1, lambda x: x.long(), WHERE),
    "bool_or_float": (lambda x: x > 0, lambda x: x * 2, WHERE),
    "bool_or_uint8": (lambda x: x > 0, lambda x: (x > 0).to(torch.uint8), WHERE),
    "complex_or_float": (lambda x: torch.complex(x, x), lambda x: x * 2, WHERE),
    "zero_dim_double_or_float": (lambda x: x.sum().double(), lambda x: x.sum(), WHERE),
    "count_or_sum": (lambda x: (x > 0).sum(), lambda x: x.sum(), WHERE),
    "argmax_or_max": (lambda x: x.argmax(), lambda x: x.max(), WHERE),
    "dtype_and_shape": (lambda x: x.half().sum(), lambda x: x * 2, WHERE),
    "same_half": (lambda x: x.half() * 2, lambda x: x.half() * 3, WHERE),
    "same_bool": (lambda x: x > 0, lambda x: x < 1, WHERE),
    "same_long": (lambda x: x.long(), lambda x: (x * 2).long(), WHERE),
    "same_complex": (lambda x: torch.complex(x, x), lambda x: torch.complex(x, -x), WHERE),
    "scalar_or_vector": (lambda x: x.sum(), lambda x: x.sum(0), WHERE),
    "scalar_or_one_element": (lambda x: x.sum(), lambda x: x.sum().view(1), WHERE),
    "broadcastable": (lambda x: x[:, :1] * 2, lambda x: x * 2, WHERE),
    "leading_one": (lambda x: (x * 2)[None] + 0, lambda x: x * 3, WHERE),
    "row_or_column": (lambda x: x.sum(0, keepdim=True), lambda x: x.sum(1, keepdim=True), WHERE),
    "narrowed": (lambda x: x[:2] * 2, lambda x: x * 2, WHERE),
    "empty_or_full": (lambda x: x[:0] * 2, lambda x: x * 2, WHERE),
    "concatenated": (lambda x: torch.cat([x, x]), lambda x: x * 2, WHERE),
    "transposed_or_not": (lambda x: (x * 2).t(), lambda x: x * 3, WHERE),
    "both_transposed": (lambda x: (x * 2).t(), lambda x: (x * 3).t(), WHERE),
    "pointwise_of_transposed": (lambda x: x.t() * 2, lambda x: x * 3, WHERE),
    "expanded_or_dense": (lambda x: x.sum(0).expand(3, 3), lambda x: x * 3, STRIDE),
    "both_expanded": (lambda x: x.sum(0).expand(3, 3), lambda x: x.mean(0).expand(3, 3), STRIDE),
    "both_gappy": (lambda x: (x * 2)[:, ::2], lambda x: (x * 3)[:, ::2], STRIDE),
    "gappy_or_dense": (lambda x: (x * 2)[:, :2], lambda x: x[:, :2] * 3, STRIDE),
    "one_row_of_other_strides": (lambda x: (x[:, :1] * 2).t(), lambda x: x[:1] * 3, STRIDE),
    "both_one_row_of_a_column": (
        lambda x: (x[:, :1] * 2).t(),
        lambda x: (x[:, :1] * 3).t(),
        WHERE | STRIDE,
    ),
    "both_empty": (lambda x: x[:0] * 2, lambda x: x[:0] - 1, WHERE),
    "contiguous_again": (lambda x: (x * 2).t().contiguous(), lambda x: x * 3, WHERE),
    "diagonal_or_row": (lambda x: (x * 2).diagonal(), lambda x: x[0] * 2, STRIDE),
}
NO_GRADIENT = frozenset(
    """
    same_long same_bool int_or_long bool_or_uint8 argmax_or_max long_or_float bool_or_float
    count_or_sum
    """.split()
)
for name, (arm, other, verdict) in PAIRS.items():
    FAMILY.add(
        name,
        lambda arm=arm, other=other: partial(joined, arm, other),
        SQUARE,
        verdict,
        grad=verdict == WHERE and name not in NO_GRADIENT,
    )


@FAMILY.program(signs((2, 3, 4, 4)), WHERE, grad=True)
def channels_last_in_one_arm(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last) * 2 if x.sum() > 0 else x * 3


@FAMILY.program(signs((2, 3, 4, 4)), WHERE, grad=True)
def channels_last_in_both_arms(x: Tensor) -> Tensor:
    h = x.to(memory_format=torch.channels_last)
    return h * 2 if x.sum() > 0 else F.relu(h)


@FAMILY.program(ONE, keep("device_mismatch"))
def other_device(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else torch.zeros(x.shape, device="meta")


@FAMILY.program(ONE, keep("device_mismatch"))
def other_device_inside_a_list(x: Tensor) -> list[Tensor]:
    return [x * 2, x * 3] if x.sum() > 0 else [x * 2, torch.zeros_like(x, device="meta")]


@FAMILY.program(ONE, WHERE)
def second_of_two_mismatches(x: Tensor) -> tuple[Tensor, Tensor]:
    if x.sum() > 0:
        a, b = x * 2, x.sum()
    else:
        a, b = x * 3, x.sum().double()
    return a, b


@FAMILY.program(ONE, WHERE, grad=True)
def mismatch_that_nobody_needs(x: Tensor) -> Tensor:
    if x.sum() > 0:
        temp = x.double()
        y = temp.float() * 2
    else:
        temp = x.sum()
        y = temp * x
    return y


@FAMILY.program(ONE, WHERE, grad=True)
def input_or_converted(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x.half()
    return x + 1


@FAMILY.program(ONE, WHERE, WHERE, grad=True)
def mismatch_then_capture(x: Tensor) -> Tensor:
    h = x.half() * 2 if x.sum() > 0 else x * 2
    return h + 1 if x.mean() > 0 else h - 1


@FAMILY.program(ONE, WHERE, WHERE, grad=True)
def capture_then_mismatch(x: Tensor) -> Tensor:
    h = x * 3 if x.sum() > 0 else x * 2
    return h.half() if x.mean() > 0 else h - 1
