"""Exceptions whose text is made of tensors, sizes and text: it must be eager's to the letter."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..support.inputs import B, signs
from ..support.program import FREE, SINK, Family, keep

FAMILY = Family("sink_messages")
ONE = signs((B, 4))
RAISES = keep("raises")


@FAMILY.program(ONE, SINK, grad=True, tags="contexts")
def scalar_tensor(x: Tensor) -> Tensor:
    total = x.sum()
    if total < 0:
        raise ValueError(f"the sum is {total}")
    return x * 2


@FAMILY.program(ONE, SINK, grad=True, tags="contexts")
def scalar_tensor_with_format(x: Tensor) -> Tensor:
    total = x.sum()
    if total < 0:
        raise ValueError(f"the sum is {total:.3f}, its half {total / 2:>12.4e}")
    return x * 2


@FAMILY.program(ONE, SINK, grad=True)
def scalar_tensor_converted(x: Tensor) -> Tensor:
    total = x.sum()
    if total < 0:
        raise ValueError(f"the sum is {total!r} or {total!s:>40}")
    return x * 2


@FAMILY.program(ONE, SINK, grad=True, tags="contexts")
def whole_input(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError(f"bad input {x}")
    return x * 2


@FAMILY.program(ONE, SINK, grad=True)
def whole_intermediate(x: Tensor) -> Tensor:
    h = torch.relu(x) + 1
    if x.sum() < 0:
        raise ValueError(f"bad values {h} of {x.detach()}")
    return h * 2


@FAMILY.program(ONE, SINK, grad=True)
def view_of_input(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError(f"bad row {x[0]} and column {x[:, 1:2].t()}")
    return x * 2


@FAMILY.program(ONE, SINK, grad=True, tags="contexts")
def item(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError(f"lowest {x.min().item()}, rounded {x.min().item():.2f}")
    return x * 2


@FAMILY.program(ONE, SINK, grad=True)
def arithmetic_on_items(x: Tensor) -> Tensor:
    if x.sum() < 0:
        low, high = x.min().item(), x.max().item()
        raise ValueError(f"range {high - low:.4f}, twice {2 * low}, rounded {round(low, 2)}")
    return x * 2


@FAMILY.program(ONE, SINK, FREE, grad=True, one_sided=True)
def numbers_by_name(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError(f"{int(x.sum())} and {float(x.mean()):.3f} and {bool(x.any())}")
    return x * 2


@FAMILY.program(ONE, SINK, grad=True)
def to_list(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError(f"rows {x.long().tolist()} and {x[0].tolist()}")
    return x * 2


@FAMILY.program(ONE, SINK)
def selected_by_mask(x: Tensor) -> Tensor:
    bad = x < 0
    if bad.sum() > 6:
        raise ValueError(f"negative: {x[bad]}, {bad.sum()} of them, {x[bad].tolist()[:2]}")
    return x * 2


@FAMILY.program(ONE, SINK)
def where_it_is(x: Tensor) -> Tensor:
    bad = x.sum(1) < 0
    if bad.all():
        raise ValueError(f"rows {bad.nonzero().flatten().tolist()}, {torch.where(bad)[0]}")
    return x * 2


@FAMILY.program(ONE, SINK)
def counted(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError(f"{len(torch.unique(x.sign()))} signs: {torch.unique(x.sign())}")
    return x * 2


@FAMILY.program(ONE, SINK)
def method_format(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError(f"sum {x.sum():.2f}, mean {x.mean():.3f}, {{}}")
    return x * 2


@FAMILY.program(ONE, SINK)
def numbered_format(x: Tensor) -> Tensor:
    if x.sum() < 0:
        text = "{1} then {0} then {1}".format(x.sum(), x.mean())
        raise ValueError(f"{text} and {f'{x.max():.1f}'}")
    return x * 2


@FAMILY.program(ONE, SINK)
def percent_format(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError("sum %.2f, mean %s" % (x.sum(), x.mean()))  # noqa: UP031
    return x * 2


@FAMILY.program(ONE, SINK)
def percent_format_of_one(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError("sum %s" % x.sum())  # noqa: UP031
    return x * 2


@FAMILY.program(ONE, SINK)
def added_text(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError("sum " + str(x.sum()) + f" mean {x.mean():.3f}" + " end")
    return x * 2


@FAMILY.program(ONE, SINK)
def joined_text(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError(", ".join([f"{row.sum():.3f}" for row in (x, x * 2)] + ["end"]))
    return x * 2


@FAMILY.program(ONE, SINK)
def shape_and_kind(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise TypeError(f"{x.shape} {tuple(x.size())} {x.dtype} {x.device} {x.dim()} {x.numel()}")
    return x * 2


@FAMILY.program(ONE, SINK)
def shape_in_format(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise IndexError(f"batch {x.shape[0]} of {x.shape[1]:>5d}, {x.shape!r}")
    return x * 2


@FAMILY.program(ONE, SINK)
def computed_size(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise IndexError(f"{x.shape[0] * 2 + 1} rows, {x.shape[0]:04d}")
    return x * 2


@FAMILY.program(ONE, SINK, grad=True)
def tensor_as_argument(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError("bad", x, x.sum() * 2)
    return x * 2


@FAMILY.program(ONE, SINK)
def containers_as_arguments(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError({"sum": x.sum(), "shape": x.shape}, [x.mean(), 1], (None, "a"))
    return x * 2


@FAMILY.program(ONE, SINK)
def several_statements(x: Tensor) -> Tensor:
    if x.sum() < 0:
        worst = x.min()
        where = x.argmin()
        text = f"worst {worst}"
        text = f"{text} at {where}"
        raise ArithmeticError(text)
    return x * 2


class Unstable(ArithmeticError):
    """Keeps what it was given and says it in its own way."""

    def __init__(self, name: str, value: Tensor, *, limit: float = 0.0) -> None:
        super().__init__(name)
        self.value, self.limit = value, limit

    def __str__(self) -> str:
        return f"{self.args[0]} is {self.value:.3f}, below {self.limit}"


@FAMILY.program(ONE, SINK)
def own_class_with_keyword(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise Unstable("the sum", x.sum(), limit=0.5)
    return x * 2


@FAMILY.program(ONE, SINK)
def from_none(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError("no context") from None
    return x * 2


@FAMILY.program(ONE, RAISES)
def from_another(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError("with a cause") from KeyError("the cause")
    return x * 2


@FAMILY.program(ONE, RAISES, FREE, one_sided=True)
def message_that_branches(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError("low" if x.min() < -1 else "not so low")
    return x * 2


@FAMILY.program(ONE, SINK)
def message_that_fails(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError(f"{x[x > 1e9].tolist()[3]}")
    return x * 2


@FAMILY.program(ONE, keep("random_op"))
def message_that_draws(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError(f"{torch.rand(3)}")
    return x * 2


@FAMILY.program(ONE, keep("side_effect"))
def message_that_writes(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError(f"{x.add_(1)}")
    return x * 2


def describe(x: Tensor) -> str:
    return f"<{x.sum():.2f} over {tuple(x.shape)}>"


@FAMILY.program(ONE, SINK)
def message_from_a_helper(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError("bad: " + describe(x))
    return x * 2


@FAMILY.program(ONE, SINK, grad=True)
class NamedCheck(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.name, self.limit = "block", 0.25
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        if x.mean() < self.limit:
            raise ValueError(f"{self.name}: {x.mean():.4f} < {self.limit}, {self.linear.weight[0]}")
        return h


@FAMILY.program(ONE, SINK, grad=True)
def written_before_and_after(x: Tensor) -> Tensor:
    h = x * 2
    h.add_(1)
    if x.sum() < 0:
        raise ValueError(f"now {h.sum():.4f} and {h.detach()}")
    h.mul_(3)
    return h


@FAMILY.program(ONE, SINK)
def integers_and_bools(x: Tensor) -> Tensor:
    n = (x < 0).sum()
    if n > 6:
        raise ValueError(f"{n} {n:d} {n.item() / 2} {(x < 0)} {x.long()[0]}")
    return x * 2


@FAMILY.program(ONE, SINK)
def under_no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        total = x.sum()
        if total < 0:
            raise ValueError(f"{total} {x * 2}")
    return x * 2
