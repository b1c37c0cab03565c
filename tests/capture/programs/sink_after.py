"""What stands behind a raise: operations that may fail, writes, random numbers, other effects."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..support.inputs import B, InputSets, cases, signs
from ..support.program import FREE, SINK, WHERE, Family, keep

FAMILY = Family("sink_after")
ONE = signs((B, 4))
TWO = signs((B, 4), (B, 4), flips=2)
RANDOM = keep("random_op")
PARTIAL = keep("partial_op")
EFFECT = keep("side_effect")


def labels() -> InputSets:
    """Good labels, too large ones, negative ones, and a large negative one."""
    return [
        (torch.tensor(values),)
        for values in ([0, 2, 4], [1, 5, 2], [-1, 0, 1], [3, 10**12, -(10**12)], [4, 4, 0])
    ]


LABELS = cases(labels)


def check(index: Tensor, size: int) -> None:
    if index.max() >= size or index.min() < 0:
        raise IndexError(f"labels must be in [0, {size}), got {index.min()} … {index.max()}")


@FAMILY.program(LABELS, SINK | WHERE, grad=True)
class BeforeEmbedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3, padding_idx=0)

    def forward(self, index: Tensor) -> Tensor:
        check(index, 5)
        return self.table(index) * 2


@FAMILY.program(LABELS, SINK | WHERE)
def before_indexing(index: Tensor) -> Tensor:
    check(index, 5)
    x = torch.arange(15.0).reshape(5, 3)
    return x[index] + x[index, 1:].sum() + x[(index, index.clamp(max=2))].sum()


@FAMILY.program(LABELS, SINK | WHERE)
def before_gathers(index: Tensor) -> Tensor:
    check(index, 5)
    x = torch.arange(15.0).reshape(5, 3)
    y = x.gather(0, index.reshape(1, 3)) + torch.index_select(x, 0, index).sum()
    return y + torch.take_along_dim(x, index.reshape(1, 3), 0) + x.take(index)


@FAMILY.program(LABELS, SINK | WHERE)
def before_scatters(index: Tensor) -> Tensor:
    check(index, 5)
    x = torch.zeros(5, 3)
    x.scatter_(0, index.reshape(1, 3), 1.0)
    x = x.scatter_add(0, index.reshape(1, 3), torch.ones(1, 3))
    x = x.index_add(0, index, torch.ones(3, 3)).index_fill(0, index, 2.0)
    x[index] = 3.0
    x.index_put_((index, index.clamp(max=2)), torch.tensor(4.0))
    return x


@FAMILY.program(LABELS, SINK | WHERE, grad=True)
class BeforeLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 5)

    def forward(self, index: Tensor) -> Tensor:
        check(index, 5)
        logits = self.linear(torch.ones(3, 3))
        loss = F.cross_entropy(logits, index) + F.nll_loss(logits.log_softmax(-1), index)
        return loss + F.one_hot(index, 5).sum() * loss


@FAMILY.program(LABELS, SINK | WHERE)
def before_divisions(index: Tensor) -> Tensor:
    if (index <= 0).any():
        raise ZeroDivisionError(f"{index}")
    return (7 // index) + torch.remainder(index, index) + torch.div(9, index, rounding_mode="trunc")


def matrices() -> InputSets:
    good = torch.eye(3) * 2 + 0.1
    return [(good,), (torch.zeros(3, 3),), (good.clone() + 1,)]


@FAMILY.program(cases(matrices), SINK, grad=True)
def before_linear_algebra(a: Tensor) -> Tensor:
    if a.abs().sum() == 0:
        raise ValueError(f"singular {a.detach()}")
    b = torch.linalg.inv(a) + torch.inverse(a) + torch.linalg.cholesky(a + a.mT)
    return b + torch.linalg.solve(a, torch.ones(3, 2)).sum()


@FAMILY.program(ONE, SINK, grad=True)
def before_binary_cross_entropy(x: Tensor) -> Tensor:
    p = x / 10 + 0.5
    if x.sum() < 0:
        raise ValueError("not a probability")
    return F.binary_cross_entropy(p.clamp(0, 1), torch.ones_like(p))


@FAMILY.program(LABELS, FREE)
def before_a_mask(index: Tensor) -> Tensor:
    if index.max() >= 5:
        raise IndexError("too large")
    return index[index > 1]


@FAMILY.program(LABELS, PARTIAL, extra=True)
def before_limited_embedding(index: Tensor) -> Tensor:
    table = torch.arange(15.0).reshape(5, 3)
    if index.max() >= 5 or index.min() < 0:
        raise IndexError("out of range")
    return F.embedding(index, table, max_norm=1.0)


@FAMILY.program(ONE, SINK, grad=True, tags="contexts")
def random_before(x: Tensor) -> Tensor:
    h = x + torch.rand(4) + F.dropout(x, 0.5, True)
    if x.sum() < 0:
        raise ValueError("after the draw")
    return h * 2


@FAMILY.program(ONE, RANDOM, grad=True)
def random_after(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError("before the draw")
    return x + torch.rand(4)


@FAMILY.program(TWO, RANDOM, SINK, grad=True)
def random_between(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError("x")
    h = F.dropout(x, 0.5, True)
    if y.sum() < 0:
        raise ValueError("y")
    return h + y


@FAMILY.program(ONE, SINK)
class DropoutInEval(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() < 0:
            raise ValueError("x")
        return self.dropout(x) * 2


def drawn(_: object) -> object:
    state = random.getstate()
    random.seed(3)
    return state


@FAMILY.program(ONE, RANDOM | SINK, state=drawn, recompiles=True)
def python_random_after(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError("x")
    return x * random.random()


@FAMILY.program(TWO, SINK, WHERE, grad=True)
def branch_after(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError("x")
    return x * y if y.sum() > 0 else torch.log(x.abs() + 1) - y


@FAMILY.program(TWO, SINK, FREE | WHERE)
def writing_branch_after(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError("x")
    if y.sum() > 0:
        x.add_(1)
    return x * 2


@FAMILY.program(TWO, FREE | WHERE, FREE | SINK, one_sided=True)
def writing_branch_around(x: Tensor, y: Tensor) -> Tensor:
    if y.sum() > 0:
        x.add_(1)
        if x.sum() < 0:
            raise ValueError(f"written {x.sum():.3f}")
        x.mul_(2)
    return x * 2


@FAMILY.program(ONE, keep("untraceable"), one_sided=True)
def fails_after(x: Tensor) -> Tensor:
    if x.mean() < 1e9:
        raise ValueError("always in time")
    return x @ x.reshape(-1)


def leaf_and_rest() -> InputSets:
    return [(torch.full((3, 4), v),) for v in (1.0, -1.0)]


@FAMILY.program(cases(leaf_and_rest), FREE | EFFECT | SINK, grad=True)
def writes_what_requires_grad(x: Tensor) -> Tensor:
    h = x * 1
    if x.sum() < 0:
        raise ValueError("x")
    h.mul_(2)
    with torch.no_grad():
        x.add_(1)
    return h


@FAMILY.program(
    cases(lambda: [(a, b) for (a,) in labels() for b in (1.0, -1.0)]), SINK | WHERE, FREE
)
class BranchThatLooksUp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)

    def forward(self, index: Tensor, sign: float) -> Tensor:
        check(index, 5)
        h = torch.full((3, 3), sign)
        if h.sum() > 0:
            h = h + self.table(index)
        return h * 2


@FAMILY.program(TWO, RANDOM, FREE)
def branch_that_draws(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError("x")
    return x + torch.rand(4) if y.sum() > 0 else x - y
