"""Python numbers that differ between the arms and go into tensor arithmetic: eager's weak scalars.

Each call that uses the number is made with either number and selected between, so dtype, rounding
and overflow are those of the number itself. Wherever Python, a shape or the caller sees the number,
the branch stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..support.inputs import B, InputSets, cases, signs
from ..support.program import WHERE, Family, cond, keep

FAMILY = Family("numbers")
ONE = signs((B, 4))
STATIC = signs((3, 4))  # a number from a closure or an attribute is a symbol where shapes are
TWO = signs((B, 4), (B, 4), flips=2)
VALUE = keep("python_value")
NAN, INF = float("nan"), float("inf")

# name: what the arms leave. The result has the dtype eager gives it with either number.
PAIRS: dict[str, tuple[Any, Any]] = {
    "floats": (2.0, 0.1),
    "integers": (3, -2),
    "integer_or_float": (3, 0.5),
    "signed_zeros": (0.0, -0.0),
    "nan_or_zero": (NAN, 0.0),
    "infinities": (INF, -INF),
    "third": (1 / 3, 1.0),
    "beyond_float32": (1e300, 1.0),
    "below_float32": (1e-300, 1.0),
}
# name: how it is used.
USES: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "times": lambda x, s: x * s,
    "times_from_the_left": lambda x, s: s * x,
    "plus": lambda x, s: x + s,
    "minus": lambda x, s: x - s,
    "minus_from_the_left": lambda x, s: s - x,
    "divided": lambda x, s: x / (s * s + 2),
    "divides": lambda x, s: s / (x.abs() + 1),
    "maximum": lambda x, s: x.clamp(min=s),
    "compared": lambda x, s: (x > s) * x,
    "where": lambda x, s: torch.where(x > 0, x, s),
    "alpha": lambda x, s: torch.add(x, x.sin(), alpha=s),
    "masked_fill": lambda x, s: x.masked_fill(x > 0, s),
    "arithmetic_of_numbers": lambda x, s: x * (2 * s + 1) - (-s),
    "twice": lambda x, s: (x + s) * s,
}


def using(pair: str, use: str) -> Callable[[Tensor], Tensor]:
    one, other = PAIRS[pair]
    combine = USES[use]

    def program(x: Tensor) -> Tensor:
        s = one if x.sum() > 0 else other
        return combine(x, s)

    return program


for pair in PAIRS:
    FAMILY.add(f"pair_{pair}", lambda pair=pair: using(pair, "times"), STATIC, WHERE, grad=True)
for use in USES:
    FAMILY.add(
        f"use_{use}",
        lambda use=use: using("floats", use),
        STATIC,
        WHERE,
        grad=True,
        tags="inductor contexts" if use in {"times", "plus"} else "",
    )

for dtype in (torch.float16, torch.bfloat16, torch.float64):
    FAMILY.add(
        "dtype_" + str(dtype).removeprefix("torch."),
        lambda: using("third", "twice"),
        signs((3, 4), dtype=dtype),
        WHERE,
        grad=True,
    )
for pair in ("integers", "integer_or_float"):
    # Integers times a float are floats: the two outcomes may have different dtypes.
    FAMILY.add(
        f"integer_tensor_with_{pair}",
        lambda pair=pair: using(pair, "times"),
        signs((3, 4), dtype=torch.int64),
        WHERE,
    )


@FAMILY.program(signs((B, 4), dtype=torch.int32), WHERE)
def whole_division(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    s = 2 if x.sum() > 0 else -3
    return x // s, x % s, x * s


@FAMILY.program(signs((B, 4), dtype=torch.int64), cond("partial_op"), one_sided=True)
def division_by_nothing(x: Tensor) -> Tensor:
    s = 2 if x.sum() > 0 else 0
    return x // s


@FAMILY.program(signs((B, 4), dtype=torch.uint8, flips=0), WHERE | VALUE, one_sided=True)
def wraps_around(x: Tensor) -> Tensor:
    s = 200 if x.sum() > 0 else 100
    return x + s


@FAMILY.program(signs((3, 4), flips=0), cond("partial_op") | keep("partial_op"), one_sided=True)
def too_large_for_the_dtype(x: Tensor) -> Tensor:
    # Eager raises in the arm not taken, and nowhere else.
    return x.clamp(max=1.0) if x.sum() > 0 else x.clamp(max=1e300)


def three() -> InputSets:
    return [(torch.tensor([v, 0.5, -0.5]),) for v in (4.0, 0.25, -4.0)]


@FAMILY.program(cases(three), WHERE, WHERE, grad=True, tags="inductor")
def three_numbers(x: Tensor) -> Tensor:
    if x.sum() > 2:
        s = 2.0
    elif x.sum() < -2:
        s = 1.0
    else:
        s = 5.0
    return (x.half() * s).float() * s


@FAMILY.program(TWO, WHERE, WHERE, grad=True)
def a_number_of_a_number(x: Tensor, y: Tensor) -> Tensor:
    s = 2.0 if x.sum() > 0 else 0.5
    t = s + 1 if y.sum() > 0 else s * 3
    return x * t + y * s


@FAMILY.program(ONE, WHERE, grad=True)
def halved_while_too_large(x: Tensor) -> Tensor:
    s = 1.0
    for i in range(3):
        if x[i].sum() > 0:
            s = s * 0.5
    return x * s


@FAMILY.program(TWO, WHERE, WHERE, grad=True)
def used_in_an_arm(x: Tensor, y: Tensor) -> Tensor:
    s = 2.0 if x.sum() > 0 else 0.5
    h = x - y
    if y.sum() > 0:
        h = h * s
    return h


@FAMILY.program(ONE, WHERE, grad=True)
def literals(x: Tensor) -> Tensor:
    s = 2.0 if x.sum() > 0 else 0.5
    return x * s + (s - 1)


@FAMILY.program(ONE, WHERE, grad=True)
def only_dead_uses(x: Tensor) -> Tensor:
    s = 2.0 if x.sum() > 0 else 0.5
    s = 1.0
    return x * s


@FAMILY.program(STATIC, WHERE, grad=True, tags="inductor contexts")
class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.large, self.small = 4.0, 0.25

    def forward(self, x: Tensor) -> Tensor:
        scale = self.large if x.sum() > 0 else self.small
        return self.linear(x * scale) * scale


def loss_cases() -> InputSets:
    x = torch.tensor([1.0, -2.0, 3.0])
    return [(x.clone(),), (-x.abs(),), (x.abs(),), (x * 0,)]


LOSS = cases(loss_cases)


@FAMILY.program(LOSS, WHERE, tags="inductor")
def ratio_or_zero(x: Tensor) -> Tensor:
    count = (x > 0).sum()
    loss = x.sum() / count if count != 0 else 0
    return loss + x.mean()


@FAMILY.program(LOSS, WHERE, grad=True, tags="inductor")
def ratio_or_zero_with_gradient(x: Tensor) -> Tensor:
    # Eager divides nothing where the denominator is zero; its gradient would be 0/0.
    den = x.relu().sum()
    loss = x.sum() / den if den != 0 else 0.0
    return (loss + x.mean()) * 2


@FAMILY.program(LOSS, WHERE)
def ratio_or_zero_returned(x: Tensor) -> Tensor | int:
    # The caller gets a tensor, or a number.
    count = (x > 0).sum()
    return x.sum() / count if count != 0 else 0


@FAMILY.program(LOSS, WHERE | VALUE)
def zero_dim_tensor_or_number(x: Tensor) -> Tensor:
    # A 0-d float64 tensor does not promote float32, and neither does a number.
    s = x.double().sum() if x.sum() > 0 else 0.5
    return x * s


@FAMILY.program(LOSS, WHERE | VALUE | keep("dtype_mismatch"))
def vector_or_number(x: Tensor) -> Tensor:
    # A float64 vector does promote.
    s = x.double() if x.sum() > 0 else 0.5
    return x * s


# Near misses: somebody other than tensor arithmetic sees the number.
SEEN: dict[str, Callable[[Tensor, Any], Any]] = {
    "shape": lambda x, s: x.new_zeros(s) + 1,
    "repeat": lambda x, s: x.repeat(s, 1),
    "index": lambda x, s: x[s - 2],
    "slice": lambda x, s: x[: s - 1],
    "dimension": lambda x, s: x.sum(s - 2),
    "range": lambda x, s: sum(x * i for i in range(s)),
    "test": lambda x, s: x + 1 if s > 2 else x,
    "returned": lambda x, s: (x * 2, s),
    "returned_sum": lambda x, s: (x * 2, s + 1),
    "string": lambda x, s: (x * 2, f"{s}"),
    "dictionary_key": lambda x, s: {2: x, 3: x * 2}[s],
    "list_item": lambda x, s: [x, x + 1, x + 2, x + 3][s],
    "tensor_made": lambda x, s: x + torch.full((4,), s),
    "integer_of_it": lambda x, s: x * int(s),
    "shift": lambda x, s: x.long() << s,
    "in_place": lambda x, s: (x * 1).mul_(s),
    "random": lambda x, s: F.dropout(x, 1 / s),
    "power": lambda x, s: x**s,
    "tensor_of_it": lambda x, s: x + torch.tensor(s),
}


def seeing(name: str) -> Callable[[Tensor], Any]:
    see = SEEN[name]

    def program(x: Tensor) -> Any:
        s = 2 if x.sum() > 0 else 3
        return see(x, s)

    return program


for name in SEEN:
    verdict = cond("random_op") if name == "random" else WHERE
    FAMILY.add(f"seen_{name}", lambda name=name: seeing(name), ONE, verdict)


# Near misses: what the arms leave is no number, or not two of them.
LEFT: dict[str, tuple[Any, Any]] = {
    "truth_values": (True, False),
    "number_or_truth_value": (2, True),
    "number_or_none": (2.0, None),
    "complex": (2j, 1.0),
    "string": ("a", 2),
}


def leaving(name: str) -> Callable[[Tensor], Tensor]:
    one, other = LEFT[name]

    def program(x: Tensor) -> Tensor:
        s = one if x.sum() > 0 else other
        return x * s if isinstance(s, (int, float, complex)) else x + 1

    return program


for name in LEFT:
    FAMILY.add(f"left_{name}", lambda name=name: leaving(name), ONE, WHERE)
