"""What is known about the elements of an index tensor by the way it was made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from fusepass.graph.safety.index_ranges import index_in_range, range_of
from fusepass.graph.safety.totality import partial_reason


def traced(function: Callable[..., Any], *shapes: tuple[int, ...]) -> fx.Graph:
    """The calls of a function, with what each gives."""
    inputs = [torch.zeros(shape) for shape in shapes]
    gm = fx.symbolic_trace(function)
    FakeTensorProp(gm).propagate(*inputs)
    return gm.graph


def result(graph: fx.Graph) -> fx.Node:
    found: Any = next(node for node in graph.nodes if node.op == "output").args[0]
    return found


@pytest.mark.parametrize(
    ("made", "bound"),
    [
        (lambda x: x.argmax(1), 4),
        (lambda x: x.argmin(0, keepdim=True), 3),
        (lambda x: x.argmax(), 12),
        (lambda x: x.argsort(), 4),
        (lambda x: x.sort(0)[1], 3),
        (lambda x: torch.sort(x, descending=True)[1], 4),
        (lambda x: x.topk(2, 0)[1], 3),
        (lambda x: x.max(0)[1].unsqueeze(-1).expand(4, 2), 3),
        (lambda x: x.kthvalue(1)[1], 4),
        (lambda x: x.argmax(1).to(torch.int32).flip(0), 4),
        (lambda x: x.long().clamp(0, 5), 6),
        (lambda x: x.argmax(1).clamp(max=1), 2),
        (lambda x: x.long() % 7, 7),
        (lambda x: x.long().clamp(max=5), None),
        (lambda x: x.long().clamp(-1, 5), None),
        (lambda x: x.long() % -7, None),
        (lambda x: x.argmax(1) - 1, None),
        (lambda x: x.argmax(1).to(torch.int8), None),
        (lambda x: x.long(), None),
        (lambda x: x.sort(0)[0], None),
        (lambda x: x.argmax(1).add_(1), None),
    ],
)
def test_range(made: Callable[[Tensor], Tensor], bound: int | None) -> None:
    assert range_of(result(traced(made, (3, 4)))) == bound


def test_argsort_of_an_empty_dimension_has_no_range() -> None:
    assert range_of(result(traced(lambda x: x.argsort(0), (0, 4)))) is None


def test_written_later_by_another_name() -> None:
    def plain(x: Tensor) -> Tensor:
        return x.argmax(1).view(-1)

    graph = traced(plain, (3, 4))
    assert index_in_range(result(graph), 4)
    assert not index_in_range(result(graph), 3)
    found = next(node for node in graph.nodes if node.target == "argmax")
    with graph.inserting_after(result(graph)):
        graph.call_method("fill_", (found, 9)).meta["example_value"] = found.meta.get("val")
    assert not index_in_range(result(graph), 4)


@pytest.mark.parametrize(
    ("call", "total"),
    [
        (lambda x, y: y.gather(1, x.argmax(1, True)), True),
        (lambda x, y: y.gather(0, x.argmax(1, True)), False),
        (lambda x, y: x[:, :2].gather(1, x.argmax(1, True)), False),
        (lambda x, y: y[x.argmax(1)], False),
        (lambda x, y: y[:, x.argmax(1)], True),
        (lambda x, y: y[x.argmax(0), x.argmax(0)], True),
        (lambda x, y: y[x.argmax(0), None], False),
        (lambda x, y: torch.nn.functional.one_hot(x.argmax(1), 4), True),
        (lambda x, y: torch.nn.functional.one_hot(x.argmax(1), 3), False),
        (lambda x, y: torch.nn.functional.one_hot(x.argmax(1)), False),
        (lambda x, y: torch.nn.functional.embedding(x.argmax(0), y), True),
        (lambda x, y: torch.nn.functional.embedding(x.argmax(1), y, max_norm=1.0), False),
    ],
)
def test_calls(call: Callable[[Tensor, Tensor], Tensor], total: bool) -> None:
    try:
        node = result(traced(call, (3, 4), (3, 4)))
    except RuntimeError:
        pytest.skip("of a size that only the data know")
    assert (partial_reason(node) is None) == total
