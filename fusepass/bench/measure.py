"""Measuring one program: the order in which the workers build, compile, compare and are timed."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fusepass.bench import samples
from fusepass.bench.error_rule import TensorError, judge
from fusepass.bench.processes import Worker, ask
from fusepass.bench.program import Program, Source
from fusepass.bench.records import (
    CompileSeconds,
    ProgramRecord,
    Speedup,
    VariantRecord,
    unmeasured,
)
from fusepass.bench.variants import EAGER, Variant, baseline
from fusepass.errors import BenchError

_FEWEST_CALLS, _MOST_CALLS = 3, 500
_GRACE = 30.0


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Args:
        modes: modes of torch.compile, each for Inductor and for ``backend``.
        backend: the backend under test.
        device: "cuda" or "cpu".
        grad_mode: "no-grad", "inference" or "grad" around every call.
        rounds: interleaved rounds.
        round_seconds: how long each variant is timed in each round.
        compile_times: "both", "cold" or "none".
        second_process: also time a warm compile in a new process.
        repeats: how often ``--compile-only`` times each compile.
        deadline: ``time.monotonic()`` at which the whole run should have ended, or None.
    """

    modes: tuple[str, ...]
    backend: str
    device: str
    grad_mode: str
    rounds: int
    round_seconds: float
    compile_times: str
    second_process: bool
    repeats: int
    deadline: float | None

    def remaining(self) -> float | None:
        """Seconds to wait for a command: until the deadline, or a little longer than that."""
        return None if self.deadline is None else max(_GRACE, self.deadline - time.monotonic())

    def overdue(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and time.monotonic() > self.deadline


def blank(variant: Variant) -> VariantRecord:
    """A record in which nothing was measured yet."""
    return unmeasured(
        VariantRecord,
        variant=variant.label,
        backend=variant.backend,
        mode=variant.mode,
        compile=unmeasured(CompileSeconds),
        speedup=unmeasured(Speedup),
    )


def skipped(program: Program, why: str | None) -> ProgramRecord:
    """The record of a program that was not run."""
    parameters = dict(program.parameters)
    return unmeasured(
        ProgramRecord,
        program=program.name, parameters=parameters, skipped=why, variants=[], seconds=0.0,
    )  # fmt: skip


def measure(
    program: Program,
    source: Source,
    workers: Sequence[Worker],
    settings: Settings,
    share: float | None,
) -> ProgramRecord:
    """Measure every variant of one program; a variant that fails is reported and left out.

    ``share`` is the seconds it may take: compiling is not cut short by it, timing is. Raises
    BenchError if the program cannot be built, or is not the same in every process.
    """
    began = time.monotonic()
    record = skipped(program, None)
    records = {worker.variant.label: blank(worker.variant) for worker in workers}
    with tempfile.TemporaryDirectory(prefix="fusepass-bench-") as scratch:
        record["device"] = _prepare(program, source, workers, settings)
        folders = _compile(workers, records, settings, Path(scratch))
        settled = ask(workers, "settle", timeout=settings.remaining())
        for label, (_, peak) in settled.items():
            records[label]["peak_memory_bytes"] = peak
        if program.training is None:
            path = str(Path(scratch) / "reference.pt")
            record["reference"] = _judge(workers, records, settings, path)
        else:
            record["exact_losses"] = _judge_curves(program, workers, records)
        for label, graph_facts in ask(workers, "facts", together=True).items():
            records[label]["graphs"] = graph_facts
        left = None if share is None else share - (time.monotonic() - began)
        pace = {label: seconds for label, (seconds, _) in settled.items()}
        _time(workers, records, settings, pace, left)
        _compile_again(workers, records, settings, folders, source)
    ask(workers, "drop", together=True)
    for worker in workers:
        records[worker.variant.label]["failed"] = worker.failed
    record["variants"] = list(records.values())
    record["seconds"] = time.monotonic() - began
    return record


def prepare_workers(workers: Sequence[Worker], device: str, prime: bool = True) -> None:
    """Start dead workers again, give all a clean record, and get one-off costs out of the way."""
    for worker in workers:
        worker.failed = None
        if not worker.alive():
            worker.start()
    fresh = [worker for worker in workers if prime and not worker.primed]
    ask(fresh, "prime", together=True, device=device)
    for worker in fresh:
        worker.primed = True


def _prepare(
    program: Program, source: Source, workers: Sequence[Worker], settings: Settings
) -> str | None:
    """Build the program in every process; returns where it runs."""
    prepare_workers(workers, settings.device, prime=settings.compile_times != "none")
    built = ask(workers, "build", together=True, source=source)
    prints = {label: found for label, (_, found) in built.items()}
    floors = {worker.variant.label for worker in workers if worker.variant.builds == "floor"}
    # A floor may hold as many weights in fewer tensors: floors are alike among themselves only.
    alike = [
        {tuple(prints[one]) for one in prints if (one in floors) == of} for of in (True, False)
    ]
    if any(len(found) > 1 for found in alike):
        raise BenchError(
            f"fusepass bench: {program.name} gives other weights or inputs in every process. The "
            "benchmark seeds torch and random before it builds; use no other source of randomness."
        )
    return next((device for device, _ in built.values()), None)


def _compile(
    workers: Sequence[Worker], records: dict[str, VariantRecord], settings: Settings, scratch: Path
) -> dict[str, str | None]:
    """Compile every variant; returns the cache folder of each."""
    compiled = [worker for worker in workers if worker.variant.backend is not None]
    labels = [worker.variant.label for worker in compiled]
    cold = settings.compile_times != "none"
    folders: dict[str, str | None] = dict.fromkeys(labels)
    if cold:
        for number, label in enumerate(labels):
            folder = scratch / f"cache-{number}"
            folder.mkdir()
            folders[label] = str(folder)
    # Timed compiles run one at a time; otherwise all at once, since nobody looks at the clock.
    each = {label: {"folder": folder} for label, folder in folders.items()}
    seconds = ask(compiled, "compile", each=each, together=not cold, timeout=settings.remaining())
    if cold:
        for label, value in seconds.items():
            records[label]["compile"]["cold_s"] = value
    return folders


def _judge(
    workers: Sequence[Worker], records: dict[str, VariantRecord], settings: Settings, path: str
) -> str | None:
    """Apply the error rule to every variant; returns why there is no float64 reference, or None."""
    eager = [worker for worker in workers if worker.variant.label == EAGER]
    reason: str | None = ask(eager, "reference", path=path).get(EAGER, "eager failed")
    if eager[0].failed is not None:
        return reason
    judged = [worker for worker in workers if worker.variant.builds != "floor"]
    found: dict[str, list[TensorError]] = ask(judged, "errors", path=path)
    variants = [worker.variant for worker in judged]
    for variant in variants:
        if variant.label in found and EAGER in found:
            peer = baseline(variant, variants)
            records[variant.label]["error"] = judge(
                found[variant.label],
                found[EAGER],
                found.get(peer.label) if peer is not None else None,
                reason,
            )
    return reason


def _judge_curves(
    program: Program, workers: Sequence[Worker], records: dict[str, VariantRecord]
) -> list[list[float]] | None:
    """Hold the loss curves of every variant against float64's; returns the latter."""
    eager = [worker for worker in workers if worker.variant.label == EAGER]
    exact = ask(eager, "exact_curves").get(EAGER)
    found = ask(workers, "curves")
    if exact is not None and EAGER in found:
        for label, losses in found.items():
            records[label]["curve"] = program.training.judge(losses, found[EAGER], exact)
    return exact


def calls_per_turn(seconds_per_call: float, turn_seconds: float) -> int:
    """How many calls fit into one variant's turn, within sensible limits."""
    wanted = int(turn_seconds / max(seconds_per_call, 1e-7))
    return min(_MOST_CALLS, max(_FEWEST_CALLS, wanted))


def _time(
    workers: Sequence[Worker],
    records: dict[str, VariantRecord],
    settings: Settings,
    pace: dict[str, float],
    seconds_left: float | None,
) -> None:
    """Interleaved rounds, then medians and the speed rule."""
    by_label = {worker.variant.label: worker for worker in workers if worker.failed is None}
    turn = settings.round_seconds
    if seconds_left is not None:
        turns = settings.rounds * max(1, len(by_label))
        turn = max(0.0, min(turn, seconds_left / turns))
    wall: dict[str, list[list[float]]] = {label: [] for label in by_label}
    device: dict[str, list[list[float]]] = {label: [] for label in by_label}
    replay: dict[str, list[list[float]]] = {label: [] for label in by_label}
    floor = any(worker.variant.builds == "floor" for worker in workers)
    for order in samples.rotation(list(by_label), settings.rounds):
        for label in order:
            calls = calls_per_turn(pace[label], turn)
            patience = 60 + 20 * calls * pace[label]
            answer = ask([by_label[label]], "time", calls=calls, timeout=patience)
            if label in answer:
                wall[label].append(answer[label][0])
                device[label].append(answer[label][1] or [])
            if floor:  # what is compared with a floor is compared kernel by kernel, too
                again = ask([by_label[label]], "replay", seconds=turn, timeout=patience)
                replay[label].append(again.get(label) or [])
    for label, worker in by_label.items():
        if worker.failed is None:
            records[label]["wall_us"] = samples.summary(wall[label])
            records[label]["device_us"] = samples.summary(device[label])
            records[label]["replay_us"] = samples.summary(replay[label])
    samples.compare_speed([worker.variant for worker in workers], records)


def _compile_again(
    workers: Sequence[Worker],
    records: dict[str, VariantRecord],
    settings: Settings,
    folders: dict[str, str | None],
    source: Source,
) -> None:
    """Warm compiles, while the caches on disk are still there."""
    if settings.compile_times != "both" or settings.overdue():
        return
    each = {label: {"folder": folder} for label, folder in folders.items()}
    found = ask(workers, "compile", each=each, timeout=settings.remaining())
    for label, seconds in found.items():
        records[label]["compile"]["warm_s"] = seconds
    if settings.second_process:
        for worker in workers:
            folder = folders.get(worker.variant.label)
            if folder is not None and worker.failed is None:
                seconds = compile_in_new_process(worker.variant, source, folder, settings)
                records[worker.variant.label]["compile"]["warm_process_s"] = seconds


def compile_in_new_process(
    variant: Variant, source: Source, folder: str, settings: Settings
) -> float | None:
    """Seconds of the first call in a process that finds only caches on disk; None if it failed."""
    worker = Worker(variant, settings.grad_mode)
    try:
        ask([worker], "prime", device=settings.device)
        ask([worker], "build", source=source)
        found = ask([worker], "compile", timeout=settings.remaining(), folder=folder)
        return next(iter(found.values()), None)
    finally:
        worker.stop()
