"""The command line: ``python -m fusepass bench``."""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from fusepass.bench import measure, samples, table
from fusepass.bench.compile_times import measure_all
from fusepass.bench.hardware import hardware, versions
from fusepass.bench.measure import Settings
from fusepass.bench.processes import Worker, start_workers, stop_workers
from fusepass.bench.program import Program, Source, select, split_target, suite_programs
from fusepass.bench.records import SCHEMA, CompileTimes, Result, save
from fusepass.bench.variants import check_backend, check_modes, variants_for
from fusepass.bench.worker import GRAD_MODES
from fusepass.errors import BenchError
from fusepass.options import MODES
from fusepass.report.paths import check_output

_Programs = list[tuple[Program, Source]]
COMPILE_TIMES = ("both", "cold", "none")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``bench``; docs/bench.md explains them."""
    what = parser.add_argument_group("what to run").add_argument
    what("target", nargs="?", help="module:function or path/to/file.py:function")
    what("--suite", help="a suite of the repository instead of a target, in a checkout")
    only = "programs of the suite, by name, beginning or glob; repeatable"
    what("--only", action="append", default=[], metavar="NAME", help=only)
    modes = f"of {', '.join(MODES)}; default: default and, on CUDA, reduce-overhead"
    what("--modes", metavar="M,M", help=modes)
    what("--backend", default="fusepass", help="the backend under test (inductor: the noise)")
    what("--device", choices=("cuda", "cpu"), help="for suites; default: cuda if present")
    what("--grad-mode", choices=GRAD_MODES, default="no-grad")
    what("--twin", metavar="TARGET", help="the target with torch.where for its branches")
    how = parser.add_argument_group("how to measure").add_argument
    how("--rounds", type=int, default=7, help="interleaved rounds, at least 5 (default 7)")
    how("--round-seconds", type=float, help="per variant and round (default 0.25; on CPU 0.1)")
    how("--budget-seconds", type=float, help="end in about this time, skipping the rest")
    compile_times = "none also compiles the variants side by side"
    how("--compile-times", choices=COMPILE_TIMES, default="both", help=compile_times)
    how("--second-process", action="store_true", help="also a warm compile in a new process")
    how("--compile-only", action="store_true", help="only the table of compile times")
    how("--repeats", type=int, default=3, help="compiles per variant with --compile-only")
    how("--json", type=Path, metavar="OUT", help="write the result here, after each program")


def run(arguments: argparse.Namespace) -> int:
    """Run the benchmark; returns 0, or 1 when a variant failed or broke the error rule."""
    settings, work = plan(arguments)
    recorded = dataclasses.asdict(settings)
    del recorded["deadline"]
    result = Result(
        schema=SCHEMA,
        started=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        seconds=0.0,
        command=sys.argv[1:],
        settings={**recorded, "budget_seconds": arguments.budget_seconds},
        hardware=hardware(settings.device),
        versions=versions(),
        programs=[],
        compile_times=None,
    )
    began = time.monotonic()

    def keep() -> None:
        result["seconds"] = time.monotonic() - began
        if arguments.json is not None:
            save(result, arguments.json)

    if arguments.compile_only:

        def keep_times(times: CompileTimes) -> None:
            result["compile_times"] = times
            keep()

        measure_all(work, settings, _say, keep_times)
    else:
        floor = any(program.floor is not None for program, _ in work)
        twin = any(program.twin is not None for program, _ in work)
        variants = variants_for(settings.backend, settings.modes, floor, twin)
        workers = start_workers(variants, settings.grad_mode)
        try:
            _measure_programs(work, workers, settings, result, keep)
        finally:
            stop_workers(workers)
    keep()
    print(table.render(result))
    return 1 if table.problems(result) else 0


def plan(arguments: argparse.Namespace) -> tuple[Settings, _Programs]:
    """Turn the arguments into settings and a list of programs.

    Raises BenchError if one names what does not exist, or two contradict each other.
    """
    if (arguments.target is None) == (arguments.suite is None):
        raise BenchError("fusepass bench: give either a target or --suite NAME (and not both).")
    if arguments.rounds < samples.FEWEST_ROUNDS:
        raise BenchError(
            f"fusepass bench: --rounds {arguments.rounds} is too few: the speed rule takes a "
            f"median over at least {samples.FEWEST_ROUNDS} rounds."
        )
    if arguments.repeats < 1:
        raise BenchError("fusepass bench: --repeats must be at least 1.")
    if arguments.only and arguments.suite is None:
        raise BenchError(
            "fusepass bench: --only chooses programs of a suite; give --suite as well."
        )
    if arguments.twin is not None and arguments.target is None:
        raise BenchError("fusepass bench: --twin goes with a target.")
    for option in ("round_seconds", "budget_seconds"):
        seconds = getattr(arguments, option)
        if seconds is not None and not 0 < seconds < math.inf:  # nan is neither
            name = f"--{option.replace('_', '-')}"
            raise BenchError(
                f"fusepass bench: {name} must be a number of seconds, more than 0, not {seconds}."
            )
    check_output(arguments.json, "fusepass bench", "--json")
    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise BenchError("fusepass bench: --device cuda, but torch finds no CUDA device.")
    # Without CUDA graphs, reduce-overhead is the default mode by another name.
    usual = (
        ("default",)
        if device == "cpu" or arguments.compile_only
        else ("default", "reduce-overhead")
    )
    modes: tuple[str, ...] = usual
    if arguments.modes is not None:
        modes = tuple(filter(None, map(str.strip, arguments.modes.split(","))))
    check_modes(modes)
    check_backend(arguments.backend)
    budget = arguments.budget_seconds
    settings = Settings(
        modes=modes,
        backend=arguments.backend,
        device=device,
        grad_mode=arguments.grad_mode,
        rounds=arguments.rounds,
        round_seconds=arguments.round_seconds or (0.25 if device == "cuda" else 0.1),
        compile_times=arguments.compile_times,
        second_process=arguments.second_process,
        repeats=arguments.repeats,
        deadline=None if budget is None else time.monotonic() + budget,
    )
    return settings, _chosen(arguments, device)


def _chosen(arguments: argparse.Namespace, device: str) -> _Programs:
    if arguments.suite is None:
        for target in filter(None, (arguments.target, arguments.twin)):
            split_target(target)
        source = Source(target=arguments.target, twin=arguments.twin)
        # The parent does not build targets; the workers import it, and the twin if there is one.
        twin = (lambda: None) if arguments.twin is not None else None
        return [(Program(arguments.target, build=lambda: None, twin=twin), source)]
    only = arguments.compile_only
    programs = select(suite_programs(arguments.suite, device, compile_only=only), arguments.only)
    return [
        (one, Source(suite=arguments.suite, device=device, name=one.name, compile_only=only))
        for one in programs
    ]


def _measure_programs(
    work: _Programs,
    workers: list[Worker],
    settings: Settings,
    result: Result,
    keep: Callable[[], None],
) -> None:
    for number, (program, source) in enumerate(work):
        left = None if settings.deadline is None else settings.deadline - time.monotonic()
        if settings.overdue():
            result["programs"].append(measure.skipped(program, "the time budget was spent"))
        else:
            _say(program.name)
            share = None if left is None else left / (len(work) - number)
            taking_part = [w for w in workers if getattr(program, w.variant.builds) is not None]
            result["programs"].append(
                measure.measure(program, source, taking_part, settings, share)
            )
        keep()


def _say(line: str) -> None:
    print(f"fusepass bench: {line}", file=sys.stderr, flush=True)
