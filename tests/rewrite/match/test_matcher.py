"""One rule, every spelling: how often it acts, what goes and comes, and the numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

import fusepass
from fusepass.report.decision import Outcome

from ..linear_programs import RELU, RELU_NEAR_MISSES, Spelling, Weights
from ..linear_rule import RULE, compare


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[fx.GraphModule]]:
    """Graphs as they are handed on."""
    from fusepass import backend

    seen: list[fx.GraphModule] = []
    original = backend.hand_off

    def hand_off(gm: fx.GraphModule, *args: Any) -> Any:
        seen.append(gm)
        return original(gm, *args)

    monkeypatch.setattr(backend, "hand_off", hand_off)
    with fusepass.rules(RULE):
        yield seen


def calls(graphs: list[fx.GraphModule]) -> list[str]:
    nodes = [n for gm in graphs for n in gm.graph.nodes if n.op.startswith("call_")]
    return [str(getattr(n.target, "__name__", n.target)) for n in nodes]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(("spelling", "count"), RELU, ids=lambda v: getattr(v, "name", None))
def test_spelling(spelling: Spelling, count: int, grad: bool, graphs: list[fx.GraphModule]) -> None:
    report = compare(spelling, grad=grad)
    applied = [d for d in report.decisions if d.rule == RULE.name and d.outcome is Outcome.APPLIED]
    found = calls(graphs)
    ours = [name for name in found if name == "linear_relu.default" or name == "linear_relu"]
    assert len(applied) == count * len(graphs), report
    assert len(ours) == count * len(graphs), found
    assert not {"relu", "relu_", "linear", "addmm", "mm", "matmul"} & set(found)
    assert all(d.file.endswith("linear_programs.py") and d.line for d in applied)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(
    ("spelling", "code"), RELU_NEAR_MISSES, ids=lambda v: getattr(v, "name", v)
)
def test_near_miss(spelling: Spelling, code: str, grad: bool, graphs: list[fx.GraphModule]) -> None:
    report = compare(spelling, grad=grad)
    ours = [d for d in report.decisions if d.rule == RULE.name]
    assert [d.outcome for d in ours] == [Outcome.REJECTED]
    assert ours[0].reason_code.value == code, ours[0].reason
    assert "linear_relu" not in " ".join(calls(graphs))


def test_spellings_and_near_misses_are_many() -> None:
    assert len({s.name for s, _ in RELU}) >= 16
    assert len({s.name for s, _ in RELU_NEAR_MISSES}) >= 14


def test_inference_mode() -> None:
    model = Weights(lambda m, x: F.relu(m.linear(x)))
    compiled = torch.compile(model, backend="fusepass", options={"codegen": "eager"})
    with torch.inference_mode():
        x = torch.randn(4, 6)
        torch.testing.assert_close(compiled(x), model(x))
    decisions = fusepass.last_report(compiled).decisions
    assert [d.outcome for d in decisions if d.rule == RULE.name] == [Outcome.APPLIED]


def test_an_operand_written_before_is_an_operand() -> None:
    def program(m: Weights, x: Tensor) -> Tensor:
        x.mul_(2)
        return F.relu(m.linear(x))

    model = Weights(program)
    compiled = torch.compile(model, backend="fusepass", options={"codegen": "eager"})
    x, y = torch.ones(4, 6), torch.ones(4, 6)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(y))
    assert torch.equal(x, y)
    decisions = fusepass.last_report(compiled).decisions
    assert [d.outcome for d in decisions if d.rule == RULE.name] == [Outcome.APPLIED]


def test_graph_breaks_and_branches_beside_rules() -> None:
    def program(m: Weights, x: Tensor) -> Tensor:
        y = F.relu(m.linear(x))
        if y.sum() > 0:
            y = F.relu(F.linear(y[:, :6], m.w, m.b))
        return y

    report = compare(Spelling("branch", program), grad=False)
    outcomes = [d.outcome for d in report.decisions if d.rule == RULE.name]
    assert outcomes == [Outcome.APPLIED] * 2


def test_a_match_does_not_reach_across_the_arms_of_a_branch() -> None:
    def program(m: Weights, x: Tensor) -> Tensor:
        y = m.linear(x)
        if x.sum() > 0:
            y = F.relu(y)
        return y

    report = compare(Spelling("arm", program), grad=False)
    ours = [d.reason_code.value for d in report.decisions if d.rule == RULE.name]
    assert ours == ["extra_user"]


def acts(
    pattern: Callable[..., Any],
    replacement: Callable[..., Any],
    example: tuple[Any, ...],
    program: Callable[..., Any],
    *inputs: Tensor,
    codegen: str = "eager",
) -> bool:
    """Whether a rule acts on a program, after autograd unless codegen is eager."""
    place: Any = "before" if codegen == "eager" else "after"
    rule = fusepass.Rule("test_match", pattern, replacement, example, place=place)
    with fusepass.rules(rule):
        compiled = torch.compile(program, backend="fusepass", options={"codegen": codegen})
        with torch.no_grad():
            torch.testing.assert_close(compiled(*inputs), program(*inputs))
    decisions = fusepass.last_report(compiled).decisions
    return any(d.rule == rule.name and d.outcome is Outcome.APPLIED for d in decisions)


X, Y = torch.randn(4, 8), torch.randn(4, 8)


@pytest.mark.parametrize("codegen", ["eager", "eager-decomposed"])
@pytest.mark.parametrize("bound", [False, True], ids=["constant", "scalar"])
def test_a_scaled_sum_has_two_sides(bound: bool, codegen: str) -> None:
    def pattern(x: Tensor, y: Tensor, k: float = 2.0) -> Tensor:
        return torch.add(x.sin(), y.cos(), alpha=k)

    def replacement(x: Tensor, y: Tensor, k: float = 2.0) -> Tensor:
        return x.sin() + k * y.cos()

    if bound:
        rule: tuple[Any, ...] = pattern, replacement, (X, Y, 2.0)
    else:
        rule = lambda x, y: pattern(x, y), lambda x, y: replacement(x, y), (X, Y)

    def same(x: Tensor, y: Tensor) -> Tensor:
        return torch.add(x.sin(), y.cos(), alpha=2.0)

    def turned(x: Tensor, y: Tensor) -> Tensor:
        return torch.add(y.cos(), x.sin(), alpha=2.0)

    assert acts(*rule, same, X, Y, codegen=codegen)
    assert not acts(*rule, turned, X, Y, codegen=codegen)
    if bound and codegen == "eager":  # without a factor it is a plain sum
        assert acts(*rule, lambda x, y: y.cos() + x.sin(), X, Y)


@pytest.mark.parametrize(
    "pattern",
    [
        lambda x: 1 / x.exp(),
        lambda x: 2 - x.exp(),
        lambda x: 2 ** x.sin(),
        lambda x: 7 % x.exp(),
        lambda x: 7 // x.exp(),
        lambda x: torch.rsub(x.exp(), 2),
    ],
)
@pytest.mark.parametrize("codegen", ["eager", "eager-decomposed"])
def test_a_number_in_front(pattern: Callable[[Tensor], Tensor], codegen: str) -> None:
    assert acts(pattern, lambda x: pattern(x) + 0, (X,), pattern, X, codegen=codegen)
