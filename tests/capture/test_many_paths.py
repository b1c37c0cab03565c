"""Numbers used twice in every round of a loop: as many paths as there are grains of sand.

Whatever walks over such a graph must come to each node once, or tracing never ends.
"""

from __future__ import annotations

import operator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from fusepass.capture.effects.raise_operands import only_in_messages
from fusepass.capture.scalars.item_hooks import items_tested
from fusepass.capture.scalars.scalar_predicate import comes_from_items, is_of_unknown_numbers
from fusepass.errors import CaptureFault
from fusepass.torch_private.dynamo import stack

from .support.side_by_side import side_by_side

ROUNDS = 60


def ladder() -> list[fx.Node]:
    graph = fx.Graph()
    number = graph.call_method("item", (graph.placeholder("x"),))
    nodes = [number]
    for _ in range(ROUNDS):
        half = graph.call_function(operator.mul, (nodes[-1], 0.5))
        nodes += [half, graph.call_function(operator.add, (nodes[-1], half))]
    return nodes


@pytest.fixture
def visits(monkeypatch: pytest.MonkeyPatch) -> list[fx.Node]:
    """Nodes whose neighbours were asked for; too many is an error."""
    found: list[fx.Node] = []
    plain = fx.Node.all_input_nodes.fget
    assert plain is not None

    def counted(node: fx.Node) -> Any:
        found.append(node)
        if len(found) > 1000 * ROUNDS:
            raise RecursionError
        return plain(node)

    monkeypatch.setattr(fx.Node, "all_input_nodes", property(counted))
    return found


def test_where_a_number_comes_from(visits: list[fx.Node]) -> None:
    *_, last = ladder()
    assert comes_from_items(last)
    assert is_of_unknown_numbers(last)
    assert visits


def test_which_numbers_a_condition_is_made_of(
    visits: list[fx.Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    number, *_, last = ladder()
    monkeypatch.setattr(stack, "number_on_top", lambda translator: last)
    frame: Any = SimpleNamespace(items={number: None})
    assert items_tested(None, frame) == (number,)
    assert visits


def test_what_uses_a_number(visits: list[fx.Node]) -> None:
    number, *_, last = ladder()
    assert only_in_messages(number)
    last.graph.call_function(torch.add, (number, 1))  # of numbers: used, but for nothing
    assert only_in_messages(number)
    last.graph.call_function(torch.add, (last, last.graph.placeholder("y")))
    assert not only_in_messages(number)
    assert visits


def averaged(x: Tensor, t: Tensor) -> Tensor:
    a = t.item()
    for _ in range(ROUNDS):
        a = a * 0.25 + a * 0.75
    return x * 2 if a > 3 else x / a


def summed(x: Tensor, t: Tensor) -> Tensor:
    total = 0.0
    for i in range(300):
        total += (t * i).sum().item()
    return x * (total / 300)


def test_a_long_sum_is_no_deep_recursion(recwarn: pytest.WarningsRecorder) -> None:
    calls = [(torch.tensor([1.0, -2.0]), torch.tensor(n)) for n in (4.0, 0.5)]
    side_by_side(summed, *calls, grad=True).only("device", "on_device")
    assert not [one for one in recwarn if issubclass(one.category, CaptureFault)]


def test_a_program_compiles() -> None:
    x = torch.tensor([1.0, -2.0])
    outcome = side_by_side(averaged, *[(x, torch.tensor(n)) for n in (4.0, 0.5, 3.0)], grad=True)
    assert outcome.treatments
