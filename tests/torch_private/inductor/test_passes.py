"""Graphs whose nodes are put in order."""

from __future__ import annotations

import torch

from fusepass.torch_private.inductor.passes import put_in_order


def test_calls_that_depend_on_each_other_are_put_in_order() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    late = graph.call_function(torch.relu, (x,))
    early = graph.call_function(torch.neg, (x,))
    last = graph.call_function(torch.add, (late, early))
    graph.output(last)
    late.replace_input_with(x, early)
    put_in_order(graph)
    graph.lint()
    assert [node.name for node in graph.nodes] == ["x", early.name, late.name, last.name, "output"]
