"""Training programs: a call is a step, and the loss curve is held against the float64 one."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch

import fusepass
from fusepass.bench import measure, table, worker
from fusepass.bench.program import Program, Source, suite_programs
from fusepass.bench.variants import Variant
from tests.perf.suites.training import guarded_encoder
from tests.perf.training_steps import Training, distance

SHORT = Training(steps=4, curve_count=2, lr=1e-2)
EXACT = [[1.0, 0.5], [1.0, 0.25]]


def answer(session: worker.Session, command: str, **arguments: Any) -> Any:
    kind, value = worker.answer(session, command, arguments)
    assert kind == "ok", value
    return value


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    """The smallest program of the suite's kind, as a worker finds it."""
    make = partial(guarded_encoder, "cpu", 1, (2, 3), SHORT)
    one = Program("step", make, training=SHORT)
    monkeypatch.setattr(worker, "resolve", lambda source: one)
    return one


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_suite_trains_in_both_precisions(device: str) -> None:
    programs = suite_programs("training", device)
    assert len({one.name for one in programs}) == len(programs) == 4
    autocast = {one.name: one.training.autocast for one in programs if one.training is not None}
    assert autocast["step-small-fp32"] is None
    assert autocast["step-small-bf16"] is torch.bfloat16
    assert all(one.twin for one in suite_programs("training", device, compile_only=True))


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_the_loss_falls(autocast: torch.dtype | None) -> None:
    torch.manual_seed(0)
    how = Training(steps=30, curve_count=1, lr=1e-2, autocast=autocast)
    model, batches = guarded_encoder("cpu", 1, (2, 8), how)
    start = {key: value.clone() for key, value in model.state_dict().items()}
    (losses,) = how.curves(model, model, batches, start)
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < 0.9 * losses[0]
    # From the same weights on the same batches: the same curve again.
    assert how.curves(model, model, batches, start) == [losses]
    (exact,) = how.exact_curves(model, batches, start)
    assert 0 < max(abs(a - b) for a, b in zip(losses, exact, strict=True)) < 0.05
    assert exact[0] == pytest.approx(losses[0], rel=2e-6 if autocast is None else 2e-2)


def test_a_worker_trains_in_one_graph_each_way(program: Program) -> None:
    eager = worker.Session(Variant("eager"), "no-grad")
    answer(eager, "build", source=Source(name=program.name))
    exact, plain = answer(eager, "exact_curves"), answer(eager, "curves")
    assert [len(curve) for curve in plain] == [SHORT.steps] * SHORT.curve_count
    session = worker.Session(Variant("fusepass/default", "fusepass", "default"), "no-grad")
    answer(session, "build", source=Source(name=program.name))
    with fusepass.options(codegen="eager-decomposed"):  # nothing here is about generated code
        assert answer(session, "compile", folder=None) > 0
    record = measure.blank(session.variant)
    record["curve"] = Training.judge(answer(session, "curves"), plain, exact)
    assert record["curve"]["distance"]["max_abs"] < 1e-4
    record["graphs"] = answer(session, "facts")
    ways = record["graphs"]["regions_per_call"], record["graphs"]["backwards_per_call"]
    assert ways == (1, 1)
    assert record["graphs"]["graphs"] == 1  # nothing was compiled again on the way
    wall, _ = answer(session, "time", calls=3)
    assert len(wall) == 3
    before = answer(session, "curves")
    assert before == answer(session, "curves")  # timing trained the weights; they are set back
    answer(session, "drop")
    assert session.training is session.start is session.forward is None


def test_distances_are_over_all_curves() -> None:
    near = distance([[1.0, 0.5], [1.25, 0.5]], EXACT)
    assert near == {"max_abs": 0.25, "l2": pytest.approx(math.sqrt(2) / 4)}
    assert distance([[1.0, math.nan], [1.0, 0.0]], EXACT)["l2"] == math.inf


@pytest.mark.parametrize(("error", "passed"), [(0.0, True), (0.19, True), (0.21, False)])
def test_twice_eagers_distance_passes(error: float, passed: bool) -> None:
    eager = [[1.0, 0.5], [1.1, 0.25]]
    judged = Training.judge([[1.0, 0.5], [1.0 - error, 0.25]], eager, EXACT)
    assert judged["passed"] is passed
    assert judged["over_eager"]["max_abs"] == pytest.approx(error / 0.1)


def test_an_eager_curve_without_error_leaves_float32s_own() -> None:
    judged = Training.judge([[1.0, 0.5 + 3e-8], [1.0, 0.25]], EXACT, EXACT)
    assert judged["passed"] is True
    assert Training.judge([[1.0, 0.5 + 1e-5], [1.0, 0.25]], EXACT, EXACT)["passed"] is False


def test_a_far_curve_and_a_broken_graph_are_problems(program: Program) -> None:
    record = measure.skipped(program, None)
    one = measure.blank(Variant("fusepass/default", "fusepass", "default"))
    one["curve"] = Training.judge([[2.0, 0.5], [1.0, 0.25]], [[1.1, 0.5], [1.0, 0.25]], EXACT)
    one["graphs"] = {
        "graphs": 3, "operations": [1, 2, 3], "regions_per_call": 3, "backwards_per_call": 2,
        "frames_given_up": 0,
    }  # fmt: skip
    record["variants"] = [one]
    result: Any = {"programs": [record], "compile_times": None}
    far, broken = table.problems(result)
    assert "loss curve 10.00 times as far" in far
    assert "3 graphs forward and 2 backward" in broken
    one["backend"] = "inductor"
    assert table.problems(result) == [far]
