"""Aliases that travel: through several joins, views of a join, helpers, loops and containers.

What comes out of a branch may be the tensor that went in; so may what comes out of a second branch,
or a view of it. Also `is`, by which a program sees for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from ..support.inputs import B, rows, signs
from ..support.program import FREE, WHERE, Family, keep

FAMILY = Family("alias_chains")
ONE = signs((B, 4))
PAIR = signs((B, 4), (B, 4), flips=2)
ALIAS = keep("alias")
# One of several sites in a chain stays, the others follow; which is not said.
CHAINED = ALIAS | WHERE | keep("untraceable")


@FAMILY.program(PAIR, WHERE, grad=True, frozen=(1,))
def disjunction(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0 or y.sum() > 0:
        x = x * 2
    return x


@FAMILY.program(PAIR, WHERE, grad=True, frozen=(1,))
def conjunction(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0 and y.sum() > 0:
        x = x * 2
    return x


@FAMILY.program(PAIR, WHERE, WHERE, grad=True, frozen=(1,))
def elif_falls_through(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x * 3
    elif y.sum() > 0:
        x = x * 2
    return x


@FAMILY.program(PAIR, WHERE, WHERE, grad=True, frozen=(1,))
def nested_in_else(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0:
        z = x * 3
    else:
        z = x if y.sum() > 0 else x + 1
    return z


@FAMILY.program(PAIR, WHERE, WHERE, grad=True, frozen=(1,))
def two_in_a_row(x: Tensor, y: Tensor) -> Tensor:
    h = x if x.sum() > 0 else x * 2
    h = h if y.sum() > 0 else h * 3
    return h


@FAMILY.program(PAIR, WHERE, WHERE, grad=True, frozen=(1,))
def two_in_a_row_consumed(x: Tensor, y: Tensor) -> Tensor:
    h = x if x.sum() > 0 else x * 2
    h = h if y.sum() > 0 else h * 3
    return h + 1


@FAMILY.program(ONE, WHERE, grad=True)
def loop_over_input(x: Tensor) -> Tensor:
    for limit in (3.0, 2.0, 1.0):
        if x.sum() > 0:
            x = x.clamp(max=limit)
    return x


# name: what is done with the result of the join before it is returned: still the same storage.
AFTER: dict[str, Callable[[Tensor], object]] = {
    "view": lambda y: y.view(-1),
    "row": lambda y: y[0],
    "transpose": lambda y: y.t(),
    "contiguous": lambda y: y.contiguous(),
    "same_dtype": lambda y: y.float(),
    "eval_dropout": lambda y: F.dropout(y, 0.5, training=False),
    "unbind": lambda y: y.unbind(0)[1],
    "in_a_list": lambda y: [y, y + 1],
    "in_nested_dict": lambda y: {"a": ({"b": y},)},
    "detach": lambda y: y.detach(),
    "write_through_view": lambda y: y.view(-1).add_(1).sum(),
    "write_in_place": lambda y: y.mul_(2).sum(),
    "set_item": lambda y: y.__setitem__(0, 5.0),
}


def joined_then(after: Callable[[Tensor], object], x: Tensor) -> object:
    y = x if x.sum() > 0 else x * 2
    return after(y)


WRITES = ("write_through_view", "write_in_place", "set_item")
for name, after in AFTER.items():
    FAMILY.add(
        f"then_{name}",
        lambda after=after: partial(joined_then, after),
        signs((4, 4)),
        ALIAS if name in WRITES else WHERE,
        grad=name not in (*WRITES, "detach"),
    )


def limited(h: Tensor) -> Tensor:
    if h.sum() > 0:
        return h
    return h * 2


@FAMILY.program(ONE, WHERE, grad=True)
def helper_hands_back(x: Tensor) -> Tensor:
    return limited(x)


@FAMILY.program(ONE, ALIAS | WHERE)
def helper_hands_back_then_written(x: Tensor) -> Tensor:
    y = limited(x)
    x.add_(1)
    return y * 1


@FAMILY.program(ONE, WHERE, grad=True)
def helper_hands_back_intermediate(x: Tensor) -> Tensor:
    return limited(x * 3)


@FAMILY.program(ONE, WHERE, grad=True)
def helper_hands_back_and_caller_keeps(x: Tensor) -> tuple[Tensor, Tensor]:
    h = x * 3
    return h, limited(h)


@FAMILY.program(ONE, WHERE, grad=True)
class LayersThatMayPassTheInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([_Limit(5.0), _Limit(4.0)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class _Limit(nn.Module):
    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit

    def forward(self, h: Tensor) -> Tensor:
        if h.sum() > 0:
            h = h.clamp(max=self.limit)
        return h


@FAMILY.program(ONE, WHERE, grad=True)
def all_states_collected(x: Tensor) -> list[Tensor]:
    states = [x]
    for limit in (3.0, 2.0):
        if x.sum() > 0:
            x = x.clamp(max=limit)
        states.append(x)
    return states


@FAMILY.program(PAIR, CHAINED, CHAINED)
def written_after_two_joins(x: Tensor, y: Tensor) -> Tensor:
    h = x * 2
    a = h if x.sum() > 0 else h + 1
    b = a if y.sum() > 0 else a + 1
    h.zero_()
    return a + b * 2


@FAMILY.program(ONE, FREE)
def intermediate_is_the_same(x: Tensor) -> Tensor:
    h = x * 2
    y = h if x.sum() > 0 else h * 2
    return y * 10 if y is h else y * 20


@FAMILY.program(ONE, FREE)
def is_not_in_condition(x: Tensor) -> tuple[Tensor, bool]:
    y = x
    if x.sum() > 0:
        y = y.exp()
    changed = y is not x
    return y + 1, changed


@FAMILY.program(ONE, FREE)
def is_inside_helper(x: Tensor) -> Tensor:
    def same(a: Tensor, b: Tensor) -> bool:
        return a is b

    h = x + 1
    y = h.relu() if x.sum() > 0 else h
    return y * 3 if same(y, h) else y * 5


@FAMILY.program(ONE, FREE)
def found_by_identity(x: Tensor) -> Tensor:
    h = x + 1
    y = h if x.sum() > 0 else h * 1
    return h * 2 if any(t is y for t in (x, h)) else h * 7


@FAMILY.program(ONE, FREE)
def identity_as_dictionary_key(x: Tensor) -> Tensor:
    h = x + 1
    y = h if x.sum() > 0 else h * 1
    names = {h: "old"}
    return h * 2 if y in names else h * 7


@FAMILY.program(ONE, FREE)
def id_compared(x: Tensor) -> Tensor:
    h = x + 1
    y = h if x.sum() > 0 else h * 1
    return h * 2 if id(y) == id(h) else h * 7


@FAMILY.program(ONE, FREE)
def member_of_a_set(x: Tensor) -> Tensor:
    h = x + 1
    y = h if x.sum() > 0 else h * 1
    return h * 2 if y in {h, x} else h * 7


@FAMILY.program(ONE, FREE)
def counted_as_keys(x: Tensor) -> tuple[Tensor, int]:
    h = x + 1
    y = h if x.sum() > 0 else h * 1
    return y * 2, len({h: 1, y: 2})


@FAMILY.program(ONE, FREE, FREE, one_sided=True)
def compared_inside_tuples(x: Tensor) -> tuple[Tensor, bool]:
    # Tuples compare their items by identity first; only then would == on tensors raise.
    h = x + 1
    y = h if x.sum() > 0 else h * 0 + 9
    try:
        same = (1, h) == (1, y)
    except RuntimeError:
        same = False
    return y * 2, same


@FAMILY.program(rows([1.0, 2.0], [-1.0, -2.0]), FREE)
def shares_memory_asked(x: Tensor) -> Tensor:
    y = x if x.sum() > 0 else x * 1
    return y * 2 if y.data_ptr() == x.data_ptr() else y * 3
