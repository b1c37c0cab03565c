"""Tests and raises inside calls of torch: ``torch._assert``, ``torch.equal``, ``torch.allclose``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..support.inputs import B, InputSets, cases, signs
from ..support.opaque import note
from ..support.program import SINK, UNTOUCHED, WHERE, Family, keep

FAMILY = Family("hidden_tests")
ONE = signs((B, 4))
NAN = float("nan")


def boxes() -> InputSets:
    """Good boxes; one without height; two without width, the second of them first found."""
    good = torch.tensor([[0.0, 0.0, 1.0, 1.0], [1.0, 2.0, 3.0, 4.0]])
    flat, thin = good.clone(), good.clone()
    flat[1, 3] = 2.0
    thin[:, 2] = 0.0
    feature = torch.linspace(-1, 1, 4)
    return [(b.clone(), c.clone(), feature) for b, c in ((good, good), (flat, good), (good, thin))]


def pairs(dtype: torch.dtype = torch.float32, odd: float = NAN) -> InputSets:
    """Equal and different tensors, zeros of both signs, something odd against itself."""
    x = torch.tensor([1.0, -0.0, 3.0]).to(dtype)
    y = torch.tensor([1.0, odd, 3.0]).to(dtype)
    others = [(x, x.clone()), (x, x + 1), (-x, -x * 1), (y, y.clone()), (y, x)]
    return [(a.clone(), b.clone()) for a, b in others]


PAIRS = cases(pairs)
INTEGERS = cases(lambda: pairs(torch.int64, 5.0))


# torch._assert(False, …) is a raise.


@FAMILY.program(cases(boxes), SINK, tags="contexts")
def degenerate_boxes(a: Tensor, b: Tensor, feature: Tensor) -> Tensor:
    """As torchvision's GeneralizedRCNN checks its targets."""
    for index, target in enumerate([{"boxes": a}, {"boxes": b}]):
        found = target["boxes"]
        degenerate = found[:, 2:] <= found[:, :2]
        if degenerate.any():
            first = torch.where(degenerate.any(dim=1))[0][0]
            box: list[float] = found[first].tolist()
            torch._assert(
                False,
                "All bounding boxes should have positive height and width."
                f" Found invalid box {box} for target at index {index}.",
            )
    return feature * 2


@FAMILY.program(ONE, SINK, grad=True, tags="contexts")
def constant_message(x: Tensor) -> Tensor:
    if x.sum() < 0:
        torch._assert(False, "negative")
    return x * 2


@FAMILY.program(ONE, SINK, grad=True)
def message_is_no_text(x: Tensor) -> Tensor:
    if x.sum() < 0:
        torch._assert(condition=False, message=("negative", 3))
    return x * 2


