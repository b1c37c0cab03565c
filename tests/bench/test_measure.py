from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from fusepass.bench import measure, timing, worker
from fusepass.bench.measure import Settings, calls_per_turn
from fusepass.bench.processes import Worker, value_of
from fusepass.bench.program import Source, resolve
from fusepass.bench.variants import EAGER, Variant, baseline, variants_for
from fusepass.errors import BenchError

PROGRAMS = """
import time
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self, guarded):
        super().__init__()
        self.linear, self.guarded = nn.Linear(8, 8), guarded

    def forward(self, x):
        x = self.linear(x)
        if self.guarded and torch.isinf(x).any():
            x = x.clamp(-1, 1)
        return x.relu()

class Stack(nn.Module):
    def __init__(self, guarded):
        super().__init__()
        self.layers = nn.ModuleList(Layer(guarded) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

def guarded():
    return Stack(True).eval(), (torch.randn(4, 8),)

def plain():
    return Stack(False).eval(), (torch.randn(4, 8),)

def never_the_same():
    return Stack(False), (torch.full((4, 8), float(time.perf_counter_ns() % 10**6)),)

def only_float32():
    def program(x):
        return x @ torch.ones(8, 8, dtype=torch.float32)
    return program, (torch.randn(4, 8),)
"""

SETTINGS = Settings(
    modes=("default",), backend="inductor", device="cpu", grad_mode="no-grad", rounds=6,
    round_seconds=0.0, compile_times="none", second_process=False, repeats=1, deadline=None,
)  # fmt: skip


class InlineWorker(Worker):
    """A worker inside this process: it starts at once and can run any backend."""

    def start(self) -> None:
        self.failed, self.primed = None, True
        self.session = worker.Session(self.variant, self.grad_mode)

    def send(self, command: str, **arguments: Any) -> None:
        self.answer = worker.answer(self.session, command, arguments)

    def receive(self, timeout: float | None = None) -> Any:
        return value_of(*self.answer)

    def alive(self) -> bool:
        return True


def off_by_a_percent(gm: torch.fx.GraphModule, inputs: Any) -> Any:
    def run(*args: Any) -> Any:
        return [out * 1.01 for out in gm(*args)]

    return run


def never_compiles(gm: torch.fx.GraphModule, inputs: Any) -> Any:
    raise RuntimeError("not today")


@pytest.fixture
def source(tmp_path: Path, request: pytest.FixtureRequest) -> Source:
    path = tmp_path / "some_programs.py"
    path.write_text(PROGRAMS)
    return Source(target=f"{path}:{request.param}")


def measured(source: Source, *variants: Variant) -> tuple[Any, dict[str, Any]]:
    """Measure in this process; returns the program's record and its variants by label."""
    workers = [InlineWorker(one, "no-grad") for one in (Variant(EAGER), *variants)]
    record = measure.measure(resolve(source), source, workers, SETTINGS, None)
    return record, {one["variant"]: one for one in record["variants"]}


@pytest.mark.parametrize("source", ["guarded"], indirect=True)
def test_regions_and_operations_of_a_program_with_breaks(source: Source):
    _, found = measured(source, Variant("dynamo", "eager", "default"))
    graphs = found["dynamo"]["graphs"]
    # Three layers in a loop: the parent frame is given up, each layer is entered in two pieces.
    assert graphs["regions_per_call"] == 6
    assert sorted(graphs["operations"]) == [1, 3]
    assert graphs["frames_given_up"] == 1
    assert found[EAGER]["graphs"] is None


@pytest.mark.parametrize("source", ["plain"], indirect=True)
def test_a_wrong_result_breaks_the_error_rule_and_is_still_timed(source: Source):
    wrong = Variant("wrong", off_by_a_percent, "default")  # type: ignore[arg-type]
    record, found = measured(source, Variant("dynamo", "eager", "default"), wrong)
    assert record["reference"] is None
    assert found["dynamo"]["error"]["passed"] is True
    assert found["dynamo"]["error"]["bit_equal_to_eager"] is True
    assert found["wrong"]["error"]["passed"] is False
    assert found["wrong"]["error"]["relative"] == pytest.approx(0.01, rel=0.01)
    assert found["wrong"]["graphs"]["regions_per_call"] == 1
    assert len(found["wrong"]["wall_us"]["rounds"]) == SETTINGS.rounds
    assert found["wrong"]["device_us"] is None  # no device clock on CPU
    assert found["wrong"]["peak_memory_bytes"] is None


@pytest.mark.parametrize("source", ["plain"], indirect=True)
def test_a_variant_that_fails_is_left_out_and_the_rest_is_measured(source: Source):
    broken = Variant("broken", never_compiles, "default")  # type: ignore[arg-type]
    _, found = measured(source, broken)
    assert found["broken"]["failed"].startswith("compile: ")
    assert "not today" in found["broken"]["failed"]
    assert found["broken"]["wall_us"] is None
    assert found["broken"]["speedup"]["eager"] is None
    assert found[EAGER]["failed"] is None
    assert found[EAGER]["wall_us"]["median"] > 0


