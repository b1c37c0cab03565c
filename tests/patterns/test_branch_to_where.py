"""What training pays for a gated branch, and that the untaken arm gives no NaN."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

import fusepass


def dear_arms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x @ w
    if h.sum() > 0:
        h = torch.log(h.abs() @ w)
    else:
        h = torch.sqrt(h.abs() @ w)
    return h


class Graphs:
    """A pass of the user's that keeps the ATen graphs Inductor is about to lower."""

    def __init__(self) -> None:
        self.seen: list[fx.Graph] = []

    def __call__(self, graph: fx.Graph) -> None:
        copy = fx.Graph()
        copy.graph_copy(graph, {})
        self.seen.append(copy)


def calls(graph: fx.Graph, target: Any) -> list[fx.Node]:
    return [n for n in graph.nodes if n.target is target]


def test_no_copy_stands_in_front_of_a_matrix_product_in_training() -> None:
    graphs = Graphs()
    options = {"inductor.post_grad_custom_post_pass": graphs}
    compiled = torch.compile(dear_arms, backend="fusepass", options=options)
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    compiled(x, w).sum().backward()
    forward = graphs.seen[0]
    products = calls(forward, torch.ops.aten.mm.default)
    assert products
    for product in products:
        for operand in product.args:
            assert operand.target is not torch.ops.aten.where.self, "a gate was left as a copy"
    # what remains of the gates are the masks of the backward
    assert calls(graphs.seen[1], torch.ops.aten.where.self)
    assert len(calls(forward, torch.ops.aten.where.self)) == 1


@pytest.mark.parametrize("codegen", ["eager", "eager-decomposed", "inductor"])
def test_the_untaken_arm_gives_zero_and_never_nan(codegen: str) -> None:
    def guarded(w: torch.Tensor) -> torch.Tensor:
        return w.sqrt() if (w > 0).all() else 2 * w

    compiled = torch.compile(guarded, backend="fusepass", options={"codegen": codegen})
    for values in ([0.0, 4.0], [1.0, 4.0]):
        mine = torch.tensor(values, requires_grad=True)
        theirs = torch.tensor(values, requires_grad=True)
        compiled(mine).sum().backward()
        guarded(theirs).sum().backward()
        assert torch.equal(mine.grad, theirs.grad)
    treatments = [d.treatment for d in fusepass.last_report(compiled).decisions if d.treatment]
    assert treatments == ["where"]


def test_arms_that_cannot_give_nan_are_not_gated() -> None:
    def guarded(h: torch.Tensor) -> torch.Tensor:
        h = h * 2
        if torch.isinf(h).any():
            h = h.clamp(-1, 1)
        return h

    seen: list[fx.GraphModule] = []

    def keep(gm: fx.GraphModule, inputs: Any) -> Any:
        result = fusepass.backend.fusepass(gm, inputs, options={"codegen": "eager"})
        seen.append(gm)
        return result

    import fusepass.backend

    keep.compiler_fn = fusepass.backend.fusepass
    torch.compile(guarded, backend=keep)(torch.randn(3, requires_grad=True))
    wheres = [n for n in seen[0].graph.nodes if n.target is torch.where]
    assert len(wheres) == 1
    assert not [n for n in seen[0].graph.nodes if n.target == "detach"]
