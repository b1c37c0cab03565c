"""Branches whose arms save for a backward what code behind a graph break writes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusepass import last_report
from fusepass.capture import graph_checks
from fusepass.errors import CaptureFault
from tests.capture.mutation.test_saved_by_arms import SIGNS, Program, outcome


def stop() -> None:
    torch._dynamo.graph_break()


def chosen(x: Tensor, state: Tensor) -> Tensor:
    return x + x if x.sum() > 0 else x * state


def by_index(x: Tensor, state: Tensor) -> Tensor:
    y = x + x if x.sum() > 0 else x * state
    stop()
    state[0] = 1.0
    return y


def by_a_view(x: Tensor, state: Tensor) -> Tensor:
    y = x + x if x.sum() > 0 else x * state
    stop()
    tail = state.view(-1)[1:]
    tail.add_(1)
    return y


def by_an_operator(x: Tensor, state: Tensor) -> Tensor:
    y = x + x if x.sum() > 0 else x * state
    stop()
    state += 1
    return y


def by_out(x: Tensor, state: Tensor) -> Tensor:
    y = x + x if x.sum() > 0 else x * state
    stop()
    torch.add(state, 1, out=state)
    return y


def double(tensor: Tensor) -> None:
    tensor.mul_(2)


double_in_eager = torch.compiler.disable(double)


def by_a_function(x: Tensor, state: Tensor) -> Tensor:
    y = x + x if x.sum() > 0 else x * state
    stop()
    double(state)
    return y


def by_the_call_that_breaks(x: Tensor, state: Tensor) -> Tensor:
    y = x + x if x.sum() > 0 else x * state
    double_in_eager(state)
    return y


def in_a_loop(x: Tensor, state: Tensor) -> Tensor:
    y = x + x if x.sum() > 0 else x * state
    stop()
    for tensor in [state]:
        with torch.no_grad():
            tensor.add_(1)
    return y


def on_one_path(x: Tensor, state: Tensor) -> Tensor:
    y = x + x if x.sum() > 0 else x * state
    if torch.equal(x, -x.abs()):
        state.zero_()
    return y


def made_in_the_graph(x: Tensor, state: Tensor) -> Tensor:
    held = {"h": state * 2}
    y = x + x if x.sum() > 0 else x * held["h"]
    stop()
    held["h"][0] = 5
    return y + held["h"]


def in_a_later_arm(x: Tensor, state: Tensor) -> Tensor:
    y = x + x if x.sum() > 0 else x * state
    stop()
    if x.max() > 10:
        state.zero_()
    return y


def in_an_inlined_function(x: Tensor, state: Tensor) -> Tensor:
    y = chosen(x, state)
    stop()
    state.zero_()
    return y


def behind_two_breaks(x: Tensor, state: Tensor) -> Tensor:
    y = x + x if x.sum() > 0 else x * state
    stop()
    y = y + 1
    stop()
    state.zero_()
    return y


def not_saved(x: Tensor, state: Tensor) -> Tensor:
    y = x + x if x.sum() > 0 else x + state
    stop()
    state.zero_()
    return y


def of_a_copy(x: Tensor, state: Tensor) -> Tensor:
    y = x + x if x.sum() > 0 else x * state
    stop()
    state = state.clone()
    state[0] = 1
    more = y * 2
    more += state
    return more


def of_a_list(x: Tensor, state: Tensor) -> Tensor:
    y = x + x if x.sum() > 0 else x * state
    stop()
    found = [x, y]
    found[0] = state
    return found[0] + found[1]


def without_a_write(x: Tensor, state: Tensor) -> Tensor:
    y = x + x if x.sum() > 0 else x * state
    stop()
    stop()
    return torch.relu(y) + state.sum()


def behind_the_backward(x: Tensor, state: Tensor) -> Tensor:
    y = x + x if x.sum() > 0 else x * state
    y.sum().backward()
    state.zero_()
    return y.detach() + x


KEPT: list[Program] = [
    by_index,
    by_a_view,
    by_an_operator,
    by_out,
    by_a_function,
    by_the_call_that_breaks,
    in_a_loop,
    on_one_path,
    made_in_the_graph,
    in_a_later_arm,
    in_an_inlined_function,
    behind_two_breaks,
]
CAPTURED: list[Program] = [not_saved, of_a_copy, of_a_list, without_a_write, behind_the_backward]


def treatments(compiled: Any) -> list[str]:
    return [d.treatment for d in last_report(compiled).decisions if d.rule == "branch"]


def called_twice(program: Program, *, train: bool = True) -> Any:
    """A compiled program whose backward fails, by either sign, where that of eager does."""
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for sign in (*SIGNS, *SIGNS):
        assert outcome(compiled, sign, train=train) == outcome(program, sign, train=train)
    return compiled


def assert_kept(compiled: Any) -> None:
    reasons = [d.reason for d in last_report(compiled).decisions if d.rule == "branch"]
    assert any("although eager did not take that arm" in reason for reason in reasons)


@pytest.mark.parametrize("program", KEPT)
def test_backward_fails_only_where_eagers_does(program: Program) -> None:
    assert_kept(called_twice(program))


@pytest.mark.parametrize("program", CAPTURED)
def test_without_such_a_write_the_branch_is_captured(program: Program) -> None:
    assert treatments(called_twice(program)) == ["where"]


@pytest.mark.parametrize("program", [by_index, by_a_function, made_in_the_graph])
def test_without_a_backward_the_branch_is_captured(program: Program) -> None:
    assert treatments(called_twice(program, train=False)) == ["where"]


def test_generated_code_trains_where_eager_does_not_take_the_arm() -> None:
    compiled = torch.compile(by_index, backend="fusepass")
    assert outcome(compiled, 1.0) == outcome(by_index, 1.0)


class Block(nn.Module):
    """As models have it: a guard against bad values, a message, writes of what is the block's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 4)
        self.act, self.norm = nn.ReLU(inplace=True), nn.BatchNorm1d(4)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Dropout(0.0), nn.ReLU(inplace=True)])
        self.register_buffer("ema", torch.zeros(4))
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        if h.abs().amax() > 100:
            h = self.scale * h.clamp(-100, 100)
        stop()
        for layer in self.layers:
            h = h + layer(h * 1.0)
        h = self.act(self.norm(self.outer(h)))
        with torch.no_grad():
            self.update(h.mean(0))
        return h + x

    def update(self, mean: Tensor) -> None:
        self.ema.lerp_(mean, 0.1)


