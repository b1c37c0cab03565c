"""Reductions that Inductor is told to keep whole: each operator's call is what Inductor compiles."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx

from fusepass.fusion.pointwise.inductor_reductions import REDUCTIONS
from fusepass.torch_private.inductor.passes import graph_pass
from fusepass.torch_private.inductor.reductions import can_be_whole, whole_reduction

PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "aten.sum.default": lambda x: x.sum(),
    "aten.sum.dim_IntList": lambda x: x.sum(0, keepdim=True, dtype=torch.float64),
    "aten.mean.default": lambda x: x.mean(),
    "aten.mean.dim": lambda x: x.mean((0, 2)),
    "aten.amax.default": lambda x: x.amax(0),
    "aten.amin.default": lambda x: x.amin((1, 2)),
    "aten.max.default": lambda x: x.max(),
    "aten.min.default": lambda x: x.min(),
    "aten.prod.default": lambda x: x.prod(),
    "aten.prod.dim_int": lambda x: x.prod(1),
    "aten.any.default": lambda x: (x > 1).any(),
    "aten.any.dim": lambda x: (x > 1).any(1),
    "aten.any.dims": lambda x: (x > 1).any((0, 1)),
    "aten.var.correction": lambda x: x.var(0),
    "aten.var_mean.correction": lambda x: torch.stack(torch.var_mean(x, (0, 1))),
}


def replacing(replaced: list[str]) -> Callable[[fx.Graph], None]:
    """A pass that keeps every reduction of a graph whole, and writes down which."""

    def replace(graph: fx.Graph) -> None:
        for node in graph.nodes:
            if str(node.target) in REDUCTIONS and can_be_whole(node.target):
                replaced.append(str(node.target))
                node.target = whole_reduction(node.target)

    return replace


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_the_call_in_its_place_computes_the_same(name: str) -> None:
    replaced: list[str] = []
    hook = graph_pass(replacing(replaced), lambda: None)
    options = {"post_grad_custom_post_pass": hook}
    x = torch.randn(5, 6, 7)
    compiled = torch.compile(PROGRAMS[name], options=options)
    torch.testing.assert_close(compiled(x), PROGRAMS[name](x))
    assert name in replaced


def in_an_arm(x: Tensor, w: Tensor) -> Tensor:
    made: Tensor = torch.cond(
        x.sum() > 0, lambda x, w: x.softmax(0) * w, lambda x, w: x * w, (x, w)
    )
    return made + 1


def in_a_loop(x: Tensor, w: Tensor) -> Tensor:
    from torch._higher_order_ops.while_loop import while_loop

    _, made = while_loop(
        lambda i, x: i < 3, lambda i, x: (i + 1, x.softmax(0)), (torch.tensor(0), x * w)
    )
    return made + 1


def in_a_scan(x: Tensor, w: Tensor) -> Tensor:
    from torch._higher_order_ops.scan import scan

    last, _ = scan(
        lambda c, one: (c * 0.5 + one.softmax(0).sum(0), one * 2), torch.zeros(7), x.view(3, 2, 7)
    )
    return last * w


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("program", "grad"),
    [(in_an_arm, False), (in_an_arm, True), (in_a_loop, False), (in_a_scan, False)],
)
def test_graphs_nested_in_others(program: Callable[[Tensor, Tensor], Tensor], grad: bool) -> None:
    """They are run on fake tensors after their reductions were replaced, the backward's, too."""
    replaced: list[str] = []
    hook = graph_pass(replacing(replaced), lambda: None)
    x, w = torch.randn(6, 7), torch.randn(7, requires_grad=grad)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(program, options={"post_grad_custom_post_pass": hook})
        for sign in (1, -1):
            given = x.abs() * sign
            made, want = compiled(given, w), program(given, w)
            torch.testing.assert_close(made, want)
            if grad:
                along = torch.randn_like(want)
                pairs = [torch.autograd.grad(one, w, along) for one in (made, want)]
                torch.testing.assert_close(*pairs)
    assert replaced


def test_one_call_for_each_operator() -> None:
    operator = torch.ops.aten.amax.default
    call = whole_reduction(operator)
    assert call is whole_reduction(operator)
    assert call.__name__ == "whole_amax_default"
    assert not can_be_whole(torch.ops.aten.nonzero.default.name)
