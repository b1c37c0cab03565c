"""What does not require grad in eager does not because of an arm that was only traced."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx, nn

from fusepass.capture.grad_tracking import UntrackedTensors, requires_grad

from .support.side_by_side import side_by_side, signed

TURNS = signed(1.0, -0.5, 2.0, 0.25)


def graph_of(*values: object) -> tuple[fx.Graph, list[fx.Node]]:
    graph = fx.Graph()
    nodes = []
    for index, value in enumerate(values):
        node = graph.placeholder(f"p{index}")
        node.meta["example_value"] = value
        nodes.append(node)
    return graph, nodes


def test_only_what_could_require_grad_and_does_not() -> None:
    plain, leaf = torch.ones(2), torch.ones(2, requires_grad=True)
    graph, nodes = graph_of(plain, leaf, torch.ones(2, dtype=torch.long), 3, torch.ones(1) * 1j)
    now = UntrackedTensors().now(graph)
    assert now is not None
    assert now.nodes == (nodes[0], nodes[4])
    assert [requires_grad(node) for node in nodes] == [False, True, False, False, False]


def test_new_and_known_tensors_are_checked_again() -> None:
    first, second = torch.ones(2), torch.ones(2)
    graph, nodes = graph_of(first, second)
    ungraded = UntrackedTensors()
    before = ungraded.now(graph)
    assert before is not None
    assert set(before.nodes) == set(nodes)
    assert not before.gained(graph)
    first.requires_grad_()
    assert before.gained(graph)
    late = graph.placeholder("late")
    late.meta["example_value"] = torch.ones(2)
    after = ungraded.now(graph)
    assert after is not None
    assert set(after.nodes) == {nodes[1], late}


def test_nothing_without_grad_mode() -> None:
    graph, _ = graph_of(torch.ones(2))
    with torch.no_grad():
        assert UntrackedTensors().now(graph) is None


def fills(x: Tensor) -> tuple[Tensor, Tensor]:
    h = torch.zeros(4)
    if x.sum() > 0:
        h.copy_(x)
    return h, x * 2


def fills_or_reads(x: Tensor) -> Tensor:
    # Traced after the other arm: h does not require grad here.
    h = torch.zeros(4)
    if x.sum() > 0:
        h.copy_(x)
    else:
        h = h.detach() + 1 if h.requires_grad else h + x
    return h


def detached_state(x: Tensor) -> tuple[Tensor, Tensor]:
    h, k = torch.zeros(4), torch.zeros(4)
    if x.sum() > 0:
        h.add_(x.detach())
    else:
        k.add_(1)
    return h * 2, k


@pytest.mark.parametrize("program", [fills_or_reads, detached_state])
def test_same_as_eager(program: object) -> None:
    side_by_side(program, *TURNS, grad=True)  # type: ignore[arg-type]
    side_by_side(program, *TURNS)  # type: ignore[arg-type]


def test_random_numbers_beside_what_requires_no_grad() -> None:
    """A cond: what comes out of it must not require grad where nothing in it does."""

    def program(x: Tensor) -> Tensor:
        z = torch.zeros_like(x)
        if x.sum() > 0:
            z.add_(torch.rand(4))
        else:
            z.zero_()
        return z

    side_by_side(program, *TURNS, grad=True).only("cond", "random_op")


def test_requires_grad_that_depends_on_the_outcome_is_kept() -> None:
    outcome = side_by_side(fills, *TURNS, grad=True)
    assert {treatment for treatment, _ in outcome.treatments} == {"keep"}, outcome.decisions
    side_by_side(fills, *TURNS).only("where", "pure_total")


class FillsBuffer(nn.Module):
    """The buffer becomes an input of the graph where the arm first uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("loc", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.loc.copy_(-x)
        return x * 2


class FillsBufferWithoutAutograd(FillsBuffer):
    """The same with nothing that autograd follows."""

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.loc.copy_(-x.detach())
        return x * 2 + self.loc


def test_a_buffer_first_met_in_the_arm_does_not_come_to_require_grad() -> None:
    outcome = side_by_side(FillsBuffer(), *TURNS, grad=True)
    assert {treatment for treatment, _ in outcome.treatments} == {"keep"}, outcome.decisions
    side_by_side(FillsBufferWithoutAutograd(), *TURNS, grad=True).only("where", "pure_total")
