"""Whether two nodes hold the same value for every input."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from fusepass.graph.dataflow.recursion import Steps
from fusepass.graph.dataflow.value_numbering import ValueNumbering, same_value
from fusepass.graph.dataflow.write_history import WriteHistory

from ..arms import captured


def pair(program: Callable[[Tensor], Any], x: Tensor | None = None) -> tuple[Any, Any]:
    """What a program returns, as two arguments of its graph's output."""
    nodes = captured(program, torch.arange(6.0).reshape(2, 3) if x is None else x)
    (output,) = (n for n in nodes[0].graph.nodes if n.op == "output")
    first, second = output.args[0]
    assert isinstance(first, fx.Node)
    return first, second


def written_before_both(x: Tensor) -> tuple[Tensor, Tensor]:
    h = x * 2
    h.add_(1)
    return h > 0, h > 0


def something_else_written_in_between(x: Tensor) -> tuple[Tensor, Tensor]:
    h, k = x * 2, x * 3
    first = h > 0
    k.add_(1)
    return first, h > k.new_zeros(()) if False else h > 0


def equal(a: Any, b: Any, handed_on: Callable[[fx.Node], Steps] | None = None) -> bool:
    """Whether two arguments are equal at the end of their graph, asked both ways round."""
    node = a if isinstance(a, fx.Node) else pair(lambda x: (x + 1, x + 2))[0]
    (output,) = (n for n in node.graph.nodes if n.op == "output")
    history = WriteHistory(node.graph, output)
    end = history.moments[output]
    moments = (end, end)
    if handed_on is None:
        one, other = (same_value(x, y, history, moments) for x, y in ((a, b), (b, a)))
    else:
        values = ValueNumbering(history, handed_on)
        one, other = (values.are_same(x, y, moments) for x, y in ((a, b), (b, a)))
    assert one is other
    return one


SAME: dict[str, Callable[[Tensor], Any]] = {
    "comparison": lambda x: (x > 0, x > 0),
    "method": lambda x: (x.isnan(), x.isnan()),
    "of computed": lambda x: ((x * 2 + 1).sin(), (x * 2 + 1).sin()),
    "slice": lambda x: (x[:, 1:] > 0, x[:, 1:] > 0),
    "list": lambda x: (torch.cat([x, x * 2]), torch.cat([x, x * 2])),
    "keyword": lambda x: (x.sum(dim=1), x.sum(dim=1)),
    "nan constant": lambda x: (x + float("nan"), x + float("nan")),
    "written before both": written_before_both,
    "something else written": something_else_written_in_between,
}


@pytest.mark.parametrize("name", SAME)
def test_same(name: str) -> None:
    a, b = pair(SAME[name])
    assert equal(a, b)


def written_in_between(x: Tensor) -> tuple[Tensor, Tensor]:
    h = x * 2
    first = h > 0
    h.neg_()
    return first, h > 0


def written_through_a_view(x: Tensor) -> tuple[Tensor, Tensor]:
    h = x * 2
    row = h[0]
    first = h > 0
    row.fill_(-1)
    return first, h > 0


def input_written(x: Tensor) -> tuple[Tensor, Tensor]:
    first = x > 0
    x.neg_()
    return first, x > 0


def the_result_itself_written(x: Tensor) -> tuple[Tensor, Tensor]:
    first = x > 0
    first.logical_not_()
    return first, x > 0


def random_numbers(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.rand_like(x), torch.rand_like(x)


def detached(x: Tensor) -> tuple[Tensor, Tensor]:
    w = x.clone().requires_grad_()
    return w * 2, w.detach() * 2


DIFFERENT: dict[str, Callable[[Tensor], Any]] = {
    "operation": lambda x: (x > 0, x >= 0),
    "constant": lambda x: (x > 0, x > 1),
    "zeros of two signs": lambda x: (x * 0.0, x * -0.0),
    "types of number": lambda x: (x * 1, x * 1.0),
    "number and truth value": lambda x: (x * 1, x * True),
    "operands swapped": lambda x: (x - x.sin(), x.sin() - x),
    "operand": lambda x: (x.sin(), (x + 1).sin()),
    "dimension": lambda x: (x.sum(0), x.sum(1)),
    "slice": lambda x: (x[:, 1:], x[:, :1]),
    "keyword": lambda x: (x.sum(dim=1), x.sum(dim=1, keepdim=True)),
    "list": lambda x: (torch.cat([x, x]), torch.cat([x, x, x])),
    "dtype": lambda x: (x.double() > 0, x.half() > 0),
    "random": random_numbers,
    "written in between": written_in_between,
    "written through a view": written_through_a_view,
    "input written": input_written,
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different(name: str) -> None:
    a, b = pair(DIFFERENT[name])
    assert not equal(a, b)


def test_a_result_that_was_written_itself() -> None:
    """One of the two no longer holds what the call returned."""
    first, second = pair(the_result_itself_written)
    assert not equal(first, second)


def test_one_that_requires_grad_and_one_that_does_not() -> None:
    x = torch.ones(3, requires_grad=True)

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            plain = x * 2
        return x * 2, plain

    assert not equal(*pair(program, x))


def test_a_node_is_itself_whatever_happens() -> None:
    a, _ = pair(random_numbers)
    assert equal(a, a)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (1, 1, True),
        (1, True, False),
        (1, 1.0, False),
        (0.0, -0.0, False),
        (float("nan"), float("nan"), True),
        ((1, 2), (1, 2), True),
        ([1], [1, 2], False),
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"b": 1}, False),
        (slice(0, 2), slice(0, 2), True),
        (slice(0, 2), slice(0, 3), False),
        (torch.float16, torch.float32, False),
        (None, None, True),
    ],
)
def test_arguments_that_are_no_nodes(a: Any, b: Any, same: bool) -> None:
    assert equal(a, b) is same


def test_nodes_that_stand_for_others() -> None:
    """A copy known to hold its original's value is its original."""

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return x > 0, x.clone() > 0

    a, b = pair(program)

    def handed_on(node: fx.Node) -> Steps:
        return node.args[0] if node.target == "clone" else None
        yield

    assert not equal(a, b)
    assert equal(a, b, handed_on)


def test_a_copy_is_followed_only_to_what_it_is_compared_with() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(5):
            x = x.clone()
        return x, x.clone()

    a, b = pair(program)
    asked: list[fx.Node] = []

    def handed_on(node: fx.Node) -> Steps:
        asked.append(node)
        return node.args[0]
        yield

    assert equal(a, b, handed_on)
    assert asked == [b]


def test_values_used_twice_are_compared_once() -> None:
    def ladder(x: Tensor) -> Tensor:
        for _ in range(40):
            x = x + x * 0.5
        return x > 1

    a, b = pair(lambda x: (ladder(x), ladder(x)))
    asked: list[fx.Node] = []

    def handed_on(node: fx.Node) -> Steps:
        asked.append(node)
        assert len(asked) < 1000
        return None
        yield

    assert equal(a, b, handed_on)


@pytest.mark.parametrize("last", [1.0, 2.0])
def test_more_calls_than_the_stack_is_deep(last: float) -> None:
    def chain(x: Tensor, first: float) -> Tensor:
        x = x + first
        for _ in range(sys.getrecursionlimit() + 100):
            x = x.neg()
        return x

    a, b = pair(lambda x: (chain(x, 1.0), chain(x, last)))
    assert equal(a, b) is (last == 1.0)
