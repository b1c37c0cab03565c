"""Reductions in ATen graphs that a kernel with a tile of the product can take in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from fusepass.fusion.gemm.region import Reduction, reduction_of

CASES: dict[str, tuple[Callable[[Tensor], Tensor], Reduction | None]] = {
    "all but the last": (lambda x: x.sum((0, 1)), Reduction("rows", "sum")),
    "named from behind": (lambda x: x.sum((-2, 0), keepdim=True), Reduction("rows", "sum")),
    "the last": (lambda x: x.sum(-1), Reduction("columns", "sum")),
    "the largest": (lambda x: x.amax(2), Reduction("columns", "max")),
    "the largest of columns": (lambda x: x.amax((0, 1)), Reduction("rows", "max")),
    "to another dtype": (lambda x: x.sum(-1, dtype=torch.float32), Reduction("columns", "sum")),
    "to double": (lambda x: x.sum(-1, dtype=torch.float64), None),
    "some of the rows": (lambda x: x.sum(0), None),
    "everything": (lambda x: x.sum(), None),
    "every dimension": (lambda x: x.sum((0, 1, 2)), None),
    "the largest, not rounded": (lambda x: x.float().amax(2), None),
    "the smallest": (lambda x: x.amin(-1), None),
    "a vector": (lambda x: x[0, 0].sum(0), None),
    "no reduction": (lambda x: x.relu(), None),
}


@pytest.mark.parametrize("name", CASES)
def test_reductions(name: str) -> None:
    program, expected = CASES[name]
    graph = make_fx(program, tracing_mode="fake")(torch.randn(2, 3, 4).half()).graph
    last = [node for node in graph.nodes if node.op == "call_function"][-1]
    assert reduction_of(last) == expected
