"""What the tuner is told about a linear layer and its activation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fusepass
from fusepass import tune
from fusepass.patterns import linear_activation as pattern
from fusepass.rewrite.apply import search

K, N = 16, 32


@pytest.fixture(autouse=True)
def on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules are for CUDA; what they tell the tuner is the same for tensors on the CPU."""
    monkeypatch.setattr(search, "_rules_for_devices", lambda graph, rules, options: rules)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tune.Problem]:
    """Problems put to the tuner, which leaves them all to Inductor."""
    problems: list[tune.Problem] = []

    def choose(problem: tune.Problem, options: Any, candidates: Any) -> tune.Choice:
        assert [one.name for one in candidates] == ["inductor", "cublaslt"]
        problems.append(problem)
        return tune.Choice("inductor", {"inductor": 1.0, "cublaslt": 2.0}, "measured", "slower")

    monkeypatch.setattr(pattern, "choose", choose)
    return problems


def run(
    program: Callable[..., Any], *args: Any, codegen: str = "eager-decomposed", **how: Any
) -> Any:
    options = {"codegen": codegen}
    return torch.compile(program, backend="fusepass", options=options, **how)(*args)


UP, DOWN = nn.Linear(K, N), nn.Linear(N, K)
QUERY = torch.randn(1, 1, 4, N)

AFTER: dict[str, tuple[Callable[[Tensor], Any], bool]] = {
    "nothing": (lambda h: h, False),
    "a linear layer": (DOWN, False),
    "a linear layer behind views": (lambda h: DOWN(h.view(2, 3, N)), False),
    "a transposition and a product": (lambda h: h.t() @ h, False),
    "attention": (
        lambda h: F.scaled_dot_product_attention(QUERY, h.view(1, 1, 6, N), h.view(1, 1, 6, N)),
        False,
    ),
    "a residual": (lambda h: h + 1.0, True),
    "a gate": (lambda h: h * h.flip(0), True),
    "a cast": (lambda h: h.double(), True),
    "a reduction": (lambda h: h.sum(-1), True),
    "a softmax behind views": (lambda h: h.view(2, 3, N).softmax(-1), True),
    "a copy": (lambda h: h.t().contiguous(), True),
    "a product and a residual": (lambda h: (DOWN(h), h * 2), True),
}


@pytest.mark.parametrize("what", AFTER)
def test_what_reads_the_activation(what: str, asked: list[tune.Problem]) -> None:
    after, generated = AFTER[what]
    with torch.no_grad():
        run(lambda x: after(F.relu(UP(x))), torch.randn(6, K))
    (problem,) = {one for one in asked if one.activation == "relu"}
    assert problem.pointwise_after is generated


def test_sizes_layout_and_dtype(asked: list[tune.Problem]) -> None:
    wide = torch.randn(2, 3, 2 * K, dtype=torch.bfloat16)[..., :K]
    layer = nn.Linear(K, N, dtype=torch.bfloat16)
    with torch.no_grad():
        run(lambda x: F.gelu(layer(x), approximate="tanh"), wide)
    (problem,) = {one for one in asked if one.activation == "gelu_tanh" and not one.saved_output}
    assert (problem.m, problem.k, problem.n) == (6, K, N)
    assert problem.layout == "row+,col"
    assert (problem.dtype, problem.bias) == (torch.bfloat16, True)
    assert not problem.pointwise_after


def test_a_dynamic_batch_is_asked_about_by_its_hint(asked: list[tune.Problem]) -> None:
    with torch.no_grad():
        run(lambda x: torch.tanh(UP(x)), torch.randn(48, K), dynamic=True)
    (problem,) = {one for one in asked if one.activation == "tanh"}
    assert problem.m == 48
    assert "/64x16x32" in problem.key("default")


def test_the_backward_of_a_gelu_wants_the_pre_activation(
    asked: list[tune.Problem], cache_dir: Any
) -> None:
    x = torch.randn(6, K, requires_grad=True)
    run(lambda x: DOWN(F.gelu(UP(x))), x, codegen="inductor").sum().backward()
    saved = {one.saved_output for one in asked if one.activation == "gelu"}
    assert saved == {True}
    (refusal,) = {
        candidate.refuses(asked[0])
        for candidate in pattern.candidates("gelu_tanh")
        if candidate.name == pattern.CUBLASLT
    }
    assert refusal is not None


def test_refusals() -> None:
    problem = tune.Problem(
        "linear_activation", "gelu_tanh", True, torch.bfloat16, 8, 8, 8, (8, 1), (1, 8),
        torch.device("cuda"),
    )  # fmt: skip
    (cublaslt,) = (c for c in pattern.candidates("gelu_tanh") if c.name == pattern.CUBLASLT)
    if not torch.version.hip:
        assert cublaslt.refuses(problem) is None
    for change, word in [
        ({"activation": "gelu"}, "no epilogue"),
        ({"activation": "silu"}, "no epilogue"),
        ({"dtype": torch.float32}, "float32"),
        ({"dtype": torch.float64}, "float64"),
        ({"saved_output": True}, "backward"),
        ({"k": 0}, "empty"),
    ]:
        assert word in (cublaslt.refuses(dataclasses.replace(problem, **change)) or "")


@pytest.mark.parametrize(
    ("choice", "outcome", "reason"),
    [
        (
            tune.Choice("cublaslt", {"inductor": 2.0, "cublaslt": 1.5}, "measured", "w"),
            "applied",
            "measured",
        ),
        (
            tune.Choice("cublaslt", {"inductor": 2.0, "cublaslt": 1.5}, "table", "w"),
            "applied",
            "measured",
        ),
        (
            tune.Choice("cublaslt", {"inductor": 2.0, "cublaslt": 1.5}, "model", "w"),
            "applied",
            "cost",
        ),
        (tune.Choice("reference", {}, "forced", "w"), "applied", "forced"),
        (
            tune.Choice("inductor", {"inductor": 1.0, "cublaslt": 1.5}, "table", "w"),
            "slower",
            "slower",
        ),
        (tune.Choice("inductor", {}, "model", "w"), "left_to_inductor", "no_rule"),
    ],
)
def test_the_report_says_what_was_chosen_and_why(
    choice: tune.Choice, outcome: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pattern, "choose", lambda *_: choice)
    options = {"codegen": "eager-decomposed"}
    program = torch.compile(lambda x: F.relu(UP(x)), backend="fusepass", options=options)
    with torch.no_grad():
        program(torch.randn(6, K))
    (decision,) = (d for d in fusepass.last_report(program).decisions if d.rule == "linear_relu")
    assert (decision.outcome.value, decision.reason_code.value) == (outcome, reason)
    assert decision.candidates == choice.microseconds
    assert decision.reason.endswith("w")