class Rescaling(Block):
    """Writes what the guard may save."""

    def update(self, mean: Tensor) -> None:
        self.scale.lerp_(mean, 0.1)


@pytest.mark.parametrize(("kind", "treatment"), [(Block, "where"), (Rescaling, "keep")])
def test_ordinary_training_keeps_its_captures(kind: type[Block], treatment: str) -> None:
    torch.manual_seed(0)
    ours, eager = kind(), kind()
    eager.load_state_dict(ours.state_dict())
    compiled = torch.compile(ours, backend="fusepass", options={"codegen": "eager"})
    x = torch.randn(8, 4)
    for _ in range(2):
        for model in (compiled, eager):
            model(x).square().sum().backward()
    assert treatments(compiled) == [treatment]
    for one, other in zip(ours.parameters(), eager.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        torch.testing.assert_close(one.grad, other.grad)


def test_a_step_in_one_function_keeps_its_captures() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend="fusepass", options={"codegen": "eager"})
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        if loss > 1e4:
            loss = loss * model.weight.detach().abs().amax()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    losses = [float(step(torch.ones(2, 4))) for _ in range(3)]
    assert losses[2] < losses[0]
    assert treatments(step) == ["where"]


@pytest.mark.parametrize("question", ["written_behind", "note_saved"])
def test_an_error_of_ours_keeps_the_branch(monkeypatch: pytest.MonkeyPatch, question: str) -> None:
    def fails(*_: object) -> None:
        raise KeyError(question)

    monkeypatch.setattr(graph_checks, question, fails)
    compiled = torch.compile(without_a_write, backend="fusepass", options={"codegen": "eager"})
    with pytest.warns(CaptureFault, match=question):
        assert outcome(compiled, 1.0) == outcome(without_a_write, 1.0)
    assert treatments(compiled) == ["keep"]
