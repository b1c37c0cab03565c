"""Which errors calls may raise, compared with eager at values that make them fail."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from fusepass.graph.safety.failures import AnyException, failure_of

from .test_totality import call

X, M = torch.arange(4.0), torch.arange(12.0).reshape(3, 4)
FAR, BELOW, TWO = torch.tensor([0, 9]), torch.tensor([-9]), torch.ones(2)
INTS, ZEROS, S = torch.tensor([1, 2]), torch.tensor([0, 1]), torch.zeros(3, 3)
NAN = torch.full((3, 3), float("nan"))

FAILING: list[tuple[Any, ...]] = [
    (operator.getitem, X, FAR),
    (operator.getitem, M, (slice(None), FAR)),
    (operator.setitem, X.clone(), FAR, 1.0),
    ("index_put_", X.clone(), (FAR,), TWO),
    ("index_select", M, 1, FAR),
    ("index_select", X, 0, FAR),
    ("index_add", M, 0, FAR, torch.ones(2, 4)),
    ("index_add", X, 0, FAR, TWO),
    ("index_copy", X, 0, FAR, TWO),
    ("index_fill", X, 0, FAR, 1.0),
    ("index_reduce", X, 0, FAR, TWO, "amax"),
    ("put_", X.clone(), FAR, TWO),
    ("take", X, FAR),
    ("gather", X, 0, FAR),
    ("scatter", X, 0, FAR, TWO),
    ("scatter_add", X, 0, FAR, TWO),
    ("scatter_reduce", X, 0, FAR, TWO, "amax"),
    ("masked_scatter", X, X >= 0, TWO),
    (F.embedding, FAR, M),
    (F.embedding_bag, FAR[None], M),
    (F.one_hot, BELOW, 3),
    (F.cross_entropy, M, torch.tensor([0, 1, 9])),
    (F.nll_loss, M, torch.tensor([0, 1, 9])),
    (F.binary_cross_entropy, X, X),
    (F.multi_margin_loss, M, torch.tensor([0, 1, 9])),
    (torch.bincount, BELOW),
    (torch.multinomial, -X, 1),
    (torch.bernoulli, X),
    (torch.poisson, -X),
    (torch.repeat_interleave, X, torch.tensor([-1, 1, 1, 1])),
    (torch.quantile, X, torch.tensor([2.0])),
    (torch.histc, X / 0),
    (operator.floordiv, INTS, ZEROS),
    (torch.remainder, INTS, ZEROS),
    (torch.fmod, INTS, ZEROS),
    (torch.linalg.cholesky, -torch.eye(3)),
    (torch.linalg.inv, S),
    (torch.linalg.solve, S, S),
    (torch.linalg.eigh, NAN),
    (torch.linalg.eig, NAN),
    (torch.linalg.svd, NAN),
    (torch.linalg.pinv, NAN),
    (torch.linalg.matrix_norm, NAN, "nuc"),
    (torch.cholesky_inverse, S),
    (torch.inverse, S),
    (torch.topk, X > 0, 2),
]
NEVER: list[tuple[Any, ...]] = [
    (operator.getitem, X, X > 1),
    (operator.setitem, X.clone(), X > 1, 1.0),
    (operator.getitem, X, slice(1, 9)),
    (torch.unique, X),
    (torch.nonzero, X),
    (torch.where, X > 0),
    (torch.masked_select, X, X > 0),
    (torch.rand, 3),
    (F.dropout, X, 0.5),
    (torch.linalg.cholesky_ex, -torch.eye(3)),
    (torch.linalg.inv_ex, S),
    (torch.linalg.qr, NAN),
    (torch.linalg.det, NAN),
    (torch.fft.rfft, X),
    (F.grid_sample, torch.ones(1, 1, 3, 3), torch.full((1, 2, 2, 2), float("nan"))),
    (torch.searchsorted, X, X / 0),
    (F.pixel_shuffle, torch.ones(1, 4, 2, 2), 2),
    (torch.linalg.vector_norm, X),
    (F.softmax, X, 0),
]


def made(target: Any, *args: Any) -> fx.Node:
    """The call as Dynamo records it, with its result where it has one."""
    return call(target, *args)


def shown(case: tuple[Any, ...]) -> str:
    return str(getattr(case[0], "__name__", case[0]))


def run(target: Any, *args: Any) -> Any:
    return getattr(args[0], target)(*args[1:]) if isinstance(target, str) else target(*args)


@pytest.mark.parametrize("case", FAILING, ids=shown)
def test_a_call_that_fails_has_the_class_of_its_error(case: tuple[Any, ...]) -> None:
    node = made(*case)
    failure = failure_of(node)
    assert failure is not None
    with pytest.raises(Exception) as raised:  # noqa: PT011  # asked next
        run(*case)
    assert any(issubclass(kind, raised.type) for kind in failure.kinds)


@pytest.mark.parametrize("case", NEVER, ids=shown)
def test_a_call_that_raises_for_no_value(case: tuple[Any, ...]) -> None:
    run(*case)
    assert failure_of(made(*case)) is None


def test_lookups_raise_no_runtime_error() -> None:
    for case in ((operator.getitem, X, FAR), (F.embedding, FAR, M)):
        failure = failure_of(made(*case))
        assert failure is not None
        assert failure.kinds == (IndexError,)


def test_an_operator_of_ones_own_may_raise_anything() -> None:
    def mine(x: torch.Tensor) -> torch.Tensor:
        return x

    failure = failure_of(made(mine, X))
    assert failure is not None
    assert failure.kinds == (AnyException,)
    assert "mine is no operation of torch" in failure.text


def test_arithmetic_of_sizes_is_no_call() -> None:
    node = made(operator.floordiv, 7, 2)
    node.meta["example_value"] = 3
    assert failure_of(node) is None
