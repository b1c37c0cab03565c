"""Arms that hand back a tensor, or a view of one, that existed before the branch.

Eager returns that very tensor; a select returns a fresh one. Where anybody could tell, the branch
stays; where the value is only consumed, it does not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..support.inputs import B, signs
from ..support.program import FREE, WHERE, Family

FAMILY = Family("aliasing")
ONE = signs((B, 4))
TWO = signs((B, 4), (B, 4))


@FAMILY.program(ONE, WHERE, grad=True, tags="contexts inductor")
def input_returned(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x.clamp(max=1)
    return x


@FAMILY.program(ONE, WHERE, grad=True)
def input_returned_by_else(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x


@FAMILY.program(ONE, WHERE, grad=True)
def input_inside_tuple(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x
    if x.sum() > 0:
        y = x * 2
    return x + 1, y


@FAMILY.program(ONE, WHERE, grad=True)
def input_inside_dict(x: Tensor) -> dict[str, Tensor]:
    return {"h": x.sin() if x.sum() > 0 else x}


@FAMILY.program(TWO, WHERE, grad=True, tags="contexts")
def one_of_two_inputs(x: Tensor, y: Tensor) -> Tensor:
    return x if x.sum() > 0 else y


IDENTITY = nn.Identity()
# name: what one arm does to the input; the other arm computes the same shape afresh.
RETURNED: dict[str, Callable[[Tensor], Tensor]] = {
    "view": lambda x: x.view(2, 8),
    "reshape": lambda x: x.reshape(-1),
    "contiguous": lambda x: x.contiguous(),
    "to_same_dtype": lambda x: x.to(torch.float32),
    "float": lambda x: x.float(),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "row": lambda x: x[1],
    "rows": lambda x: x[1:3],
    "chunk": lambda x: x.chunk(2)[1],
    "unbind": lambda x: x.unbind(0)[2],
    "identity_module": lambda x: IDENTITY(x),
    "dropout_in_eval": lambda x: F.dropout(x, 0.5, training=False),
    "dropout_of_zero": lambda x: F.dropout(x, 0.0, training=True),
    "flatten": lambda x: x.flatten(),
    "view_as_other_dtype": lambda x: x.view(torch.int32),
    "expand_to_same_shape": lambda x: x.expand(4, 4),
    "view_of_view": lambda x: x.view(-1).view(4, 4),
    "narrow_all": lambda x: x.narrow(0, 0, 4),
}


def handed_back(of: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = of(x)
    else:
        y = of(x * 2) + 1
    return y


def consumed(of: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = of(x)
    else:
        y = of(x * 2) + 1
    return y * 2


for name, of in RETURNED.items():
    FAMILY.add(
        f"returned_{name}", lambda of=of: partial(handed_back, of), signs((4, 4)), WHERE, grad=True
    )
for name in (
    "view",
    "contiguous",
    "row",
    "rows",
    "dropout_in_eval",
    "view_as_other_dtype",
    "flatten",
):
    FAMILY.add(
        f"consumed_{name}",
        lambda of=RETURNED[name]: partial(consumed, of),
        signs((4, 4)),
        WHERE,
        grad=name != "view_as_other_dtype",
    )


@FAMILY.program(ONE, WHERE, grad=True)
def detached_input_returned(x: Tensor) -> Tensor:
    return x.detach() if x.sum() > 0 else x * 2


@FAMILY.program(ONE, WHERE)
class ParameterReturned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight if x.sum() > 0 else self.weight * 2


@FAMILY.program(ONE, WHERE)
class BufferReturned(nn.Module):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        m = self.mean
        if x.sum() > 0:
            m = m * 2
        return m


@FAMILY.program(ONE, WHERE, grad=True)
class ParameterConsumed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4))

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        if x.sum() > 0:
            w = w * 2
        return x @ w


@FAMILY.program(ONE, WHERE, grad=True, tags="inductor contexts")
def input_consumed(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x.clamp(max=1)
    return x * 2


@FAMILY.program(ONE, WHERE, grad=True)
def input_consumed_by_cat(x: Tensor) -> Tensor:
    y = x
    if x.sum() > 0:
        y = x.exp()
    return torch.cat([x, y])


@FAMILY.program(TWO, WHERE, grad=True)
def one_of_two_inputs_consumed(x: Tensor, y: Tensor) -> Tensor:
    return (x if x.sum() > 0 else y) + 1


@FAMILY.program(ONE, WHERE, grad=True)
def fresh_result_beside_input(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, (x * 2 if x.sum() > 0 else x * 3)


@FAMILY.program(ONE, FREE)
def asks_whether_it_is_the_same(x: Tensor) -> Tensor:
    y = x if x.sum() > 0 else x * 2
    return y * 10 if y is x else y * 20
