"""Which of several matches that want the same operations are applied."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import fusepass

CHAIN = ["sin", "cos", "tanh", "exp", "neg", "abs"]


def chain(names: list[str]) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        for name in names:
            x = getattr(torch, name)(x)
        return x

    return run


@torch.library.custom_op("fusepass_test::chain", mutates_args=())
def fused_chain(x: Tensor, names: str) -> Tensor:
    return chain(names.split())(x)


@fused_chain.register_fake
def _(x: Tensor, names: str) -> Tensor:
    return torch.empty_like(x)


def rule(*names: str, priority: int = 0) -> fusepass.Rule:
    body = chain(list(names))
    return fusepass.Rule(
        "test_" + "_".join(names),
        lambda x: body(x),
        lambda x: fused_chain(x, " ".join(names)),
        (torch.randn(3, 4),),
        priority=priority,
    )


def applied(program: Callable[..., Any], *rules: fusepass.Rule) -> tuple[list[str], list[str]]:
    """Names of rules applied, and of those turned down for an overlap."""
    with fusepass.rules(*rules):
        compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
        x = torch.randn(3, 4)
        assert torch.equal(compiled(x), program(x))
        decisions = fusepass.last_report(compiled).decisions
    ours = [d for d in decisions if d.rule.startswith("test_")]
    won = [d.rule.removeprefix("test_") for d in ours if d.outcome.value == "applied"]
    lost = [d.rule.removeprefix("test_") for d in ours if d.reason_code.value == "overlap"]
    return sorted(won), sorted(lost)


def test_the_larger_saving_wins() -> None:
    won, lost = applied(chain(CHAIN[:3]), rule("sin", "cos"), rule("sin", "cos", "tanh"))
    assert (won, lost) == (["sin_cos_tanh"], ["sin_cos"])


def test_two_that_fit_win_over_one_between_them() -> None:
    """Taking the largest first would take the one in the middle, and lose both its neighbours."""
    rules = (rule("sin", "cos"), rule("cos", "tanh", "exp"), rule("tanh", "exp", "neg"))
    won, lost = applied(chain(CHAIN[:5]), *rules)
    assert won == ["sin_cos", "tanh_exp_neg"]
    assert lost == ["cos_tanh_exp"]


def test_a_higher_priority_goes_first() -> None:
    rules = (rule("sin", "cos"), rule("cos", "tanh", "exp", priority=1), rule("tanh", "exp", "neg"))
    won, lost = applied(chain(CHAIN[:5]), *rules)
    assert won == ["cos_tanh_exp"]
    assert lost == ["sin_cos", "tanh_exp_neg"]


def test_the_loser_says_who_won() -> None:
    program = chain(CHAIN[:3])
    with fusepass.rules(rule("sin", "cos"), rule("sin", "cos", "tanh")):
        compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
        compiled(torch.randn(3, 4))
    texts = [d.reason for d in fusepass.last_report(compiled).decisions if d.rule == "test_sin_cos"]
    assert texts == ["rule 'test_sin_cos_tanh' took the same operations"]


def test_many_that_hang_together() -> None:
    """Beyond what is solved exactly the choice is greedy: still legal, still quick."""
    program = chain(CHAIN * 12)
    rules = [rule(*(CHAIN * 2)[i : i + 3]) for i in range(6)]
    start = time.perf_counter()
    won, _ = applied(program, *rules)
    assert len(won) >= 18  # of at most 24
    assert time.perf_counter() - start < 20
