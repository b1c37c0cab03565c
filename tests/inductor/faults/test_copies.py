"""Which copies are kept, and what is copied in front of a pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fusepass.inductor.faults.copies import (
    copy_before_overlapping_store,
    copy_permuted_pool_inputs,
    keep_lost_copies,
)
from fusepass.inductor.faults.fault import Fault
from tests.inductor.faults.graphs import names, traced

ROWS = torch.randn(2, 4, 12, 12)
KEPT: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "stored": lambda x, i: x.index_put_((i,), x.clone()),
    "computed first": lambda x, i: x.copy_(x.clone().flip(0) * 2),
    "a view": lambda x, i: x[1:].copy_(x.clone()[:-1]),
}
TAKEN: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "not written": lambda x, i: torch.zeros(4).index_put((i,), x.clone()),
    "of what is computed": lambda x, i: x.index_put_((i,), (x * 2).clone()),
    "no copy": lambda x, i: x.add_(1),
}


def with_writes(program: Callable[[Tensor, Tensor], Any]) -> Any:
    """As AOTAutograd has it: what is written is copied back at the end."""

    def run(x: Tensor, i: Tensor) -> Tensor:
        program(x, i)
        return x

    return traced(run, torch.zeros(4), torch.tensor([3, 2, 1, 0]))


@pytest.mark.parametrize("name", [*KEPT, *TAKEN])
def test_kept(name: str) -> None:
    gm = with_writes({**KEPT, **TAKEN}[name])
    found = keep_lost_copies(gm.graph)
    assert [one.rule for one in found] == ["lost_copy"] * (name in KEPT)
    assert ("aten.lift_fresh_copy.default" in names(gm)) is (name in KEPT)


@pytest.mark.parametrize(
    ("x", "copied"),
    [
        (ROWS.transpose(2, 3), True),
        (ROWS, False),
        (ROWS.contiguous(memory_format=torch.channels_last), False),
        (ROWS.permute(0, 2, 3, 1), True),
    ],
)
def test_pool(x: Tensor, copied: bool) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return F.max_pool2d(x * 2, 3, return_indices=True)

    gm = traced(program, x, decomposed=True)
    assert bool(copy_permuted_pool_inputs(gm.graph)) is copied
    assert any("should_fallback" in node.meta for node in gm.graph.nodes) is copied
    gm.graph.lint()


def test_pool_without_places() -> None:
    """Only the largest numbers are read: their order does not matter."""
    gm = traced(lambda x: F.max_pool2d(x, 3), ROWS.transpose(2, 3), decomposed=True)
    gm.graph.eliminate_dead_code()
    assert copy_permuted_pool_inputs(gm.graph) == []


@pytest.mark.parametrize(("shape", "copied"), [((), True), ((4,), True), ((4, 4), False)])
def test_store_into_shared_numbers(
    shape: tuple[int, ...], copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fault, "is_here", True)

    def program(grad: Tensor, y: Tensor) -> Tensor:
        return torch.slice_scatter(grad.expand(4, 4), y, 0, 1, 2)

    gm = traced(program, torch.ones(shape), torch.zeros(1, 4))
    assert bool(copy_before_overlapping_store(gm.graph)) is copied
    assert ("aten.clone.default" in names(gm)) is copied
    gm.recompile()
    made = gm(torch.ones(shape), torch.zeros(1, 4))
    assert torch.equal(made, program(torch.ones(shape), torch.zeros(1, 4)))
