"""Branches inside expressions: ternaries, and/or that hand back an operand, chained comparisons."""

from __future__ import annotations

import torch
from torch import Tensor

from ..support.inputs import B, cases, rows, signs
from ..support.program import FREE, UNTOUCHED, WHERE, Family, keep

FAMILY = Family("expressions")
BATCH = signs((B, 4))
PAIR = signs((B, 4), (B, 4), flips=2)
SCALARS = cases(
    lambda: [
        (torch.ones(4), torch.tensor(2.0), torch.tensor(3.0)),
        (torch.ones(4), torch.tensor(0.0), torch.tensor(3.0)),
        (torch.ones(4), torch.tensor(2.0), torch.tensor(0.0)),
        (torch.ones(4), torch.tensor(0.0), torch.tensor(0.0)),
    ]
)


@FAMILY.program(BATCH, WHERE, grad=True, tags="inductor contexts")
def ternary_returned(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x - 1


@FAMILY.program(BATCH, WHERE, grad=True, tags="contexts")
def ternary_as_operand(x: Tensor) -> Tensor:
    # The left operand waits on the stack while the branch runs.
    return x * 5 + (x.sin() if x.sum() > 0 else x.cos())


@FAMILY.program(PAIR, WHERE, grad=True)
def ternary_as_argument(x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(x * y, x.exp() * y if x.sum() > y.sum() else x - y)


@FAMILY.program(BATCH, WHERE, grad=True)
def ternary_as_keyword_argument(x: Tensor) -> Tensor:
    return torch.add(x, other=x.sin() if x.sum() > 0 else x.cos(), alpha=3)


@FAMILY.program(PAIR, WHERE, grad=True, tags="inductor")
def nested_ternary(x: Tensor, y: Tensor) -> Tensor:
    return x * y if x.sum() > 0 else x - y if y.sum() > 0 else x / (y * y + 1)


@FAMILY.program(PAIR, WHERE, grad=True)
def ternary_in_both_operands(x: Tensor, y: Tensor) -> Tensor:
    return (x * 2 if x.sum() > 0 else x * 3) - (y + 1 if y.sum() > 0 else y * y)


@FAMILY.program(BATCH, WHERE, grad=True)
def ternary_in_tuple(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x + 1, (x * 2 if x.sum() > 0 else x * 4), x - 1


@FAMILY.program(BATCH, WHERE, grad=True)
def ternary_in_dict(x: Tensor) -> dict[str, Tensor]:
    return {"plain": x + 1, "chosen": x.tanh() if x.sum() > 0 else x.sigmoid()}


@FAMILY.program(BATCH, WHERE, grad=True)
def ternary_in_list_then_stacked(x: Tensor) -> Tensor:
    return torch.stack([x.abs(), x * 2 if x.sum() > 0 else x - 7])


@FAMILY.program(BATCH, WHERE, grad=True)
def ternary_as_receiver(x: Tensor) -> Tensor:
    return (x * 2 if x.sum() > 0 else x - 1).relu().sum(1)


@FAMILY.program(rows([1.0, 2.0], [0.0, 2.0], [-3.0, 1.0], [-3.0, 0.0]), WHERE, grad=True)
def ternary_as_predicate(x: Tensor) -> Tensor:
    return x * 2 if (x[0] if x.sum() > 0 else x[1]) else x * 3


@FAMILY.program(BATCH, WHERE, grad=True)
def walrus(x: Tensor) -> Tensor:
    y = x / total if (total := x.sum()) > 0 else x * total
    return y + total


@FAMILY.program(rows([0.2, 0.3], [2.0, 3.0], [-2.0, -3.0]), WHERE, grad=True)
def chained_comparison(x: Tensor) -> Tensor:
    if 0 < x.sum() < 1:
        y = x * 2
    else:
        y = x - 1
    return y


@FAMILY.program(
    cases(
        lambda: [
            (torch.ones(3), torch.tensor(a), torch.tensor(b))
            for a, b in ((1.0, 2.0), (2.0, 1.0), (-1.0, 1.0), (1.0, 9.0))
        ]
    ),
    WHERE,
    grad=True,
)
def chained_comparison_of_three_tensors(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return x * a * b if 0 < a < b < 5 else x + a - b


@FAMILY.program(SCALARS, WHERE, grad=True)
def or_hands_back_an_operand(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return x * (a + 0 or b + 1)


@FAMILY.program(SCALARS, WHERE, grad=True)
def and_of_two_inputs(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    # Consumed, so nobody sees that it is one of the inputs; only one of the two gets a gradient.
    return x * (a and b)


@FAMILY.program(SCALARS, WHERE, grad=True)
def or_of_inputs_returned(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return a or b


@FAMILY.program(SCALARS, WHERE, expect_grad=(WHERE | keep("nan_grad"),), grad=True)
def three_operands(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return x * (a * b or a + b or a - b + 7)


@FAMILY.program(SCALARS, WHERE, grad=True)
def and_or_idiom(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    # What people wrote before the conditional expression.
    return (a + 0 and b * a) or a + b * 2


@FAMILY.program(SCALARS, FREE)
def not_as_value(x: Tensor, a: Tensor, b: Tensor) -> bool:
    return not a


@FAMILY.program(SCALARS, UNTOUCHED)
def explicit_bool_returned(x: Tensor, a: Tensor, b: Tensor) -> bool:
    return bool(a)


@FAMILY.program(SCALARS, FREE, WHERE | FREE)
def bool_of_tensor_then_branch(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    flag = not a
    return x + 1 if b and not flag else x - 1


@FAMILY.program(BATCH, WHERE | keep("python_value"))
def python_scalar_ternary(x: Tensor) -> Tensor:
    return x * (2.0 if x.sum() > 0 else 3.0)


@FAMILY.program(BATCH, keep("python_value"))
def ternary_in_slice(x: Tensor) -> Tensor:
    return x[:, : (1 if x.sum() > 0 else 2)] * 2


@FAMILY.program(BATCH, WHERE, grad=True)
def in_a_comprehension_result(x: Tensor) -> list[Tensor]:
    return [(row + 1 if row.sum() > x.sum() / 9 else row * 2) for row in (x[0] + x.sum(), x.sum(0))]


@FAMILY.program(BATCH, WHERE, grad=True)
def star_arguments(x: Tensor) -> Tensor:
    pair = (x + 1, x * 2) if x.sum() > 0 else (x - 1, x / 2)
    return torch.add(*pair)


@FAMILY.program(BATCH, WHERE, grad=True)
def unpacked_at_once(x: Tensor) -> Tensor:
    a, b = (x.sin(), x.cos()) if x.sum() > 0 else (x.cos(), x.sin())
    return a * 2 + b


@FAMILY.program(BATCH, WHERE, grad=True)
def f_string_is_unaffected(x: Tensor) -> tuple[str, Tensor]:
    y = x * 2 if x.sum() > 0 else x * 3
    return f"shape {tuple(y.shape)}", y
