"""What an arm keeps for its backward, and the bound on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fusepass.graph.safety import saved_for_backward
from fusepass.graph.safety.saved_for_backward import memory_excess, saved_bytes
from fusepass.options import Options

from ..arms import captured

X = torch.ones(64, 32, requires_grad=True)
W = torch.ones(32, 32, requires_grad=True)
ONE = 64 * 32 * 4  # bytes of X

CASES: list[tuple[str, Callable[..., Any], int]] = [
    ("operands from outside are there anyway", lambda x, w: x @ w, 0),
    ("sums need nothing", lambda x, w: (x + 1 - x).sum(), 0),
    ("a scaled value needs nothing", lambda x, w: (x + 1) * 2, 0),
    ("the result of exp", lambda x, w: x.exp() + 1, ONE),
    ("a product needs the operand made here", lambda x, w: (x + 1) @ w, ONE),
    ("both operands, once each", lambda x, w: (x + 1) * (x - 1), 2 * ONE),
    ("squared by itself", lambda x, w: (lambda y: y * y)(x + 1), ONE),
    ("only the factor of what is trained", lambda x, w: (x + 1) * (x.detach() - 1), ONE),
    ("a view is no memory of its own", lambda x, w: x.exp().t() @ x.exp(), 2 * ONE),
    ("relu keeps what matmul keeps too", lambda x, w: (x @ w).relu() @ w, ONE),
    ("what is not listed keeps all it touches", lambda x, w: F.elu(x + 1), 2 * ONE),
    ("a select keeps its condition", lambda x, w: torch.where(x > 0, x + 1, x - 1), 64 * 32),
]


@pytest.mark.parametrize(("program", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_saved_bytes(program: Callable[..., Any], expected: int) -> None:
    assert saved_bytes(captured(lambda x, w: program(x, w), X, W)) == expected


def test_without_gradients_nothing_is_kept() -> None:
    with torch.no_grad():
        assert saved_bytes(captured(lambda x, w: (x.exp() @ w).relu(), X, W)) == 0
    assert saved_bytes(captured(lambda x: x.exp(), X.detach())) == 0


@pytest.mark.parametrize(
    "program",
    [
        lambda x, w: F.layer_norm((x @ w).relu(), (32,)).sum(),
        lambda x, w: torch.tanh(x @ w) * torch.sigmoid(x @ w),
        lambda x, w: F.softmax((x + 1) @ (x * 3).t(), -1) @ x,
    ],
    ids=["norm", "gates", "attention"],
)
def test_it_is_no_less_than_eager_keeps(program: Callable[[Tensor, Tensor], Tensor]) -> None:
    kept: dict[int, int] = {}

    def pack(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        result = program(X, W)
    given = {value.untyped_storage().data_ptr() for value in (X, W)}
    eager = sum(size for key, size in kept.items() if key not in given)
    del result
    statistics = 2 * 64 * 4  # of layer_norm, which are in no node
    assert saved_bytes(captured(program, X, W)) >= eager - statistics


def arms(program: Callable[..., Any]) -> dict[bool, Any]:
    return {True: captured(program, X, W), False: []}


def test_an_arm_within_the_bound_is_no_excess() -> None:
    sides = arms(lambda x, w: x.exp())
    assert memory_excess(sides, Options()) is None
    assert memory_excess(sides, Options(max_saved_bytes=ONE)) is None
    assert memory_excess({True: [], False: []}, Options(max_saved_bytes=0)) is None


def test_an_arm_above_the_bound_is_named_with_both_figures() -> None:
    sides = arms(lambda x, w: x.exp().sin())
    text = memory_excess(sides, Options(max_saved_bytes=ONE - 1))
    assert text is not None
    assert "max_saved_bytes" in text
    assert memory_excess({True: sides[False], False: sides[True]}, Options(max_saved_bytes=1))


def test_the_default_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    assert saved_for_backward.saved_bytes_limit(Options(), 0) == 64 << 20
    assert saved_for_backward.saved_bytes_limit(Options(), 100 << 30) == 2 << 30
    assert saved_for_backward.saved_bytes_limit(Options(max_saved_bytes=0), 100 << 30) == 0
    monkeypatch.setattr(saved_for_backward, "LEAST_BOUND", 10)
    assert memory_excess(arms(lambda x, w: x.exp()), Options())
