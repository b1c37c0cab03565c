"""Which leaves an arm depends on: where they differ, a zero gradient has to become None.

An optimizer skips a parameter whose gradient is None and moves one whose gradient is zero. In grad
mode a result may require grad in one arm only: behind the graph it is detached for the other one.
Without gradients every one of these is a plain select.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..support.inputs import InputSets, signs
from ..support.program import WHERE, Family

FAMILY = Family("none_gradients")
ONE = signs((3, 4))
TWO = signs((3, 4), (4,))
THREE = signs((3, 4), (4,), (4,))


@FAMILY.program(THREE, WHERE, grad=True, tags="contexts")
def a_leaf_for_each_arm(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return x * a if x.sum() > 0 else x * b


@FAMILY.program(TWO, WHERE, grad=True)
def leaf_in_one_arm(x: Tensor, a: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x * a
    else:
        y = x + 1
    return y


@FAMILY.program(TWO, WHERE, grad=True)
def leaf_in_one_arm_without_else(x: Tensor, a: Tensor) -> Tensor:
    h = x.exp()
    if x.sum() > 0:
        h = h + a
    return h * 2


@FAMILY.program(THREE, WHERE, grad=True)
def both_leaves_in_both_arms(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return x * a + b if x.sum() > 0 else x * b + a


@FAMILY.program(TWO, WHERE, grad=True, frozen=(1,))
def frozen_leaf_in_one_arm(x: Tensor, a: Tensor) -> Tensor:
    return x * a if x.sum() > 0 else x + 1


@FAMILY.program(THREE, WHERE, grad=True, frozen=(1, 2))
def frozen_leaf_for_each_arm(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return x * a if x.sum() > 0 else x * b


@FAMILY.program(ONE, WHERE, grad=True)
def constant_in_one_arm(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else torch.zeros_like(x)


@FAMILY.program(ONE, WHERE, grad=True)
def new_tensor_in_one_arm(x: Tensor) -> Tensor:
    total = x.sum()
    return x.mean() / total if total > 0 else torch.tensor(0.0)


@FAMILY.program(ONE, WHERE, grad=True)
def zero_times_leaf(x: Tensor) -> Tensor:
    return x.mean() if x.sum() > 0 else x.sum() * 0.0


@FAMILY.program(ONE, WHERE, grad=True)
def constants_in_both_arms(x: Tensor) -> Tensor:
    scale = torch.full((4,), 2.0) if x.sum() > 0 else torch.full((4,), 3.0)
    return x * scale


@FAMILY.program(ONE, WHERE, grad=True)
def nothing_differentiable(x: Tensor) -> tuple[Tensor, Tensor]:
    if x.sum() > 0:
        return x > 1, x.argmax(0)
    return x < 1, x.argmin(0)


@FAMILY.program(ONE, WHERE, grad=True)
def detached_in_one_arm(x: Tensor) -> Tensor:
    return x.detach() * 2 if x.sum() > 0 else x * 3


@FAMILY.program(ONE, WHERE, grad=True)
def detached_in_both_arms(x: Tensor) -> Tensor:
    return x * (x.detach() * 2 if x.sum() > 0 else x.detach() - 3)


@FAMILY.program(TWO, WHERE, grad=True)
def one_factor_detached(x: Tensor, a: Tensor) -> Tensor:
    return x * a if x.sum() > 0 else x * a.detach()


@FAMILY.program(ONE, WHERE, grad=True)
def no_grad_in_one_arm(x: Tensor) -> Tensor:
    if x.sum() > 0:
        with torch.no_grad():
            y = x * 2
    else:
        y = x * 3
    return y


@FAMILY.program(ONE, WHERE, grad=True)
def no_grad_in_both_arms(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.abs().mean() if x.sum() > 0 else x.abs().amax()
    return x * scale


@FAMILY.program(THREE, WHERE, grad=True)
def leaves_behind_earlier_results(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    # The leaves were used before the branch, but each result is dropped by one arm.
    left, right = x * a, x * b
    return left.sin() if x.sum() > 0 else right.cos()


@FAMILY.program(TWO, WHERE, grad=True)
def leaf_used_again_afterwards(x: Tensor, a: Tensor) -> Tensor:
    # Its gradient exists either way.
    y = x * a if x.sum() > 0 else x + 1
    return y - a


@FAMILY.program(TWO, WHERE, grad=True)
def leaf_used_in_another_result(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    first = a.exp()
    return first, (x * a if x.sum() > 0 else x + 1) * first


@FAMILY.program(TWO, WHERE, grad=True)
def leaf_in_the_predicate_only(x: Tensor, a: Tensor) -> Tensor:
    return x * 2 if (x.sum() * a.abs().sum()) > 0 else x * 3


@FAMILY.program(THREE, WHERE, grad=True)
def leaves_swap_results(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    # A loss on the first result alone reaches only one of a and b in eager.
    return (x * a, x * b) if x.sum() > 0 else (x * b, x * a)


@FAMILY.program(
    signs((4,), (), (4,), flips=2),
    WHERE,
    WHERE,
    grad=True,
)
def nested_with_leaf_in_inner_arm(x: Tensor, t: Tensor, a: Tensor) -> Tensor:
    y = x * t
    if x.sum() > 0:
        y = y + t
        if t > 0:
            y = y * a
    return y


def through_a_view() -> InputSets:
    sets: InputSets = []
    for sign in (1.0, -1.0):
        leaf = torch.tensor([1.0, 2.0, 3.0]) * sign
        sets.append((leaf, torch.tensor([2.0, 3.0, 4.0])))
    return sets


@FAMILY.program(lambda seed: through_a_view(), WHERE, grad=True)
def leaf_reached_through_a_view(x: Tensor, a: Tensor) -> Tensor:
    part = a.view(3, 1)
    return x * part[:, 0] if x.sum() > 0 else x * 2


def results_of_earlier_work(seed: int) -> InputSets:
    sets: InputSets = []
    for sign in (1.0, -1.0):
        base = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        sets.append((base * sign, torch.tensor([2.0, 3.0, 4.0])))
    return sets


@FAMILY.program(results_of_earlier_work, WHERE, grad=True, frozen=(1,))
def input_that_is_no_leaf(x: Tensor, a: Tensor) -> Tensor:
    return x * a if x.sum() > 0 else x.sqrt().nan_to_num() + x


@FAMILY.program(ONE, WHERE, grad=True)
class BiasInOneArm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return self.proj(x)
        return F.linear(x, self.proj.weight)


@FAMILY.program(ONE, WHERE, grad=True)
class BuffersDiffer(nn.Module):
    a: Tensor
    b: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)
        self.register_buffer("a", torch.ones(4))
        self.register_buffer("b", torch.ones(4) * 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x * self.a) if x.sum() > 0 else self.proj(x * self.b)


@FAMILY.program(TWO, WHERE, grad=True)
def added_in_place_by_one_arm(x: Tensor, w: Tensor) -> Tensor:
    # Written back after the arms, which is no edge of the graph.
    h = x * 2
    if x.sum() > 0:
        h.add_(w)
    return h


@FAMILY.program(TWO, WHERE, grad=True)
def added_in_place_by_one_arm_and_used_anyway(x: Tensor, w: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0:
        h.add_(w)
    return h + w
