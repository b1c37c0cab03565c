from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import fusepass
from fusepass.bench import compile_times, processes
from fusepass.bench.compile_times import KEEP, OURS, TWIN, UNTOUCHED
from fusepass.bench.compiled_code import regions_entered
from fusepass.bench.measure import Settings
from fusepass.bench.program import Program, Source
from fusepass.bench.variants import apply

SETTINGS = Settings(
    modes=("default",), backend="fusepass", device="cpu", grad_mode="no-grad", rounds=5,
    round_seconds=0.0, compile_times="both", second_process=False, repeats=3, deadline=None,
)  # fmt: skip
SECONDS = {
    # (layers, kind) -> seconds; a slow spell doubles the second repeat of everybody.
    OURS: lambda layers, kind: layers * (0.11 if kind == "cold" else 0.012),
    TWIN: lambda layers, kind: layers * (0.10 if kind == "cold" else 0.010),
    KEEP: lambda layers, kind: layers * 0.10,
    UNTOUCHED: lambda layers, kind: 1.0 if kind == "cold" else 0.1,
}


class ScriptedWorker:
    """Compiles in as many seconds as the script says; cold if it has not seen the folder."""

    log: list[tuple[str, str]]

    def __init__(self, variant: Any, grad_mode: str) -> None:
        self.variant, self.failed, self.primed = variant, None, True
        self.folders: list[str] = []

    def alive(self) -> bool:
        return True

    def ask_to_stop(self) -> None: ...

    def stop(self) -> None: ...

    def send(self, command: str, **arguments: Any) -> None:
        self.answer = 0.0
        if command == "build":
            self.layers = int(arguments["source"].name)
            self.folders = []
        if command == "compile":
            folder = arguments["folder"]
            kind = "warm" if folder in self.folders else "cold"
            self.folders.append(folder)
            slow = 2.0 if len(set(self.folders)) == 2 else 1.0
            self.log.append((self.variant.label, kind))
            self.answer = slow * SECONDS[self.variant.label](self.layers, kind)
            if self.layers == 99 and self.variant.label == OURS:
                self.answer = None

    def receive(self, timeout: float | None) -> Any:
        if self.answer is None:
            raise processes.WorkerFailed("it broke")
        return self.answer


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run ``measure_all`` with scripted workers; returns the table and the order of compiles."""
    log: list[tuple[str, str]] = []
    kind = type("Logged", (ScriptedWorker,), {"log": log})
    monkeypatch.setattr(processes, "Worker", kind)

    def run(
        layers: list[int], settings: Settings = SETTINGS, twin: bool = True, branches: bool = True
    ) -> Any:
        found: list[Any] = []
        build = lambda: None  # noqa: E731 - scripted workers build nothing
        programs = [
            (
                Program(
                    str(n),
                    build,
                    twin=build if twin else None,
                    branches=branches,
                    family="clamp",
                    layers=n,
                ),
                Source(suite="sync", name=str(n)),
            )
            for n in layers
        ]
        compile_times.measure_all(programs, settings, lambda line: None, found.append)
        return found, log

    return run


def test_ratios_are_taken_repeat_by_repeat_and_held_against_the_bar(table: Any):
    found, log = table([12])
    rows = {row["kind"]: row for row in found[-1]["rows"]}
    assert rows["cold"]["over_twin"] == pytest.approx(1.1)
    assert rows["cold"]["passed"] is True  # bar 1.15
    assert rows["warm"]["over_twin"] == pytest.approx(1.2)
    assert rows["warm"]["passed"] is False  # bar 1.15
    assert rows["cold"]["over_untouched"] == pytest.approx(12 * 0.11)
    assert rows["cold"]["seconds"][TWIN] == pytest.approx(1.2)
    assert rows["cold"]["rounds"][TWIN] == pytest.approx([1.2, 2.4, 1.2])
    # Each variant's warm compile follows its cold one, and the order of variants moves.
    assert [kind for _, kind in log] == ["cold", "warm", "warm", "warm"] * 9
    assert [log[i][0] for i in (0, 12, 24)] == [OURS, TWIN, UNTOUCHED]
    assert rows["warm"]["over_keep"] is None


def test_growth_over_layers(table: Any):
    found, _ = table([12, 24, 48])
    growth = {(one["variant"], one["kind"]): one for one in found[-1]["growth"]}
    ours = growth[OURS, "cold"]
    assert ours["layers"] == [12, 24, 48]
    assert ours["exponent"] == pytest.approx(1.0)
    assert ours["seconds_per_layer"] == pytest.approx(0.11)
    assert growth[UNTOUCHED, "cold"]["exponent"] == pytest.approx(0.0, abs=1e-9)
    assert len(found) == 3  # kept after every program


def test_a_program_without_a_twin_has_no_ratio_and_no_verdict(table: Any):
    found, log = table([12], twin=False)
    row = found[-1]["rows"][0]
    assert row["over_twin"] is None
    assert row["passed"] is None
    assert row["over_untouched"] == pytest.approx(1.32)
    assert TWIN not in {label for label, _ in log}


def test_a_failing_variant_is_named_and_the_others_stay(table: Any):
    found, _ = table([99])
    row = found[-1]["rows"][0]
    assert row["failed"] == {OURS: "compile: it broke"}
    assert row["seconds"][OURS] is None
    assert row["seconds"][TWIN] == pytest.approx(9.9)
    assert row["passed"] is None


def test_a_spent_budget_leaves_programs_out(table: Any):
    found, log = table([12], dataclasses.replace(SETTINGS, deadline=0.0))
    assert found == []
    assert log == []


def test_without_branches_ours_is_held_against_itself_without_capture(table: Any):
    found, log = table([12], twin=False, branches=False)
    rows = {row["kind"]: row for row in found[-1]["rows"]}
    assert {label for label, _ in log} == {OURS, KEEP, UNTOUCHED}
    assert rows["cold"]["over_keep"] == pytest.approx(1.1)
    assert rows["cold"]["bar"] == pytest.approx(1.1)
    assert rows["cold"]["over_twin"] is None


def test_keep_switches_capture_off():
    (keep,) = [one for one in compile_times.compile_variants("fusepass", "default") if one.keep]

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x - 1

    kept = apply(keep, program)
    with fusepass.options(codegen="eager"):
        kept(torch.ones(2))
    assert regions_entered(lambda: kept(torch.ones(2)))[0] == 2
    torch.compiler.reset()
