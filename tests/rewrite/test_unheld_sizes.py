"""Replacements that compute with a size no input of the graph is: it is asked of a tensor, or not."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fusepass
from fusepass.errors import RewriteFault
from fusepass.torch_private.fx import size_nodes
from fusepass.torch_private.fx.size_nodes import size_as_node, symbol_nodes, unheld_symbols
from fusepass.torch_private.fx.tracing import symbolic_fake, symbolic_fake_mode

OPTIONS: dict[str, Any] = {"candidate": "reference"}


@pytest.fixture(autouse=True)
def _without_faults() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RewriteFault)
        yield


def nested(*lengths: int) -> Tensor:
    parts = [torch.randn(length, 6) for length in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dynamic", [None, True])
def test_rows_of_a_nested_tensor(dynamic: bool | None) -> None:
    """Those of all parts together are only a size of the tensor of their values."""
    net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6))
    compiled = torch.compile(net, backend="fusepass", options=OPTIONS, dynamic=dynamic)
    for lengths in ((2, 3, 4), (1, 5, 2), (7, 1)):
        x = nested(*lengths)
        got, want = compiled(x).values(), net(x).values()
        torch.testing.assert_close(got, want)
        weights = list(net.parameters())
        mine = torch.autograd.grad(got.sum(), weights)
        theirs = torch.autograd.grad(want.sum(), weights)
        torch.testing.assert_close(mine, theirs)
    applied = [d.rule for d in fusepass.last_report(compiled).decisions if d.outcome == "applied"]
    assert applied


def halves(x: Tensor, s: float) -> Tensor:
    return (x * s).relu()


def halves_by_size(x: Tensor, s: float) -> Tensor:
    return torch.full((x.shape[0], 4), s).mul(x).relu()


RULE = fusepass.Rule("sized", halves, halves_by_size, (torch.ones(3, 4), 0.7), place="after")


def decisions(program: Callable[[Tensor], Tensor], *inputs: Tensor) -> list[tuple[str, str]]:
    with fusepass.rules(RULE):
        compiled = torch.compile(program, backend="fusepass", dynamic=True)
        for x in inputs:
            torch.testing.assert_close(compiled(x), program(x))
        report = fusepass.last_report(compiled)
    return [(d.outcome.value, d.reason_code.value) for d in report.decisions if d.rule == "sized"]


def test_a_size_that_the_graph_has_as_an_input() -> None:
    found = decisions(lambda x: (x * 2.0).relu() + 1, torch.randn(5, 4), torch.randn(7, 4))
    assert set(found) == {("applied", "proved")}


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_a_size_that_depends_on_data_is_in_the_graph() -> None:
    found = decisions(
        lambda x: (x[x[:, 0] > 0] * 2.0).relu() + 1, torch.randn(5, 4), torch.randn(7, 4)
    )
    assert set(found) == {("applied", "proved")}


def test_a_size_that_is_nowhere_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_nodes, "_sizes_of_inputs", lambda graph: {})
    net = nn.Sequential(nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 6))  # of no cached graph
    compiled = torch.compile(net, backend="fusepass", options=OPTIONS)
    x = nested(2, 3, 4)
    torch.testing.assert_close(compiled(x).values(), net(x).values())
    decisions = fusepass.last_report(compiled).decisions
    turned_down = [d.reason for d in decisions if "does not hold" in d.reason]
    if not turned_down:  # torch 2.15 has it as a number
        assert [d.outcome.value for d in decisions if d.rule == "linear_gelu_saved"] == ["applied"]
    assert all("a size that the graph does not hold" in reason for reason in turned_down)


def test_the_size_is_asked_behind_all_inputs() -> None:
    mode = symbolic_fake_mode()
    graph = torch.fx.Graph()
    inputs = [graph.placeholder(name) for name in "abc"]
    values = [symbolic_fake(mode, torch.ones(2, 3), place) for place in range(3)]
    for node, value in zip(inputs, values, strict=True):
        node.meta["val"] = value
    output = graph.output(tuple(inputs))
    rows, columns = values[1].shape
    assert unheld_symbols([rows * columns + 1], graph) == set()
    stranger = symbolic_fake(mode, torch.ones(4), 3).shape[0]
    assert unheld_symbols([rows, stranger], graph) == {str(stranger)}
    known = symbol_nodes(graph)
    assert known == {}
    with graph.inserting_before(output):
        made = size_as_node(rows * 2, known, graph)
        again = size_as_node(rows * 2, known, graph)
        with pytest.raises(KeyError):
            size_as_node(stranger, known, graph)
    graph.lint()
    asked = [n for n in graph.nodes if n.target is torch.ops.aten.sym_size.int]
    assert [(n.args, n.prev) for n in asked] == [((inputs[1], 0), inputs[2])]
    assert str(asked[0].meta["val"]) == str(rows)
    assert {*made.all_input_nodes, *again.all_input_nodes} == set(asked)
