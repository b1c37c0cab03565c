"""Sums that a program has itself are told from those that Inductor makes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx
from torch._inductor import config

from fusepass.fusion.gemm.one_row import made_by_inductor
from fusepass.inductor import passes

ADDMM = torch.ops.aten.addmm.default


@pytest.mark.parametrize("train", [False, True])
def test_addmm_of_inductor_and_of_the_user_are_told_apart(
    train: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program(x: Tensor, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.addmm(y, x, w), y.sin() + x @ w

    found: list[tuple[str, bool]] = []

    def noted(graph: fx.Graph, *given: object) -> list[object]:
        for node in graph.find_nodes(op="call_function", target=ADDMM):
            added = node.args[0]
            assert isinstance(added, fx.Node)
            found.append((added.op, made_by_inductor(node)))
        return []

    monkeypatch.setattr(passes, "rewrite_aten", noted)
    given = [torch.randn(16, 16).requires_grad_(train) for _ in range(3)]
    torch._dynamo.reset()
    with config.patch(force_disable_caches=True), torch.set_grad_enabled(train):
        torch.compile(program, backend="fusepass")(*given)
    assert sorted(found)[:2] == [("call_function", True), ("placeholder", False)]
