"""Compile times alone (``--compile-only``): ours against Inductor on the same model.

Inductor compiles one broken-out layer and uses it again, so a captured model is a larger graph than
any Inductor sees. The fair baseline is Inductor on the program's *twin*, in which the branches on
tensors are written by hand as ``torch.where``: the same graph, without fusepass. For a program
without branches on tensors it is fusepass with capture switched off. The ratio to the untouched
program is given beside it.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from fusepass.bench import samples
from fusepass.bench.measure import Settings, compile_in_new_process, prepare_workers
from fusepass.bench.processes import Worker, ask, start_workers, stop_workers
from fusepass.bench.program import Program, Source
from fusepass.bench.records import CompileRow, CompileTimes, GrowthRow
from fusepass.bench.variants import Variant

OURS, TWIN, KEEP, UNTOUCHED = "fusepass", "inductor_twin", "fusepass_keep", "inductor"
BAR_TWIN, BAR_KEEP = 1.15, 1.10
WARM_COMPILES = 3  # after each cold one: they are short, and noisier


def compile_variants(backend: str, mode: str) -> list[Variant]:
    """Ours, Inductor on the twin, ours without capture, and Inductor on the program as it is.

    With another backend under test, which has no such option, the third is that backend again.
    """
    return [
        Variant(OURS, backend, mode),
        Variant(TWIN, "inductor", mode, "twin"),
        Variant(KEEP, backend, mode, keep=backend == "fusepass"),
        Variant(UNTOUCHED, "inductor", mode),
    ]


def measure_compiles(
    program: Program, source: Source, workers: Sequence[Worker], settings: Settings
) -> list[CompileRow]:
    """Cold and warm compile times of one program, ``settings.repeats`` times, in rotated order."""
    prepare_workers(workers, settings.device)
    mode = workers[0].variant.mode or "default"
    left_out = {KEEP} if program.branches else {TWIN}
    if program.twin is None:
        left_out.add(TWIN)
    usable = [one for one in workers if one.variant.label not in left_out]
    by_label = {one.variant.label: one for one in usable}
    ask(usable, "build", together=True, source=source)
    kinds = ["cold", "warm"] + (["warm_process"] if settings.second_process else [])
    rounds: dict[str, dict[str, list[float]]] = {
        kind: {label: [] for label in by_label} for kind in kinds
    }
    for order in samples.rotation(list(by_label), settings.repeats):
        for label in order:
            with tempfile.TemporaryDirectory(prefix="fusepass-bench-") as scratch:
                found = _one(by_label[label], source, str(Path(scratch)), kinds, settings)
            for kind, seconds in found.items():
                rounds[kind][label].extend(seconds)
    failed = {label: one.failed for label, one in by_label.items() if one.failed is not None}
    ask(usable, "drop", together=True)
    return [_row(program, mode, kind, rounds[kind], failed) for kind in kinds]


def _one(
    worker: Worker, source: Source, folder: str, kinds: Sequence[str], settings: Settings
) -> dict[str, list[float]]:
    """One cold compile and the warm ones after it."""
    found: dict[str, list[float]] = {}
    for kind in kinds:
        if kind == "warm_process":
            seconds = compile_in_new_process(worker.variant, source, folder, settings)
            found[kind] = [] if seconds is None else [seconds]
            continue
        times = WARM_COMPILES if kind == "warm" else 1
        for _ in range(times):
            answer = ask([worker], "compile", timeout=settings.remaining(), folder=folder)
            found.setdefault(kind, []).extend(answer.values())
    return found


def _row(
    program: Program, mode: str, kind: str, rounds: dict[str, list[float]], failed: dict[str, str]
) -> CompileRow:
    over_twin = _ratio(rounds.get(OURS), rounds.get(TWIN))
    over_keep = _ratio(rounds.get(OURS), rounds.get(KEEP))
    judged, bar = (over_twin, BAR_TWIN) if program.branches else (over_keep, BAR_KEEP)
    return CompileRow(
        program=program.name,
        parameters=dict(program.parameters),
        mode=mode,
        kind=kind,
        seconds={label: statistics.median(one) if one else None for label, one in rounds.items()},
        rounds=rounds,
        over_twin=over_twin,
        over_keep=over_keep,
        over_untouched=_ratio(rounds.get(OURS), rounds.get(UNTOUCHED)),
        bar=bar,
        passed=None if judged is None else judged <= bar,
        failed=failed,
    )


def _ratio(ours: list[float] | None, theirs: list[float] | None) -> float | None:
    """Median of the ratios round by round."""
    if not ours or not theirs or len(ours) != len(theirs):
        return None
    return statistics.median([a / b for a, b in zip(ours, theirs, strict=True)])


def growth(programs: Sequence[Program], rows: Sequence[CompileRow]) -> list[GrowthRow]:
    """Growth with the number of layers, for every family of programs, kind and variant."""
    layers = {one.name: (one.family, one.layers) for one in programs if one.layers is not None}
    groups: dict[tuple[str, str, str, str], list[tuple[int, float]]] = {}
    for row in rows:
        family, count = layers.get(row["program"], (None, None))
        for label, seconds in row["seconds"].items():
            if family is not None and count is not None and seconds is not None:
                key = (family, row["mode"], row["kind"], label)
                groups.setdefault(key, []).append((count, seconds))
    found = []
    for (family, mode, kind, label), points in groups.items():
        counts, times = map(list, zip(*sorted(points), strict=True))
        if len(set(counts)) > 1:
            slope = statistics.linear_regression(counts, times).slope
            exponent = samples.growth_exponent(counts, times)
            line = GrowthRow(
                family=family, mode=mode, kind=kind, variant=label, layers=counts, seconds=times,
                seconds_per_layer=slope, exponent=exponent,
            )  # fmt: skip
            found.append(line)
    return found


def measure_all(
    programs: Sequence[tuple[Program, Source]],
    settings: Settings,
    report: Callable[[str], None],
    keep: Callable[[CompileTimes], None],
) -> None:
    """Measure compile times of several programs; what no longer fits the deadline is left out.

    ``report`` is given a line of text as each program is begun or left out, ``keep`` all that was
    measured so far after each program.
    """
    rows: list[CompileRow] = []
    for mode in settings.modes:
        workers = start_workers(compile_variants(settings.backend, mode), settings.grad_mode)
        try:
            for program, source in programs:
                if settings.overdue():
                    report(f"{program.name} ({mode}) left out: the time budget was spent")
                    continue
                report(f"{program.name} ({mode})")
                rows.extend(measure_compiles(program, source, workers, settings))
                keep(CompileTimes(rows=rows, growth=growth([one for one, _ in programs], rows)))
        finally:
            stop_workers(workers)
