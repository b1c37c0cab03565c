"""Masked stores become selections where, and only where, they cannot fail and mean the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._guards import detect_fake_mode

from fusepass.capture.masks.masked_store import lower_masked_stores
from fusepass.graph.ops.op_names import op_name
from fusepass.testing.compare import same_bits
from tests.graph.arms import captured

NAN, INF = float("nan"), float("inf")
X = torch.arange(12.0).reshape(3, 4) - 5
MASK = torch.tensor([[True, False, False, True], [False] * 4, [True] * 4])
ROWS, COLUMNS = MASK[:, 0], MASK[0]

Store = Callable[[Tensor, Tensor], Any]


def put(index: Callable[[Tensor], Any], value: Any) -> Store:
    def store(x: Tensor, mask: Tensor) -> Tensor:
        h = x.clone()
        h[index(mask)] = value(h) if callable(value) else value
        return h

    return store


def lowered(store: Store, x: Tensor, mask: Tensor) -> tuple[fx.GraphModule, list[str]]:
    """The graph of a store after lowering, and the names of its operations."""
    nodes = captured(store, x.clone(), mask.clone())
    mode = detect_fake_mode([n.meta.get("example_value") for n in nodes])
    list_of_them = list(nodes)
    lower_masked_stores(list_of_them, mode)
    graph = nodes[0].graph
    assert [n for n in graph.nodes if n.op.startswith("call_")] == list_of_them
    gm = graph.owning_module
    gm.recompile()
    return gm, [op_name(n) or "" for n in list_of_them]


def in_graph_order(gm: fx.GraphModule, x: Tensor, mask: Tensor) -> list[Tensor]:
    inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
    by_dtype = {torch.bool: mask, x.dtype: x}
    return [by_dtype[n.meta["example_value"].dtype] for n in inputs]


# name: the store, its mask, the operation it becomes.
LOWERED: dict[str, tuple[Store, Tensor, str]] = {
    "number": (put(lambda m: m, 7.0), MASK, "masked_fill_"),
    "integer": (put(lambda m: m, 7), MASK, "masked_fill_"),
    "nan": (put(lambda m: m, NAN), MASK, "masked_fill_"),
    "infinity": (put(lambda m: m, -INF), MASK, "masked_fill_"),
    "negative zero": (put(lambda m: m, -0.0), MASK, "masked_fill_"),
    "tensor of no dimensions": (put(lambda m: m, lambda h: h.sum()), MASK, "copy_"),
    "tuple": (put(lambda m: (m,), 7.0), MASK, "masked_fill_"),
    "ellipsis behind": (put(lambda m: (m, ...), 7.0), MASK, "masked_fill_"),
    "ellipsis before": (put(lambda m: (..., m), 7.0), MASK, "masked_fill_"),
    "rows": (put(lambda m: m, 7.0), ROWS, "masked_fill_"),
    "columns": (put(lambda m: (slice(None), m), 7.0), COLUMNS, "masked_fill_"),
    "last dimension": (put(lambda m: (..., m), 7.0), COLUMNS, "masked_fill_"),
    "rows from a row": (put(lambda m: m, lambda h: h[0] * 2), ROWS, "copy_"),
    "rows from one number": (put(lambda m: m, lambda h: h[:1, 0]), ROWS, "copy_"),
}


@pytest.mark.parametrize("name", LOWERED)
@pytest.mark.parametrize("fill", [None, False, True])
def test_same_as_eager(name: str, fill: bool | None) -> None:
    store, mask, operation = LOWERED[name]
    gm, names = lowered(store, X, mask)
    assert operation in names
    assert "__setitem__" not in names
    assert "setitem" not in names
    used = mask if fill is None else torch.full_like(mask, fill)
    (result,) = gm(*in_graph_order(gm, X, used))
    assert same_bits(result, store(X, used))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (torch.float16, 65504.0),
        (torch.bfloat16, 3e38),
        (torch.float64, 1e300),
        (torch.int8, -128),
        (torch.uint8, 255),
        (torch.int64, 2**63 - 1),
        (torch.int64, 2.75),
        (torch.int8, -128.0),
        (torch.bool, True),
    ],
)
def test_the_largest_number_of_a_dtype(dtype: torch.dtype, value: Any) -> None:
    x = X.to(dtype)
    store = put(lambda m: m.reshape(3, 4), value)
    if dtype is torch.bool:  # both inputs would have one dtype: the mask is made of the tensor
        nodes = captured(lambda h: put(lambda m: m, value)(h, h.logical_not()), x)
        lower_masked_stores(list(nodes), detect_fake_mode([nodes[0].meta["example_value"]]))
        assert "masked_fill_" in [op_name(n) for n in nodes[0].graph.nodes]
        return
    gm, names = lowered(store, x, MASK)
    assert "masked_fill_" in names
    (result,) = gm(*in_graph_order(gm, x, MASK))
    assert same_bits(result, store(x, MASK))


def test_two_stores_in_a_row_keep_their_order() -> None:
    def store(x: Tensor, mask: Tensor) -> Tensor:
        h = x.clone()
        h[mask] = 7.0
        h[h > 5] = -1.0
        return h

    gm, names = lowered(store, X, MASK)
    assert names.count("masked_fill_") == 2
    (result,) = gm(*in_graph_order(gm, X, MASK))
    assert same_bits(result, store(X, MASK))


def test_no_elements() -> None:
    store = put(lambda m: m, 7.0)
    empty = torch.zeros(0, 4)
    gm, names = lowered(store, empty, torch.zeros(0, 4, dtype=torch.bool))
    assert "masked_fill_" in names
    (result,) = gm(*in_graph_order(gm, empty, torch.zeros(0, 4, dtype=torch.bool)))
    assert result.shape == (0, 4)


# Near misses: the store could fail, count, or mean something else.
LEFT: dict[str, tuple[Store, Tensor, Tensor]] = {
    "as many values as true elements": (put(lambda m: m, lambda h: h[0, :3] * 2), X[:1], MASK[2:]),
    "a row of a full mask": (put(lambda m: m, lambda h: h[0] * 2), X, MASK),
    "other dtype": (put(lambda m: m, lambda h: h[0, 0].double()), X, MASK),
    "too large a number": (put(lambda m: m, 1e6), X.half(), MASK),
    "a row of where it is stored": (put(lambda m: m, lambda h: h[0]), X, ROWS),
    "beside an index": (put(lambda m: (m, 0), 7.0), X, ROWS),
    "beside a part": (put(lambda m: (m, slice(0, 2)), 7.0), X, ROWS),
    "beside a new dimension": (put(lambda m: (None, m), 7.0), X, MASK),
    "two masks": (put(lambda m: (m, m), 7.0), torch.zeros(3, 3), ROWS),
    "index of integers": (put(lambda m: m.long(), 7.0), X, ROWS),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_as_they_are(name: str) -> None:
    store, x, mask = LEFT[name]
    nodes = captured_anyway(store, x, mask)
    before = [n.target for n in nodes]
    lower_masked_stores(list(nodes), detect_fake_mode([n.meta.get("example_value") for n in nodes]))
    after = [n.target for n in nodes[0].graph.nodes if n.op.startswith("call_")]
    assert before == after


def captured_anyway(store: Store, x: Tensor, mask: Tensor) -> list[fx.Node]:
    """The graph of a store that may well fail when it is run."""
    graphs: list[fx.GraphModule] = []

    def keep(gm: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        graphs.append(gm)
        return lambda *args: [None] * 8

    compiled = torch.compile(store, backend=keep, fullgraph=True)
    compiled(x.clone(), mask.clone())
    gm = graphs[0]
    gm.graph.owning_module = gm
    return [n for n in gm.graph.nodes if n.op.startswith("call_")]


def test_a_source_that_needs_a_gradient_is_left() -> None:
    """Its gradient is a sum over the true elements, and selecting would sum in another order."""

    def store(x: Tensor, mask: Tensor) -> Tensor:
        h = x * 2
        h[mask] = h.sum()
        return h

    nodes = captured(store, X.clone().requires_grad_(), MASK)
    lower_masked_stores(list(nodes), detect_fake_mode([nodes[0].meta["example_value"]]))
    assert "masked_fill_" not in [op_name(n) for n in nodes[0].graph.nodes]
