"""What may be called just to be timed, in graphs as Dynamo captures them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fusepass.inductor.settings_search import side_effects_of_call
from fusepass.rewrite.apply.graph_rule_driver import innermost_first

Program = Callable[[Tensor], Any]


@torch.library.custom_op("tests_leaves_trace::counted", mutates_args=())
def counted(x: Tensor) -> Tensor:
    return x.clone()


@counted.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.compiler.allow_in_graph
def not_looked_into(x: Tensor) -> Tensor:
    return x * 2


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def traces(program: Program) -> list[str]:
    """Traces of the one graph of a program."""
    found: list[list[str]] = []

    def seen(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        found.append([*side_effects_of_call(innermost_first(gm))])
        return gm.forward

    torch.compile(program, backend=seen, fullgraph=True)(torch.randn(4, 4))
    (only,) = found
    return only


NONE: dict[str, Program] = {
    "arithmetic": lambda x: torch.relu(x @ x) + x.sum(0)[None] * 2,
    "views and sizes": lambda x: x.view(-1)[: x.shape[0]].t().contiguous(),
    "operators of Python": lambda x: (x < 1) & ~(x > 0) | (x == 0),
    "layers": nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Dropout(0.5)).eval(),
    "dropout that is switched off": lambda x: F.dropout(x, 0.5, training=False),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "an operator by its overload": lambda x: torch.ops.aten.mul.Tensor(x, x),
    "an operator without its overload": lambda x: torch.ops.aten.mul(x, x),
    "both arms": lambda x: torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,)),
    "recomputed": lambda x: checkpoint(torch.sin, x, use_reentrant=False),
}
SOME: dict[str, tuple[Program, str]] = {
    "drawn": (lambda x: x + torch.rand_like(x), "random"),
    "dropout": (lambda x: F.dropout(x, 0.5), "random"),
    "dropout in place": (lambda x: F.dropout(x + 1, 0.5, inplace=True), "random"),
    "attention with dropout": (
        lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
        "random",
    ),
    "drawn in an arm": (
        lambda x: torch.cond(x.sum() > 0, lambda y: y + 1, torch.rand_like, (x,)),
        "random",
    ),
    "an operator of others": (lambda x: counted(x) + 1, "nobody knows"),
    "by its overload": (lambda x: torch.ops.tests_leaves_trace.counted.default(x), "nobody knows"),
    "without it": (lambda x: torch.ops.tests_leaves_trace.counted(x), "nobody knows"),
    "in an arm": (
        lambda x: torch.cond(x.sum() > 0, lambda y: y + 1, counted, (x,)),
        "nobody knows",
    ),
    "a function that Dynamo does not look into": (lambda x: not_looked_into(x) + 1, "nobody knows"),
}


@pytest.mark.parametrize("name", NONE)
def test_calls_without_side_effects(name: str) -> None:
    with torch.no_grad():
        assert traces(NONE[name]) == []


@pytest.mark.parametrize("name", SOME)
def test_calls_with_side_effects(name: str) -> None:
    program, what = SOME[name]
    with torch.no_grad():
        found = traces(program)
    assert len(found) == 1
    assert what in found[0]


def test_a_module_that_is_called_may_do_anything() -> None:
    inner = fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4)))
    (only,) = side_effects_of_call([inner])
    assert "nobody knows" in only


@pytest.mark.parametrize("target", [print, setattr, not_looked_into])
def test_functions_that_are_not_known(target: Callable[..., Any]) -> None:
    graph = fx.Graph()
    graph.output(graph.call_function(target, (graph.placeholder("x"),)))
    (only,) = side_effects_of_call([fx.GraphModule({}, graph)])
    assert "nobody knows" in only