@pytest.mark.parametrize("source", ["only_float32"], indirect=True)
def test_no_float64_reference_is_said_with_the_reason(source: Source):
    record, found = measured(source, Variant("dynamo", "eager", "default"))
    assert record["reference"].startswith("float64 run failed: RuntimeError")
    assert found["dynamo"]["error"]["passed"] is None
    assert found["dynamo"]["error"]["reason"] == record["reference"]
    assert found["dynamo"]["error"]["bit_equal_to_eager"] is True


@pytest.mark.parametrize("source", ["never_the_same"], indirect=True)
def test_a_program_that_differs_from_process_to_process_is_refused(source: Source):
    with pytest.raises(BenchError, match="other weights or inputs in every process"):
        measured(source, Variant("dynamo", "eager", "default"))


class ScriptedWorker:
    """Answers ``time`` with prepared figures and notes who was asked when."""

    def __init__(self, variant: Variant, rounds: list[float], log: list[str]) -> None:
        self.variant, self.rounds, self.log = variant, list(rounds), log
        self.failed: str | None = None

    def send(self, command: str, **arguments: Any) -> None:
        assert command == "time"
        assert arguments["calls"] >= 3
        self.log.append(self.variant.label)

    def receive(self, timeout: float | None) -> tuple[list[float], list[float]]:
        value = self.rounds.pop(0)
        return [value, value, 100 * value], [value / 2] * 3


def test_rounds_interleave_and_the_speed_rule_uses_the_better_baseline():
    variants = variants_for("eager", ["default"])
    eager, inductor, ours = variants
    assert [one.label for one in variants] == ["eager", "inductor/default", "eager/default"]
    log: list[str] = []
    times = {
        eager.label: [10.0, 10, 10, 80, 80, 80],  # the machine is slow from round 4 on
        inductor.label: [8.0, 8, 8, 64, 64, 64],
        ours.label: [9.0, 9, 9, 72, 72, 72],
    }
    workers = [ScriptedWorker(one, times[one.label], log) for one in variants]
    records = {one.label: measure.blank(one) for one in variants}
    pace = dict.fromkeys(times, 0.01)
    measure._time(workers, records, SETTINGS, pace, None)  # type: ignore[arg-type]
    rounds = [log[i : i + 3] for i in range(0, len(log), 3)]
    assert len(rounds) == SETTINGS.rounds
    assert all(sorted(one) == sorted(times) for one in rounds)
    assert {one[0] for one in rounds} == set(times)
    mine = records[ours.label]
    assert mine["speedup"]["eager"] == pytest.approx(10 / 9)
    assert mine["speedup"]["inductor"] == pytest.approx(8 / 9)
    assert mine["speedup"]["best"] == pytest.approx(8 / 9)
    assert mine["slower"] is True
    assert records[inductor.label]["slower"] is False
    assert records[inductor.label]["speedup"]["inductor"] is None
    wall, device = mine["wall_us"], mine["device_us"]
    assert wall is not None
    assert device is not None
    assert wall["samples"] == 18
    assert wall["p99"] == 7200.0
    assert device["median"] == pytest.approx(wall["median"] / 2, rel=0.5)


def test_the_baseline_is_inductor_in_the_same_mode():
    variants = variants_for("inductor", ["default", "reduce-overhead"])
    by_label = {one.label: one for one in variants}
    again = by_label["inductor-again/reduce-overhead"]
    peer = baseline(again, variants)
    assert peer is not None
    assert peer.label == "inductor/reduce-overhead"
    assert baseline(peer, variants) is None
    assert baseline(by_label[EAGER], variants) is None


@pytest.mark.parametrize(
    ("seconds", "turn", "calls"), [(0.01, 0.25, 25), (1.0, 0.25, 3), (1e-6, 0.25, 500)]
)
def test_calls_per_turn_fill_the_turn_within_limits(seconds: float, turn: float, calls: int):
    assert calls_per_turn(seconds, turn) == calls


def test_time_calls_measures_microseconds_of_each_call_after_a_warm_up():
    made: list[float] = []

    def call() -> None:
        made.append(time.perf_counter())
        time.sleep(0.002)

    wall, device = timing.time_calls(call, 5, "cpu")
    assert device is None
    assert len(wall) == 5
    assert len(made) > 5  # the warm-up
    assert all(2000 <= one < 50_000 for one in wall)


def test_the_deadline_leaves_a_little_grace():
    assert SETTINGS.remaining() is None
    late = dataclasses.replace(SETTINGS, deadline=time.monotonic() - 5)
    assert late.remaining() == 30.0
    assert late.overdue()
    early = dataclasses.replace(SETTINGS, deadline=time.monotonic() + 90)
    assert early.remaining() == pytest.approx(90, abs=5)
    assert not early.overdue()
