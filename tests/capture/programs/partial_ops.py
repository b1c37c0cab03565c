"""Arms with an operation that fails for some input: run untaken, it would raise (or worse, on CUDA)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..support.inputs import InputSets
from ..support.program import WHERE, Family, Verdict, cond, keep

FAMILY = Family("partial_ops")
Op = Callable[[Tensor, Tensor], Tensor]
PARTIAL = cond("partial_op")
# Dynamo itself cannot trace operations whose output size depends on the data.
DYNAMIC_SIZE = PARTIAL | keep("partial_op") | keep("untraceable")


def guarded(arm: Op, other: Op, x: Tensor, i: Tensor) -> Tensor:
    if i.min() >= 0:
        y = arm(x, i)
    else:
        y = other(x, i)
    return y


def good_and_bad_index(seed: int) -> InputSets:
    x = torch.arange(1.0, 13.0).reshape(4, 3)
    return [(x.clone(), torch.tensor([2, 0, 1])), (x.clone(), torch.tensor([-99, 7, 1]))]


INDEXING: dict[str, tuple[Op, Op]] = {
    "index_by_tensor": (lambda x, i: x[i] * 1, lambda x, i: x[:3] * 2),
    "index_two_tensors": (lambda x, i: x[i, i], lambda x, i: x[0] * 2),
    "index_select": (lambda x, i: x.index_select(0, i), lambda x, i: x[:3] * 2),
    "gather": (lambda x, i: x.gather(0, i[None]), lambda x, i: x[:1] * 2),
    "take": (lambda x, i: x.take(i), lambda x, i: x[0] * 2),
    "take_along_dim": (lambda x, i: x.take_along_dim(i[:, None], 0), lambda x, i: x[:3] * 2),
    "embedding": (lambda x, i: F.embedding(i, x), lambda x, i: x[:3] * 2),
    "embedding_bag": (
        lambda x, i: F.embedding_bag(i[None], x, mode="sum"),
        lambda x, i: x[:1] * 2,
    ),
    "scatter": (lambda x, i: torch.zeros(4, 3).scatter(0, i[None], x[:1]), lambda x, i: x * 2),
    "scatter_add": (lambda x, i: x.scatter_add(0, i[None], x[:1]), lambda x, i: x * 2),
    "index_add": (lambda x, i: x.index_add(0, i, x[:3]), lambda x, i: x * 2),
    "index_put": (lambda x, i: x.index_put((i,), x[0]), lambda x, i: x * 2),
    "cross_entropy": (lambda x, i: F.cross_entropy(x[:3], i), lambda x, i: x.sum()),
    "nll_loss": (lambda x, i: F.nll_loss(x[:3].log_softmax(1), i), lambda x, i: x.sum()),
    "one_hot": (lambda x, i: F.one_hot(i, 3).float(), lambda x, i: x[:3] * 2),
}
for name, (arm, other) in INDEXING.items():
    FAMILY.add(
        name,
        lambda arm=arm, other=other: partial(guarded, arm, other),
        good_and_bad_index,
        PARTIAL | keep("untraceable") if name == "one_hot" else PARTIAL,
        grad=name in {"index_by_tensor", "embedding", "gather", "cross_entropy"},
    )


def divisors(seed: int) -> InputSets:
    return [
        (torch.tensor([7, 8, 9]), torch.tensor([2, 3, 4])),
        (torch.tensor([7, 8, 9]), torch.tensor([0, 3, -4])),
    ]


def when_positive(arm: Op, other: Op, n: Tensor, d: Tensor) -> Tensor:
    if (d > 0).all():
        y = arm(n, d)
    else:
        y = other(n, d)
    return y


INTEGER: dict[str, tuple[Op, Verdict]] = {
    "integer_floor_division": (lambda n, d: n // d, PARTIAL),
    "integer_remainder": (lambda n, d: n % d, PARTIAL),
    "integer_fmod": (torch.fmod, PARTIAL),
    "integer_div_trunc": (lambda n, d: torch.div(n, d, rounding_mode="trunc"), PARTIAL),
    "scalar_over_integers": (lambda n, d: 100 // d, PARTIAL),
    # A divisor known not to be zero cannot fail; the contract says no more than "integer division".
    "integer_division_by_constant": (lambda n, d: n // 2, WHERE | PARTIAL),
    "integer_remainder_by_constant": (lambda n, d: n % 3, WHERE | PARTIAL),
    "integer_true_division": (lambda n, d: (n / d).long(), WHERE),
}
for name, (arm, verdict) in INTEGER.items():
    FAMILY.add(
        name,
        lambda arm=arm: partial(when_positive, arm, lambda n, d: n - d),
        divisors,
        verdict,
    )


def matrices(seed: int) -> InputSets:
    return [(torch.tensor([[2.0, 1.0], [1.0, 3.0]]),), (torch.zeros(2, 2),)]


LINALG: dict[str, Callable[[Tensor], Tensor]] = {
    "inverse": torch.linalg.inv,
    "solve": lambda x: torch.linalg.solve(x, torch.ones(2, 2)),
    "cholesky": torch.linalg.cholesky,
    "cholesky_inverse": lambda x: torch.cholesky_inverse(torch.linalg.cholesky(x)),
    "eigvalsh": torch.linalg.eigvalsh,
    "svd": lambda x: torch.linalg.svd(x).S,
    "lu_solve": lambda x: torch.linalg.lu_solve(*torch.linalg.lu_factor(x), torch.ones(2, 2)),
}


def invertible(arm: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    if x.diagonal().prod() > 0:
        y = arm(x) * 2
    else:
        y = x.sum(0) if arm in (LINALG["eigvalsh"], LINALG["svd"]) else x + 1
    return y


for name, function in LINALG.items():
    # LAPACK leaves matrices in column order: where the strides differ, either arm's tensor is used.
    FAMILY.add(name, lambda function=function: partial(invertible, function), matrices, PARTIAL)

ROWS = [[1.0, -1.0, 2.0], [-1.0, -2.0, -3.0]]
SIZES: dict[str, Callable[[Tensor], Tensor]] = {
    "boolean_mask": lambda x: x[x > 0].median(),
    "masked_select": lambda x: torch.masked_select(x, x > 0).max(),
    "nonzero": lambda x: x.nonzero().sum().float(),
    "unique": lambda x: x.unique().max(),
    "repeat_interleave": lambda x: x.repeat_interleave((x > 0).long()).max(),
    "where_of_one_argument": lambda x: x[torch.where(x > 0)].sum(),
}


def if_any(arm: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    if (x > 0).any():
        y = arm(x)
    else:
        y = x.sum()
    return y


for name, function in SIZES.items():
    FAMILY.add(
        name,
        lambda function=function: partial(if_any, function),
        lambda seed: [(torch.tensor(row),) for row in ROWS],
        DYNAMIC_SIZE,
        grad=name == "boolean_mask",
    )


@FAMILY.program(good_and_bad_index, PARTIAL, grad=True)
class EmbeddingOrDefault(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 3)

    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        if (i >= 0).all():
            return self.table(i)
        return x[:3] @ self.table.weight[:3]


@FAMILY.program(good_and_bad_index, cond("partial_op"))
def in_the_untested_arm(x: Tensor, i: Tensor) -> Tensor:
    if i.min() < 0:
        return x[:3] * 2
    return x[i] + 1


def lookup(x: Tensor, i: Tensor) -> Tensor:
    return x[i].sum(0)


@FAMILY.program(good_and_bad_index, cond("partial_op"))
def two_calls_down(x: Tensor, i: Tensor) -> Tensor:
    return lookup(x, i) if i.min() >= 0 else x.sum(0)


@FAMILY.program(good_and_bad_index, WHERE, grad=True)
def partial_op_outside_the_arms(x: Tensor, i: Tensor) -> Tensor:
    rows = x[i.clamp(0, 3)]
    return rows * 2 if i.min() >= 0 else rows + 1


@FAMILY.program(good_and_bad_index, cond("partial_op"), WHERE)
def partial_then_capture(x: Tensor, i: Tensor) -> Tensor:
    h = x[i] * 2 if i.min() >= 0 else x[:3] * 3
    return h.sin() if i[0] > 0 else h.cos()


@FAMILY.program(
    lambda seed: [
        (torch.ones(2, 3), torch.tensor([0.2, 0.3])),
        (torch.ones(2, 3), torch.tensor([-1.0, 0.3])),
    ],
    PARTIAL | cond("random_op"),
)
def probabilities_out_of_range(x: Tensor, p: Tensor) -> Tensor:
    return x.sum(1) * torch.bernoulli(p) if (p >= 0).all() else x.sum(1) - p


@FAMILY.program(
    lambda seed: [
        (torch.ones(3), torch.tensor([0.2, 0.3, 0.5])),
        (torch.zeros(3), torch.tensor([0.2, 9.3, 0.5])),
    ],
    cond("partial_op"),
)
def binary_cross_entropy(x: Tensor, p: Tensor) -> Tensor:
    # Raises where its input is not between 0 and 1.
    y = torch.ones(3) * 0.5
    return F.binary_cross_entropy(p, y) if (p <= 1).all() else p.sum()
