"""What is easily overlooked: identities made inside arms, cells, saved tensors, globals, objects."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from ..support.inputs import B, InputSets, signs
from ..support.program import FREE, WHERE, Family, keep

FAMILY = Family("subtle")
ONE = signs((B, 4))
ALIAS = keep("alias")


@FAMILY.program(ONE, ALIAS)
def same_in_one_arm_then_written(x: Tensor) -> Tensor:
    if x.sum() > 0:
        a = b = x * 2
    else:
        a, b = x * 3, x * 4
    a.add_(1)
    return b


@FAMILY.program(ONE, WHERE | ALIAS)
def same_in_both_arms_then_written(x: Tensor) -> Tensor:
    if x.sum() > 0:
        a = b = x * 2
    else:
        a = b = x * 3
    a.add_(1)
    return b


@FAMILY.program(ONE, ALIAS)
def view_made_in_the_arm_then_base_written(x: Tensor) -> Tensor:
    if x.sum() > 0:
        a = x * 2
        b = a.view(-1)
    else:
        a = x * 3
        b = a.view(-1) + 1
    a.add_(1)
    return b * 1


@FAMILY.program(ONE, WHERE)
def base_and_view_returned(x: Tensor) -> tuple[Tensor, Tensor]:
    if x.sum() > 0:
        a = x * 2
        b = a[0]
    else:
        a, b = x * 3, x[0] * 4
    return a, b


@FAMILY.program(ONE, FREE)
def list_that_existed_before(x: Tensor) -> list[Tensor]:
    old = [x + 1]
    chosen = old if x.sum() > 0 else [x + 2]
    old.append(x * 3)
    return chosen


@FAMILY.program(ONE, FREE)
def dict_that_existed_before(x: Tensor) -> dict[str, Tensor]:
    old = {"a": x + 1}
    chosen = old if x.sum() > 0 else {"a": x + 2}
    chosen["b"] = x * 3
    return old


@FAMILY.program(ONE, FREE)
def container_identity_asked(x: Tensor) -> tuple[Tensor, bool]:
    old = [x + 1]
    chosen = old if x.sum() > 0 else [x + 2]
    return chosen[0] * 2, chosen is old


@FAMILY.program(ONE, FREE)
def list_bound_twice_in_both_arms(x: Tensor) -> list[Tensor]:
    if x.sum() > 0:
        grown = kept = [x * 2]
    else:
        grown = kept = [x * 3]
    grown.append(x)
    return kept


@FAMILY.program(ONE, FREE)
def list_bound_twice_in_one_arm(x: Tensor) -> list[Tensor]:
    if x.sum() > 0:
        grown = kept = [x * 2]
    else:
        grown, kept = [x * 3], [x * 4]
    grown.append(x)
    return kept


@FAMILY.program(ONE, FREE)
def list_twice_in_a_tuple(x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    if x.sum() > 0:
        part = [x * 2]
        pair = (part, part)
    else:
        pair = ([x * 3], [x * 3])
    return pair


@FAMILY.program(ONE, FREE)
def list_inside_two_results(x: Tensor) -> dict[str, Any]:
    shared = [x + 1]
    out = {"a": shared, "b": x * 2} if x.sum() > 0 else {"a": shared, "b": x * 3}
    shared.append(x)
    return out


def lists(seed: int) -> InputSets:
    return [([torch.ones(3) * sign],) for sign in (1.0, -1.0)]


@FAMILY.program(lists, FREE)
def list_argument_returned(parts: list[Tensor]) -> list[Tensor]:
    return parts if parts[0].sum() > 0 else [parts[0] * 2]


@FAMILY.program(lists, FREE)
def list_argument_grown_later(parts: list[Tensor]) -> Tensor:
    chosen = parts if parts[0].sum() > 0 else [parts[0] * 2]
    parts.append(parts[0] + 1)
    return sum(chosen)  # type: ignore[return-value]


@FAMILY.program(ONE, FREE)
def object_made_in_each_arm(x: Tensor) -> Tensor:
    if x.sum() > 0:
        box = SimpleNamespace(value=x * 2, shift=1.0)
    else:
        box = SimpleNamespace(value=x * 3, shift=1.0)
    return box.value + box.shift


class Box:
    def __init__(self, value: Tensor) -> None:
        self.value = value


@FAMILY.program(ONE, FREE, grad=True)
def object_replaced_in_one_arm(x: Tensor) -> Tensor:
    box = Box(x * 2)
    old = box
    if x.sum() > 0:
        box = Box(x.sin())
    return box.value + old.value


@FAMILY.program(ONE, WHERE | FREE, grad=True)
def cell_variable_assigned(x: Tensor) -> Tensor:
    def inner() -> Tensor:
        return s + 1

    if x.sum() > 0:
        s = x * 2
    else:
        s = x * 3
    return inner()


@FAMILY.program(ONE, WHERE | FREE, grad=True)
def cell_variable_read_by_both(x: Tensor) -> Tensor:
    s = x * 2

    def inner() -> Tensor:
        nonlocal s
        s = s + 1
        return s * 2

    first = inner()
    if x.sum() > 0:
        s = s.sin()
    return first + inner()


@FAMILY.program(ONE, WHERE | FREE, grad=True)
def match_with_guard(x: Tensor) -> Tensor:
    match x.dim():
        case 2 if x.sum() > 0:
            y = x * 2
        case _:
            y = x * 3
    return y


SHIFT = torch.tensor([1.0, 2.0, 3.0, 4.0])


@FAMILY.program(ONE, WHERE, grad=True)
def global_tensor_read(x: Tensor) -> Tensor:
    return x + SHIFT if x.sum() > 0 else x * SHIFT


@FAMILY.program(ONE, WHERE, state=lambda run: SHIFT)
def global_tensor_returned(x: Tensor) -> Tensor:
    return SHIFT if x.sum() > 0 else SHIFT * 2


TOTAL = torch.zeros(4)


def total_then_reset(run: object) -> Tensor:
    found = TOTAL.clone()
    TOTAL.zero_()
    return found


@FAMILY.program(ONE, WHERE, state=total_then_reset)
def global_tensor_written(x: Tensor) -> Tensor:
    if x.sum() > 0:
        TOTAL.add_(x.sum(0))
    return x + TOTAL


@FAMILY.program(ONE, FREE, grad=True)
def saved_for_backward_then_written(x: Tensor) -> Tensor:
    # sin saves its input, exp its output: only after sin does the write make backward fail.
    h = x * 2
    y = h.sin() if x.sum() > 0 else h.exp()
    h.add_(1)
    return y + h


@FAMILY.program(ONE, WHERE, grad=True)
def many_uses_of_one_leaf(x: Tensor) -> Tensor:
    # The order in which gradients are added up must not change.
    before = x.sin() * x
    if x.sum() > 0:
        y = x.exp() * x + x.cos() / (x * x + 0.3) - x.tanh()
    else:
        y = x.sigmoid() * 0.1 + x * 0.7 - x.atan() * x
    return before * 0.3 + y * x - x.square() * 1.7 + x


@FAMILY.program(ONE, WHERE, grad=True)
class ManyUsesOfOneWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.proj(x)
        if x.sum() > 0:
            h = self.proj(h.relu()) + self.proj(h.sin()) * h
        else:
            h = self.proj(self.proj(h) - x)
        return self.proj(h) + h


@FAMILY.program(ONE, FREE, built=True)
def counter_in_default_argument() -> Callable[[Tensor], Any]:
    def run(x: Tensor, seen: list[int] = [0]) -> tuple[Tensor, int]:  # on purpose
        if x.sum() > 0:
            seen[0] += 1
        return x * 2, seen[0]

    return run


@FAMILY.program(ONE, WHERE)
def log_of_names(x: Tensor) -> tuple[Tensor, str]:
    text = ""
    if x.sum() > 0:
        text += "positive"
    return x * 2, text


@FAMILY.program(ONE, WHERE, WHERE)
def predicate_written_afterwards(x: Tensor) -> Tensor:
    p = x.sum() > 0
    y = x * 2 if p else x * 3
    p.logical_not_()
    return y + 1 if p else y + 10


@FAMILY.program(ONE, WHERE)
def input_written_before_the_join_is_used(x: Tensor) -> Tensor:
    y = x.sum(0) if x.sum() > 0 else x.mean(0)
    x.zero_()
    return x + y
