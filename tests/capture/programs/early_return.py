"""A return in an arm: the other arm is the rest of the function."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..support.inputs import B, rows, signs
from ..support.program import FREE, WHERE, Family

FAMILY = Family("early_return")
ONE = signs((B, 4))
PAIR = signs((B, 4), (B, 4), flips=2)


@FAMILY.program(ONE, WHERE, grad=True, tags="inductor contexts")
def then_returns(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x * 2
    y = x.sin()
    return y + 1


@FAMILY.program(ONE, WHERE, grad=True)
def both_return(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x * 2
    else:
        return x * 3


@FAMILY.program(ONE, WHERE, grad=True)
def else_returns(x: Tensor) -> Tensor:
    h = x.exp()
    if x.sum() > 0:
        h = h + x
    else:
        return h - x
    return h.sqrt()


@FAMILY.program(PAIR, WHERE, WHERE, grad=True, tags="inductor contexts")
def guard_clauses(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0:
        return x * y
    if y.sum() > 0:
        return x + y
    return x - y


@FAMILY.program(
    rows([5.0, 1.0], [2.0, 0.5], [0.5, -0.2], [-1.0, -2.0]), WHERE, WHERE, WHERE, grad=True
)
def three_guard_clauses(x: Tensor) -> Tensor:
    total = x.sum()
    if total > 4:
        return x * total
    if total > 1:
        return x + total
    if total > 0:
        return x - total
    return x.abs()


@FAMILY.program(PAIR, WHERE, WHERE, grad=True)
def return_from_nested_arm(x: Tensor, y: Tensor) -> Tensor:
    h = x * y
    if x.sum() > 0:
        if y.sum() > 0:
            return h + 1
        h = h * 2
    return h - x


@FAMILY.program(PAIR, WHERE, WHERE, grad=True)
def every_path_returns(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0:
        if y.sum() > 0:
            return x * y
        return x * 2 + y
    return y - x


@FAMILY.program(PAIR, WHERE, WHERE, grad=True)
def branch_after_return(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0:
        return x * y
    h = x + y
    if y.sum() > 0:
        h = h.tanh()
    else:
        h = h.sigmoid()
    return h * 2


@FAMILY.program(ONE, WHERE, grad=True)
def returns_tuple(x: Tensor) -> tuple[Tensor, Tensor]:
    if x.sum() > 0:
        return x * 2, x.sum(1)
    return x * 3, x.mean(1)


@FAMILY.program(ONE, WHERE, grad=True)
def returns_dict(x: Tensor) -> dict[str, Tensor]:
    if x.sum() > 0:
        return {"out": x * 2, "norm": x.norm()}
    return {"out": x * 3, "norm": x.abs().max()}


@FAMILY.program(ONE, WHERE, grad=True)
def returns_nested_structure(x: Tensor) -> tuple[Tensor, list[dict[str, Tensor]]]:
    if x.sum() > 0:
        return x + 1, [{"a": x * 2}, {"b": x * 3}]
    return x - 1, [{"a": x * 4}, {"b": x * 5}]


@FAMILY.program(ONE, WHERE, grad=True)
def constant_beside_tensor(x: Tensor) -> tuple[Tensor, str, int]:
    if x.sum() > 0:
        return x * 2, "done", 3
    return x * 3, "done", 3


@FAMILY.program(ONE, WHERE | FREE)
def return_none_from_both(x: Tensor) -> None:
    if x.sum() > 0:
        return None
    x = x * 2
    return None


@FAMILY.program(ONE, WHERE, grad=True)
def long_rest(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x @ x.t()
    h = F.layer_norm(x, (4,))
    h = F.softmax(h, -1)
    h = h @ x.t()
    h = h - h.mean(0, keepdim=True)
    return h


@FAMILY.program(ONE, WHERE, grad=True)
class ReturnFromForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.proj(x)
        if h.sum() + x.sum() * 100 > 0:
            return h.relu()
        return h * x


def clipped(h: Tensor, limit: float) -> Tensor:
    if h.abs().max() > limit:
        return h / h.abs().max()
    return h * 0.5


@FAMILY.program(rows([1.0, 2.0], [0.1, 0.2]), WHERE, grad=True, tags="inductor contexts")
def helper_returns_early(x: Tensor) -> Tensor:
    return clipped(x * 2, 1.0) + x


@FAMILY.program(rows([1.0, 2.0], [0.1, 0.2]), WHERE, grad=True)
def helper_called_twice(x: Tensor) -> Tensor:
    return clipped(x * 2, 1.0) + clipped(x * 3 + 0.01, 0.9)


def sign_class(h: Tensor) -> Tensor:
    if h.sum() > 1:
        return h * 3
    if h.sum() < -1:
        return h * 5
    return h * 7


@FAMILY.program(rows([1.0, 2.0], [0.1, 0.2], [-3.0, 1.0]), WHERE, WHERE, grad=True)
def helper_with_two_guards(x: Tensor) -> Tensor:
    y = sign_class(x)
    return y - 1


@FAMILY.program(ONE, WHERE, grad=True)
def returns_another_shape(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x.sum(0)
    return x * 2


@FAMILY.program(ONE, WHERE, grad=True)
def returns_none_or_tensor(x: Tensor) -> Tensor | None:
    if x.sum() > 0:
        return x * 2
    return None


@FAMILY.program(ONE, WHERE)
def returns_true_or_false(x: Tensor) -> bool:
    if x.sum() > 0:
        return True
    return False


@FAMILY.program(ONE, WHERE, grad=True)
def returns_other_arity(x: Tensor) -> tuple[Tensor, ...]:
    if x.sum() > 0:
        return x * 2, x * 3
    return (x * 2,)


@FAMILY.program(ONE, WHERE, grad=True)
def falls_off_the_end(x: Tensor) -> Tensor | None:  # type: ignore[return]  # that is the program
    if x.sum() > 0:
        return x * 2


@FAMILY.program(ONE, WHERE, grad=True)
def returns_input_early(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x
    return x.sin() + torch.ones_like(x)
