"""What no program on a CPU shows: calls on several CUDA streams."""

from __future__ import annotations

import pytest
import torch
from torch import fx

import fusepass
from fusepass import torch_private
from fusepass.options import resolve
from fusepass.rewrite.pattern_rules import apply_rules

RULE = fusepass.Rule(
    "test_pair", lambda x: x.sin().cos(), lambda x: torch.cos(torch.sin(x)), (torch.randn(3, 4),)
)


def graph_module() -> tuple[fx.GraphModule, fx.Node, fx.Node]:
    mode = torch_private.plain_fake_mode()
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
