"""Masked updates computed for all elements: which are, with which results, and what stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from fusepass.capture.masks.lowering import lower_selections
from fusepass.graph.dataflow.effects import is_state_change
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.torch_private.fx.graphs import has_unbacked_size
from tests.graph.arms import captured

Program = Callable[[Tensor, Tensor, Tensor], Tensor]


def traced(program: Program) -> tuple[list[fx.Node], Any]:
    """Nodes of a program without the checks of sizes that Dynamo adds in the end."""
    x = torch.linspace(-1, 1, 24).reshape(4, 6)
    return without_checks(captured(program, x, x > 0, x * 2))


def without_checks(nodes: list[fx.Node]) -> tuple[list[fx.Node], Any]:
    sizes = [n for n in nodes if tensor_value(n) is None and op_name(n) != "setitem"]
    sizes = [n for n in sizes if not is_state_change(n)]
    for node in reversed(sizes):
        node.graph.erase_node(node)
    kept = [node for node in nodes if node not in sizes]
    fakes = [value for value in map(tensor_value, kept) if value is not None]
    return kept, fakes[0].fake_mode  # type: ignore[attr-defined]


def sized_by_data(nodes: list[fx.Node]) -> list[fx.Node]:
    values = [(node, tensor_value(node)) for node in nodes]
    return [n for n, v in values if v is not None and has_unbacked_size(v)]


def add(x: Tensor, m: Tensor, y: Tensor) -> Tensor:
    h = x * 3
    h[m] += 0.3
    return h


def divide(x: Tensor, m: Tensor, y: Tensor) -> Tensor:
    h = x * 3
    h[m] = (1 / h[m] - y[m] * 2) / y[m]
    return h


def in_place(x: Tensor, m: Tensor, y: Tensor) -> Tensor:
    h = x * 3
    part = h[m]
    alias = part.to(part.dtype)
    alias.mul_(2).add_(1)
    torch.neg_(part)
    h[m] = part
    return h


def old_value(x: Tensor, m: Tensor, y: Tensor) -> Tensor:
    h = x * 3
    part = h[m]
    h[m] = y[m]
    y[m] = part
    return h + y


def mask_again(x: Tensor, m: Tensor, y: Tensor) -> Tensor:
    h = x * 3
    h[h > 0] = h[h > 0] * y[h > 0]
    return h


def rows(x: Tensor, m: Tensor, y: Tensor) -> Tensor:
    h, of_rows = x * 3, m.all(1)
    h[of_rows] *= y[0]
    return h


def columns(x: Tensor, m: Tensor, y: Tensor) -> Tensor:
    h, of_columns = x * 3, m.all(0)
    h[..., of_columns] -= y[:, of_columns]
    return h


def chosen(x: Tensor, m: Tensor, y: Tensor) -> Tensor:
    h = x * 3
    h[m] = torch.where(h[m] > y[m], h[m].clamp(min=0), 2.5)
    return h


def reduced(x: Tensor, m: Tensor, y: Tensor) -> Tensor:
    h = x * 3
    h[m] -= h[m].sum()
    return h


def used_elsewhere(x: Tensor, m: Tensor, y: Tensor) -> Tensor:
    h = x * 3
    part = h[m]
    h[m] = part * 2
    return h + part.sum()


def of_no_store(x: Tensor, m: Tensor, y: Tensor) -> Tensor:
    h = x * 3
    h[m].add_(1)
    return h


def without_grad(x: Tensor, m: Tensor, y: Tensor) -> Tensor:
    h = x * 3
    with torch.no_grad():
        h[m] += 1
    return h


UPDATES = [
    add,
    divide,
    in_place,
    old_value,
    mask_again,
    rows,
    columns,
    chosen,
    reduced,
    used_elsewhere,
    of_no_store,
    without_grad,
]


@pytest.mark.parametrize("program", UPDATES, ids=lambda program: program.__name__)
def test_results_are_those_of_eager(program: Program) -> None:
    nodes, mode = traced(program)
    graph = nodes[0].graph
    erased = lower_selections(nodes, mode, exact=True).erased
    assert erased
    assert not sized_by_data(list(graph.nodes))
    assert [n for n in graph.nodes if n.op.startswith("call_")] == nodes
    assert not any("unbacked_bindings" in node.meta for node in nodes)
    graph.lint()
    generator = torch.Generator().manual_seed(0)
    run = fx.GraphModule(torch.nn.Module(), graph)
    names = [
        n.name.removeprefix("l_").removesuffix("_") for n in graph.nodes if n.op == "placeholder"
    ]
    for share in (0.0, 0.4, 1.0):
        given = {n: torch.randn(4, 6, generator=generator) for n in "xy"}
        given["m"] = torch.rand(4, 6, generator=generator) < share
        want = program(given["x"].clone(), given["m"], given["y"].clone())
        got = run(*(given[name].clone() for name in names))
        got = got[0] if isinstance(got, tuple) else got
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
        if program not in (reduced, used_elsewhere):  # which hold sums
            assert torch.equal(want, got)


def inexact(x: Tensor, m: Tensor, y: Tensor) -> Tensor:
    h = x * 3
    h[m] = h[m].sigmoid()
    return h


def other_mask(x: Tensor, m: Tensor, y: Tensor) -> Tensor:
    h = x * 3
    h[m] = y[x > 0]
    return h


def mask_changed(x: Tensor, m: Tensor, y: Tensor) -> Tensor:
    h, mask = x * 3, m.clone()
    part = h[mask]
    mask.logical_not_()
    h[mask] = part
    return h


def mask_changed_with_what_it_is_of(x: Tensor, m: Tensor, y: Tensor) -> Tensor:
    h = x * 3
    part = h[h > 0]
    h.neg_()
    h[h > 0] = part
    return h


def rest_of_the_dimensions(x: Tensor, m: Tensor, y: Tensor) -> Tensor:
    h, of_rows = x * 3, m.all(1)
    h[of_rows] = h[of_rows] + y[:, :1].t()[:, :1] * h[of_rows].sum(1, keepdim=True)
    return h


def rounding_mode(x: Tensor, m: Tensor, y: Tensor) -> Tensor:
    h = x * 3
    h[m] = torch.div(h[m], 3, rounding_mode="floor")
    return h


def scaled_addition(x: Tensor, m: Tensor, y: Tensor) -> Tensor:
    h = x * 3
    h[m] = torch.add(h[m], y[m], alpha=0.3)
    return h


def through_integers(x: Tensor, m: Tensor, y: Tensor) -> Tensor:
    h = x * 3
    h[m] = h[m].int().float()
    return h


OTHERS = [
    inexact,
    other_mask,
    mask_changed,
    mask_changed_with_what_it_is_of,
    rest_of_the_dimensions,
    rounding_mode,
    scaled_addition,
    through_integers,
]


@pytest.mark.parametrize("program", OTHERS, ids=lambda program: program.__name__)
def test_anything_else_keeps_a_size_from_data(program: Program) -> None:
    nodes, mode = traced(program)
    lower_selections(nodes, mode, exact=True)
    assert sized_by_data(nodes)
    assert [n for n in nodes[0].graph.nodes if n.op.startswith("call_")] == nodes


def written_inexactly(x: Tensor, m: Tensor, y: Tensor) -> Tensor:
    h = x * 3
    part = h[m]
    part.sigmoid_()
    h[m] = part
    return h


def written_in_part(x: Tensor, m: Tensor, y: Tensor) -> Tensor:
    h = x * 3
    part = h[m]
    part[:1] = 5.0
    h[m] = part
    return h


def written_through_a_view(x: Tensor, m: Tensor, y: Tensor) -> Tensor:
    h = x * 3
    part = h[m]
    part.unsqueeze(0).mul_(2)
    h[m] = part
    return h


@pytest.mark.parametrize(
    "program",
    [written_inexactly, written_in_part, written_through_a_view],
    ids=lambda program: program.__name__,
)
def test_a_selection_written_in_another_way_is_not_known_any_more(program: Program) -> None:
    nodes, mode = traced(program)
    before = list(nodes)
    assert not lower_selections(nodes, mode, exact=True).erased & set(before)
    assert nodes == before


def test_gradients_stay_inside_the_mask() -> None:
    def program(x: Tensor, m: Tensor, y: Tensor) -> Tensor:
        h = x * 3
        h[m] = h[m].sqrt() / y[m]
        return h

    x = torch.ones(4, 6, requires_grad=True)
    kept, mode = without_checks(captured(program, x, x > 0, torch.ones(4, 6)))
    lower_selections(kept, mode, exact=True)
    names = [op_name(node) for node in kept]
    assert names.count("where") == 2, "one gate for the operand that requires grad, one choice"
    assert names.count("detach") == 1


def test_a_scalar_that_requires_grad_is_left() -> None:
    def program(x: Tensor, m: Tensor, scale: Tensor) -> Tensor:
        h = x * 3
        h[m] *= scale
        return h

    x = torch.ones(4, 6)
    scale = torch.tensor(2.0, requires_grad=True)
    kept, mode = without_checks(captured(program, x, x > 0, scale))
    lower_selections(kept, mode, exact=True)
    assert sized_by_data(kept)
