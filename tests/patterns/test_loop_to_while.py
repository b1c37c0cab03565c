"""The graph of a round, as ``torch.while_loop`` wants it, computes what the round computes."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode

from fusepass.capture.nodes.loop_node import KEYED
from fusepass.patterns.loop_to_while import _copy_results, _rewrite_keys

I, J = "i", "j"  # where a key has a 0-d tensor
ALL = slice(None)
KEYS = [
    (I,),
    (ALL, I),
    (I, J),
    (I, ALL, J),
    (ALL, I, J),
    (..., I),
    (I, ..., J),
    (..., I, ALL),
    (None, I),
    (I, None),
    (None, I, ALL, J),
    (0, I),
    (I, -1),
    (slice(1, 3), I, 2),
    (I, slice(1, 3), J),
    (I, I),
]


class Body:
    """A graph of a source, two indices and further inputs, with the fake value of each node."""

    def __init__(self, *inputs: Any) -> None:
        self.mode = FakeTensorMode()
        self.graph = fx.Graph()
        self.given = [self.node("placeholder", f"in_{at}", x) for at, x in enumerate(inputs)]

    def node(self, op: str, target: Any, value: Any, *args: Any) -> fx.Node:
        made = self.graph.create_node(op, target, args)
        fake = isinstance(value, Tensor) and op == "placeholder"
        made.meta["example_value"] = self.mode.from_tensor(value) if fake else value
        return made

    def fakes(self) -> list[Any]:
        return [node.meta["example_value"] for node in self.given]

    def finish(self, *results: fx.Node) -> fx.GraphModule:
        self.graph.output(results)
        return fx.GraphModule({}, self.graph)


def keyed(key: Any, i: Any, j: Any) -> Any:
    return tuple({"i": i, "j": j}[part] if isinstance(part, str) else part for part in key)


def inputs() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(3, 4, 5), torch.tensor(1), torch.tensor(2)]


@pytest.mark.parametrize("key", KEYS)
def test_a_key_that_is_read(key: Any) -> None:
    x, i, j = inputs()
    body = Body(x, i, j)
    with body.mode:
        value = body.fakes()[0][keyed(key, 0, 0)]
    node = body.node(
        "call_function", operator.getitem, value, body.given[0], keyed(key, *body.given[1:])
    )
    node.meta[KEYED] = True
    gm = body.finish(node)
    _rewrite_keys(gm, body.mode)
    gm.recompile()
    (made,) = gm(x, i, j)
    wanted = x[keyed(key, 1, 2)]
    assert torch.equal(made, wanted)
    assert made.shape == wanted.shape
    assert not any(KEYED in one.meta for one in gm.graph.nodes)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("stored", [2.5, True, "row", "one", "double"])
def test_a_key_that_is_written(key: Any, stored: Any) -> None:
    x, i, j = inputs()
    part = x[keyed(key, 1, 2)]
    tensors = {
        "row": torch.randn(part.shape),
        "one": torch.tensor(7.0),
        "double": torch.randn(part.shape[-1:], dtype=torch.float64),
    }
    value = tensors.get(stored, stored)
    body = Body(x, i, j, *([value] if isinstance(value, Tensor) else []))
    source, *indices = body.given[:3]
    last = body.given[3] if isinstance(value, Tensor) else value
    written = body.node("call_function", operator.setitem, None, source, keyed(key, *indices), last)
    written.meta[KEYED] = True
    gm = body.finish(source)
    _rewrite_keys(gm, body.mode)
    gm.recompile()
    ours, theirs = x.clone(), x.clone()
    theirs[keyed(key, 1, 2)] = value
    gm(ours, i, j, *([value] if isinstance(value, Tensor) else []))
    assert torch.equal(ours, theirs)


def test_results_share_no_memory_with_an_input_or_one_another() -> None:
    x = torch.randn(3, 4)
    body = Body(x)
    (given,) = body.given
    with body.mode:
        sum_, turned = given.meta["example_value"] + 1, given.meta["example_value"].t()
    made = body.node("call_function", torch.add, sum_, given, 1)
    view = body.node("call_method", "t", turned, given)
    gm = body.finish(given, made, made, view)
    _copy_results(gm)
    results = gm(x)
    assert len({one.data_ptr() for one in (x, *results)}) == 5
    for ours, theirs in zip(results, (x, x + 1, x + 1, x.t()), strict=True):
        assert torch.equal(ours, theirs)
        assert ours.stride() == theirs.stride()
    assert sum(node.target == "clone" for node in gm.graph.nodes) == 3


def test_results_that_are_new_are_not_copied() -> None:
    body = Body(torch.randn(3))
    (given,) = body.given
    with body.mode:
        sum_ = given.meta["example_value"] + 1
    gm = body.finish(body.node("call_function", torch.add, sum_, given, 1))
    _copy_results(gm)
    assert not any(node.target == "clone" for node in gm.graph.nodes)
