"""The selected contents are written once, followed by autograd as the writes of the arms were."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx, nn

import fusepass
from fusepass.graph.ops.op_names import op_name

from ..support.side_by_side import Outcome, side_by_side, signed

TURNS = signed(1.0, -0.5, 2.0, 0.25)


def calls(outcome: Outcome) -> list[str]:
    (gm,) = outcome.graphs
    names = [op_name(node) or "" for node in gm.graph.nodes if node.op.startswith("call_")]
    return [n for n in names if n in ("where", "copy_", "_set_grad_enabled")]


def test_selection_first_then_one_write() -> None:
    def program(x: Tensor) -> Tensor:
        if x.sum() > 0:
            x.add_(1)
            x.mul_(3)
        return x * 2

    outcome = side_by_side(program, *TURNS)
    outcome.only("where", "pure_total")
    assert calls(outcome) == ["where", "copy_"]


def test_the_memory_itself_is_written_not_a_view_of_it() -> None:
    def program(x: Tensor) -> Tensor:
        part = x[1:]
        if x.sum() > 0:
            part[1:].zero_()
        return x + 1

    outcome = side_by_side(program, *TURNS)
    (gm,) = outcome.graphs
    (written,) = [node for node in gm.graph.nodes if op_name(node) == "copy_"]
    root = written.args[0]
    assert isinstance(root, fx.Node)
    assert root.op == "placeholder"


class Decayed(nn.Module):
    """Like a moving average of weights, or a weight that is clipped where it stands."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            with torch.no_grad():
                self.weight.mul_(0.5)
                self.seen.add_(x)
        return x * self.weight


def test_without_autograd_where_the_arm_wrote_without() -> None:
    outcome = side_by_side(Decayed(), *TURNS, grad=True)
    outcome.only("where", "pure_total")
    (gm,) = outcome.graphs
    enabled, followed = True, []
    for node in gm.graph.nodes:
        if op_name(node) == "_set_grad_enabled":
            enabled = bool(node.args[0])
        if op_name(node) == "copy_":
            followed.append(enabled)
    assert followed[0] is False, "the parameter would become part of the graph"
    assert enabled is True, "what follows would have no gradients"


def test_with_autograd_where_the_arm_wrote_with() -> None:
    def program(x: Tensor) -> Tensor:
        h = x * 2
        if x.sum() > 0:
            h.mul_(x)
        return h * x

    outcome = side_by_side(program, *TURNS, grad=True)
    outcome.only("where", "pure_total")
    assert "_set_grad_enabled" not in calls(outcome)


def test_grad_mode_off_around_the_branch_stays_off() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            h = x * 2
            if x.sum() > 0:
                h.add_(1)
            k = h * x
        return k, x * 3

    side_by_side(program, *TURNS, grad=True).only("where", "pure_total")


def test_several_memories_each_get_their_own_contents() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, b, c = x * 1, x * 2, x * 3
        if x.sum() > 0:
            b.add_(10)
            a.add_(100)
        else:
            c.add_(1000)
            a.sub_(1)
        return a, b, c

    outcome = side_by_side(program, *TURNS)
    outcome.only("where", "pure_total")
    assert calls(outcome).count("copy_") == 3


@pytest.mark.parametrize("treatment", ["where", "cond", "keep"])
@pytest.mark.parametrize("grad", [False, True])
def test_every_treatment_writes_the_same(treatment: str, grad: bool) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        h = x * 2
        part = h[:2]
        if x.sum() > 0:
            h.mul_(3)
        else:
            part.add_(1)
        return h + 0, part + 0

    outcome = side_by_side(program, *TURNS, grad=grad, treatment=treatment)
    # A cond saves its operands for its backward, so in training it may not write them.
    also = {"keep"} if grad and treatment == "cond" else set()
    assert {used for used, _ in outcome.treatments} <= {treatment} | also


def test_a_memory_nobody_writes_is_not_written() -> None:
    def program(x: Tensor) -> Tensor:
        y = x.clone().add_(1) if x.sum() > 0 else x * 2
        return y + 1

    assert calls(side_by_side(program, *TURNS)) == ["where"]


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        row = self.weight.view(2, 2)
        if x.sum() > 0:
            self.weight.mul_(2)
        else:
            row[0].add_(x.sum())
        return x * self.weight


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_a_parameter_where_autograd_is_off_altogether(off: type) -> None:
    eager, module = Scaled(), Scaled()
    compiled = torch.compile(module, backend="fusepass", options={"codegen": "eager"})
    with off():
        for x in (torch.ones(4), -torch.ones(4), torch.ones(4)):
            assert torch.equal(eager(x), compiled(x))
            assert torch.equal(eager.weight, module.weight)
    assert module.weight.requires_grad
    assert module.weight.is_leaf
    kinds = {d["treatment"] for d in fusepass.last_report(compiled).to_dict()["decisions"]}
    assert "keep" not in kinds
