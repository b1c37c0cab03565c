"""Which reductions of a graph of calls of torch could run side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nn import functional as F

from fusepass.graph.independent_reductions import independent_reductions


def graph_of(program: Callable[..., Any]) -> fx.Graph:
    found: list[fx.Graph] = []

    def kept(gm: fx.GraphModule, inputs: Any) -> Any:
        found.append(gm.graph)
        return gm.forward

    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(program, backend=kept)([torch.ones(4, 3) for _ in range(5)])
    return found[0]


def one_after_the_other(t: list[Tensor]) -> Tensor:
    x = t[0]
    for other in t:
        x = F.layer_norm(x + other, (3,))
    return x


PROGRAMS: dict[str, tuple[Callable[[list[Tensor]], Any], int]] = {
    "sums": (lambda t: [x.sum() for x in t], 5),
    "norms, and what comes of them": (lambda t: torch.stack([x.norm() for x in t]).sum(), 5),
    "of a list": (lambda t: torch.stack(torch._foreach_norm(t)).sum(), 5),
    "of what is computed": (lambda t: [(x * 2).abs().amax(1) for x in t], 5),
    "rows": (lambda t: [x / F.softmax(x, 1) for x in t], 5),
    "several of one": (lambda t: [t[0].sum(), t[0].mean(), t[0].amax(), t[1].std()], 2),
    "one after the other": (one_after_the_other, 1),
    "none": (lambda t: [x + 1 for x in t], 0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_how_many(name: str) -> None:
    program, count = PROGRAMS[name]
    assert independent_reductions(graph_of(program)) == count
