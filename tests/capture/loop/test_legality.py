"""What a loop cannot hold: keys that Inductor's form of it would store into a copy."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import fusepass
from fusepass.capture.loop.legality import check_keyed
from fusepass.capture.nodes.loop_node import KEYED
from fusepass.capture.refusal import Refusal
from fusepass.options import Options


def nodes_of(*key: Any) -> list[fx.Node]:
    """A store by a key whose strings are 0-d tensors."""
    graph = fx.Graph()
    source = graph.placeholder("source")
    parts = tuple(graph.placeholder(one) if isinstance(one, str) else one for one in key)
    made = graph.call_function(operator.setitem, (source, parts, 1.0))
    made.meta[KEYED] = True
    return [made]


@pytest.mark.parametrize("part", [[0, 2], True, False, [True, False]])
def test_a_key_that_gives_a_copy_is_kept_for_inductor(part: Any) -> None:
    for key in ((part, "i"), ("i", part)):
        with pytest.raises(Refusal, match="a list or truth value"):
            check_keyed(Options(codegen="inductor"), nodes_of(*key))
        check_keyed(Options(codegen="eager"), nodes_of(*key))


@pytest.mark.parametrize("part", [0, -1, slice(None), slice(1, 3), None, ..., "j"])
def test_a_key_that_gives_a_view_is_not(part: Any) -> None:
    for key in ((part, "i"), ("i", part)):
        check_keyed(Options(codegen="inductor"), nodes_of(*key))


def rows_of_a_list(x: Tensor) -> Tensor:
    out, n = torch.zeros(4, 12), 0
    while x.norm() > 1:
        x = x * 0.5
        out[[0, 2], n] = x[:2]
        n += 1
    return out


@pytest.mark.parametrize("codegen", ["eager", "inductor"])
def test_a_store_by_a_list_and_a_number_that_changes(codegen: str) -> None:
    torch._dynamo.reset()
    options = {"codegen": codegen}
    compiled = torch.compile(rows_of_a_list, backend="fusepass", options=options)
    for scale in (8.0, 0.1, 100.0):
        x = torch.ones(4) * scale
        assert torch.equal(compiled(x), rows_of_a_list(x))
    found = [d.treatment for d in fusepass.last_report(compiled).decisions if d.rule == "branch"]
    assert ("loop" in found) == (codegen == "eager")
