"""Captured loops on CUDA: one graph, equal to eager, with and without Inductor and CUDA graphs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import fusepass
from fusepass.testing.compare import assert_same
from tests.capture.loop.solvers import SOLVERS

pytestmark = pytest.mark.gpu

SEVEN = [
    "power_without_end",
    "Sinkhorn",
    "bisect_with_exact_hit",
    "ode_with_tensor_time",
    "kalman_until_lost",
    "DecodeInRange",
    "cg_in_place",
]


def on_cuda(values: Any) -> Any:
    return pytree.tree_map(lambda v: v.cuda() if isinstance(v, Tensor) else v, values)


def rounds_of(values: Any) -> list[Any]:
    return [v for v in pytree.tree_leaves(values) if not isinstance(v, (Tensor, float))]


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("codegen", ["eager", "inductor"])
@pytest.mark.parametrize("name", SEVEN)
def test_one_graph_equal_to_eager(name: str, codegen: str, mode: str | None) -> None:
    fusepass.reset()
    program = SOLVERS[name].make()
    if isinstance(program, nn.Module):
        program = program.cuda()
    with fusepass.options(codegen=codegen):
        compiled = torch.compile(copy.deepcopy(program), backend="fusepass", mode=mode)
        for call in SOLVERS[name].calls:
            ours, theirs = compiled(*on_cuda(call)), program(*on_cuda(call))
            assert rounds_of(ours) == rounds_of(theirs)
            if codegen == "eager":
                assert_same(theirs, ours, "results")
                continue
            for a, b in zip(pytree.tree_leaves(ours), pytree.tree_leaves(theirs), strict=True):
                if isinstance(a, Tensor):
                    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
        report = fusepass.last_report(compiled).to_dict()
    assert report["graph_breaks"] == []
    assert "loop" in {d["treatment"] for d in report["decisions"]}
