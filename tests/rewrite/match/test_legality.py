"""Calls on several CUDA streams, which no program on a CPU shows, and views of what is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx

import fusepass
from fusepass.options import resolve
from fusepass.rewrite.apply.rounds import apply_rules
from fusepass.torch_private.fx.tracing import plain_fake_mode

RULE = fusepass.Rule(
    "test_pair", lambda x: x.sin().cos(), lambda x: torch.cos(torch.sin(x)), (torch.randn(3, 4),)
)


def graph_module() -> tuple[fx.GraphModule, fx.Node, fx.Node]:
    mode = plain_fake_mode()
    graph = fx.Graph()
    x = graph.placeholder("x")
    sin = graph.call_function(torch.sin, (x,))
    cos = graph.call_function(torch.cos, (sin,))
    graph.output((cos,))
    for node in (x, sin, cos):
        node.meta["example_value"] = mode.from_tensor(torch.randn(3, 4))
    return fx.GraphModule(torch.nn.Module(), graph), sin, cos


def outcome(gm: fx.GraphModule) -> list[tuple[str, str]]:
    decisions = apply_rules(gm, [RULE], resolve(), "before")
    return [(d.outcome.value, d.reason_code.value) for d in decisions]


def test_on_one_stream() -> None:
    gm, _, _ = graph_module()
    assert outcome(gm)[0] == ("applied", "proved")


def test_annotated_with_two_streams() -> None:
    gm, _, cos = graph_module()
    cos.meta["custom"] = {"stream": 1}
    assert outcome(gm) == [("rejected", "stream")]


@pytest.mark.parametrize("name", ["set_stream", "wait_stream"])
def test_a_stream_is_switched_in_between(name: str) -> None:
    gm, _, cos = graph_module()

    def call() -> None: ...

    call.__name__ = name
    with gm.graph.inserting_before(cos):
        gm.graph.call_function(call, ())
    assert outcome(gm) == [("rejected", "stream")]


def then_a_view_is_returned(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.sin()
    v = y.view(-1)
    y.add_(1)
    return y, v


def then_a_view_is_read(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.sin()
    v = y.view(-1)
    y.add_(1)
    return y, v.cos()


def a_view_is_read_before(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.sin()
    z = y.view(-1).cos()
    y.add_(1)
    return y, z


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (then_a_view_is_returned, "alias"),
        (then_a_view_is_read, "alias"),
        (a_view_is_read_before, "proved"),
    ],
)
def test_a_view_from_before_a_write(
    program: Callable[[Tensor], tuple[Tensor, Tensor]], code: str
) -> None:
    def parts(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.sin()
        return y + 1, y.view(-1)

    x = torch.randn(3, 4)
    rule = fusepass.Rule("test_view", parts, parts, (x,))
    with fusepass.rules(rule):
        compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
        for got, wanted in zip(compiled(x), program(x), strict=True):
            assert torch.equal(got, wanted)
    decisions = fusepass.last_report(compiled).decisions
    assert next(d.reason_code.value for d in decisions if d.rule == rule.name) == code
