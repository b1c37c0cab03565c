"""Candidates that are coarser than eager where TF32 is allowed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fusepass.tune import decide
from fusepass.tune import timing as room
from fusepass.tune.problems.base import INDUCTOR, Candidate, Problem
from fusepass.tune.timing import sufficiently_exact
from tests.kernels.gemm.test_op import as_tf32
from tests.tune.problems.test_gemm import ONE as REGION
from tests.tune.problems.test_sibling_gemms import ONE as SIBLINGS

LINEAR = Problem(
    op="linear_activation",
    activation="relu",
    bias=False,
    dtype=torch.float32,
    m=16,
    n=24,
    k=32,
    x_strides=(32, 1),
    weight_strides=(1, 32),
    device=torch.device("cpu"),
)


def exact(x: Tensor, weight: Tensor, bias: None) -> list[Tensor]:
    return [(x @ weight).relu()]


def other_order(x: Tensor, weight: Tensor, bias: None) -> list[Tensor]:
    return [(x[:, 16:] @ weight[16:] + x[:, :16] @ weight[:16]).relu()]


def in_tf32(x: Tensor, weight: Tensor, bias: None) -> list[Tensor]:
    return [(as_tf32(x) @ as_tf32(weight.t().contiguous()).t()).relu()]


def failing(x: Tensor, weight: Tensor, bias: None) -> list[Tensor]:
    raise RuntimeError("no kernel")


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    drawn = LINEAR.inputs(torch.Generator().manual_seed(0))
    monkeypatch.setattr(room, "make_inputs", lambda problem: drawn)


def kept(
    eager: Callable[..., Any], *others: Callable[..., Any], mode: str = "default"
) -> list[str]:
    candidates = [Candidate(INDUCTOR, eager)] + [Candidate(o.__name__, o) for o in others]
    names = [one.name for one in sufficiently_exact(LINEAR, candidates, mode)]
    assert names[0] == INDUCTOR
    return names[1:]


def test_where_eager_is_exact_tf32_is_left_out(tf32: None) -> None:
    """What fails is not: that is for those who time it to say."""
    assert kept(exact, other_order, in_tf32, failing) == ["other_order", "failing"]
    assert kept(exact, in_tf32) == []
    assert kept(exact, other_order, in_tf32, mode="max-autotune") == ["other_order"]


def test_where_eager_is_tf32_itself(tf32: None) -> None:
    assert kept(in_tf32, in_tf32) == ["in_tf32"]


def test_where_it_is_not_allowed_nothing_is_tried() -> None:
    assert not LINEAR.may_be_tf32
    assert kept(failing, in_tf32) == ["in_tf32"]


def test_float32_problems_may_use_tf32(tf32: None) -> None:
    for problem in (LINEAR, REGION, SIBLINGS):
        assert replace(problem, dtype=torch.float32).may_be_tf32
        assert not replace(problem, dtype=torch.float16).may_be_tf32
    assert not replace(LINEAR, op="conv_relu").may_be_tf32


def test_one_column_of_one_result_is_enough(tf32: None) -> None:
    """Not only the first result is looked at; what is no number in both does not count."""

    def several(coarse: bool) -> Callable[..., list[Tensor]]:
        def run(x: Tensor, weight: Tensor, bias: None) -> list[Tensor]:
            (first,) = exact(x, weight, bias)
            (second,) = in_tf32(x, weight, bias) if coarse else (first.clone(),)
            second[0, 0] = float("nan")
            return [first, second]

        run.__name__ = "coarse" if coarse else "fine"
        return run

    assert kept(several(False), several(False), several(True)) == ["fine"]


def test_what_is_left_is_timed_and_the_reason_said(
    tf32: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def measure(problem: Any, able: Any, seconds: float, mode: str) -> Any:
        asked.append([one.name for one in able])
        rounds = {one.name: [1.0, 1.0, 1.0] for one in able}
        return decide.timing.Samples(rounds)

    monkeypatch.setattr(decide, "measure", measure)
    written: list[Any] = []

    class Table:
        def add(self, key: str, entry: Any) -> None:
            written.append(entry)

    candidates = [Candidate(INDUCTOR, exact), Candidate("ours", in_tf32)]
    choice = decide._time_candidates(LINEAR, "default", candidates, "key", Table())  # type: ignore[arg-type]
    assert asked == [[INDUCTOR]]
    assert choice.candidate == INDUCTOR
    assert "single precision" in choice.why
    assert [one.candidate for one in written] == [INDUCTOR]