@FAMILY.program(ONE, SINK, grad=True)
def asserted_in_else(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x.exp()
    else:
        y = x * 3
        torch._assert(y.dim() == 7, f"mean {y.mean():.3f}")
    return y + 1


def check(bad: Tensor, what: Tensor) -> None:
    if bad:
        torch._assert(False, f"found {what.sum():.2f}")


class Checked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        check(x.sum() < 0, x)
        return self.linear(x)


FAMILY.program(ONE, SINK, grad=True)(Checked)


@FAMILY.program(ONE, SINK, grad=True)
def the_whole_tensor_tested(x: Tensor) -> Tensor:
    torch._assert((x.abs() < 100).all() & (x.sum() > 0), f"found {x.sum():.2f}")
    return x * 2


@FAMILY.program(ONE, WHERE, grad=True)
def asserted_what_holds(x: Tensor) -> Tensor:
    if x.sum() > 0:
        torch._assert(x.dim() == 2, "never said")
        x = x * 2
    return x + 1


@FAMILY.program(ONE, keep("raises"))
def caught(x: Tensor) -> Tensor:
    try:
        if x.sum() < 0:
            torch._assert(False, "negative")
    except AssertionError:
        x = x * 3
    return x + 1


@FAMILY.program(ONE, WHERE)
def read_and_no_raise(x: Tensor) -> Tensor:
    if x.sum() > 0:
        held = x.tolist()
        torch._assert(len(held) > 0, f"found {held}")
        x = x * 2
    return x + 1


@FAMILY.program(ONE, keep("untraceable"))
def printed_before(x: Tensor) -> Tensor:
    if x.sum() < 0:
        note("negative")
        torch._assert(False, f"found {x.tolist()}")
    return x + 1


# equal and allclose as predicates.


@FAMILY.program(PAIRS, WHERE, jumps=True, tags="contexts inductor")
def equal(x: Tensor, y: Tensor) -> Tensor:
    return x + 1 if torch.equal(x, y) else x * 2


@FAMILY.program(PAIRS, WHERE, jumps=True, grad=True)
def not_equal(x: Tensor, y: Tensor) -> Tensor:
    h = x * 2
    if not torch.equal(h, y * 2):
        h = h.sin()
    return h * 3 + y * 0.5


@FAMILY.program(INTEGERS, WHERE, jumps=True)
def equal_integers(x: Tensor, y: Tensor) -> Tensor:
    return x + 1 if x.equal(y) else x * 2


@FAMILY.program(PAIRS, WHERE, jumps=True, grad=True)
def equal_and_more(x: Tensor, y: Tensor) -> Tensor:
    if x.equal(y) and x.sum() > 0:
        return (x + y).sum() * 0.5
    return (x - y).abs().sum()


@FAMILY.program(PAIRS, WHERE, jumps=True)
def equal_kept_in_a_name(x: Tensor, y: Tensor) -> Tensor:
    same = torch.equal(input=x, other=y)
    h = x * 3
    if same:
        h = h + 1
    return h


@FAMILY.program(PAIRS, WHERE, jumps=True)
def written_afterwards(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    h = x.clone()
    same = torch.equal(h, y)
    h.add_(1)
    return (h * 2 if same else h * 3), h


@FAMILY.program(PAIRS, SINK, jumps=True)
def equal_or_raise(x: Tensor, y: Tensor) -> Tensor:
    if not torch.equal(x, y):
        raise ValueError(f"{x} is not {y}")
    return x * 2


@FAMILY.program(PAIRS, WHERE, jumps=True, grad=True)
def close(x: Tensor, y: Tensor) -> Tensor:
    h = x * (1 + 1e-7)
    return h + y if torch.allclose(h, y) else h * 2 + y


@FAMILY.program(PAIRS, WHERE, jumps=True)
def close_with_tolerances(x: Tensor, y: Tensor) -> Tensor:
    if x.allclose(y + 1e-3, rtol=0.0, atol=1e-2, equal_nan=True):
        return x + 1
    return x * 2


@FAMILY.program(cases(lambda: [(torch.ones(3, 4),), (torch.full((3, 4), 1.5),)]), WHERE, jumps=True)
def close_to_one(x: Tensor) -> Tensor:
    return x + 1 if torch.allclose(x, torch.tensor(1.0)) else x * 2


@FAMILY.program(
    cases(lambda: [(torch.tensor([1.0, 2.0]),), (torch.tensor([1.0, NAN]),)]), WHERE, jumps=True
)
def equal_to_itself(x: Tensor) -> Tensor:
    """Not with a NaN in it."""
    return x + 1 if torch.equal(x, x) else x * 2


# What must stay: the value itself is wanted, or the comparison may raise.


@FAMILY.program(PAIRS, UNTOUCHED, jumps=True)
def the_answer_returned(x: Tensor, y: Tensor) -> tuple[Tensor, bool]:
    same = torch.equal(x, y)
    if same:
        x = x + 1
    return x, same


@FAMILY.program(PAIRS, UNTOUCHED, jumps=True)
def of_two_dtypes(x: Tensor, y: Tensor) -> Tensor:
    return x + 1 if torch.equal(x, y.double()) else x * 2


@FAMILY.program(PAIRS, extra=True, jumps=True)
def close_of_two_dtypes(x: Tensor, y: Tensor) -> Tensor:
    return x + 1 if torch.allclose(x, y.double()) else x * 2


@FAMILY.program(PAIRS, extra=True, jumps=True)
def tolerance_below_zero(x: Tensor, y: Tensor) -> Tensor:
    return x + 1 if torch.allclose(x, y, atol=-1.0) else x * 2


@FAMILY.program(PAIRS, UNTOUCHED, one_sided=True, jumps=True)
def of_two_shapes(x: Tensor, y: Tensor) -> Tensor:
    """They are never equal, and no question is asked."""
    return x + 1 if torch.equal(x, y.reshape(1, 3)) else x * 2
