"""Choosing how one fused operation is computed: by option, by table, by timing, or by a model."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fusepass.errors import ArgumentType, CandidateFailed, ChoicesNotImported, TuneDevice
from fusepass.options import Options
from fusepass.torch_private.inductor import lowering
from fusepass.torch_private.inductor.compile import mode_config
from fusepass.tune import cost_model, timing
from fusepass.tune.device.names import device_name
from fusepass.tune.problems.base import INDUCTOR, REFERENCE, Candidate, Choice, Problem
from fusepass.tune.table import ChoiceEntry, ChoiceTable, open_table, parse
from fusepass.tune.timing import compile_in_parallel, progress_bar, sufficiently_exact

logger = logging.getLogger("fusepass")

SECONDS_PER_PROCESS = 10.0
SECONDS_PER_PROBLEM = 0.05
SECONDS_PER_PROBLEM_AUTOTUNED = 0.5
_SMALLEST_ESTIMATED_GAIN = 1.03
_QUIET = 0.03  # noise of a good measurement; of a busy device's it is several times that
_ATTEMPTS = 3


@dataclass
class _State:
    """What this process has opened, spent and found out."""

    tables: dict[str, ChoiceTable] = field(default_factory=dict)
    seconds: float = 0.0
    failed: dict[str, str] = field(default_factory=dict)  # key to why nothing was timed
    passing: dict[str, Choice] = field(default_factory=dict)  # not to be written down
    warned: set[str] = field(default_factory=set)


_state = _State()


def reset() -> None:
    """Forget tables, spent time and failures of this process; files stay."""
    vars(_state).update(vars(_State()))


def table_for(device: torch.device) -> ChoiceTable:
    """The table of choices for a device, read on first use."""
    name = device_name(device)
    if name not in _state.tables:
        _state.tables[name] = open_table(name)
    return _state.tables[name]


def epoch() -> str:
    """What must enter cache keys of compiled code: changed on request only, never by learning."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return ""
    devices = map(torch.device, (f"cuda:{n}" for n in range(torch.cuda.device_count())))
    tables = {table.device: table for table in map(table_for, devices)}
    return ",".join(f"{name}={table.epoch}" for name, table in sorted(tables.items()))


def choose(problem: Problem, options: Options, candidates: Sequence[Candidate]) -> Choice:
    """Which candidate computes a problem.

    The same question has the same answer on every rank of a job: with several ranks nothing is
    timed, and what one machine learnt by itself is not looked at.

    Args:
        problem: the fused operation.
        options: in force; ``candidate`` may force the answer, ``mode`` decides how long to look.
        candidates: the first is what Inductor would do, named ``"inductor"``.

    Returns:
        The choice. ``"inductor"`` wherever nothing is known to be faster by more than the noise.
    """
    if options.candidate in (REFERENCE, INDUCTOR):
        return Choice(options.candidate, {}, "forced", f"options ask for {options.candidate}")
    if problem.device.type != "cuda":
        return _leave_to_inductor("no kernel of ours is faster there than what Inductor generates")
    if problem.pointwise_after:
        return _leave_to_inductor(
            "Inductor computes it in the same kernel as the operations that follow"
        )
    able = [one for one in candidates if one.refuses(problem) is None]
    if len(able) == 1:
        reasons = {f"{c.name}: {c.refuses(problem)}" for c in candidates if c not in able}
        return _leave_to_inductor("; ".join(sorted(reasons)) or "there is no other candidate")
    alone = not several_ranks()
    key, table = problem.key(options.mode), table_for(problem.device)
    entry = known_choice(problem, options)
    names = {one.name for one in able}
    if entry is not None and entry.candidate in names:
        return _choice_of(entry.candidate, dict(entry.microseconds), "table")
    if alone and key in _state.passing and _state.passing[key].candidate in names:
        return _state.passing[key]
    obstacle = _obstacle_to_timing(key, options.mode) if alone else "a job of several ranks"
    if obstacle is not None:
        return _choose_by_model(problem, able, obstacle)
    return _time_candidates(problem, options.mode, able, key, table)


def known_choice(problem: Problem, options: Options) -> ChoiceEntry | None:
    """What the table holds for a problem on a CUDA device, if that counts here; else None."""
    key, table = problem.key(options.mode), table_for(problem.device)
    return table.find(key, same_everywhere=several_ranks())


def tune(
    problem: Problem,
    candidates: Sequence[Candidate],
    mode: str = "default",
    seconds: float = SECONDS_PER_PROBLEM_AUTOTUNED,
) -> Choice:
    """Time a problem now, on request, and keep the choice: code compiled before is a cache miss.

    Raises:
        Exception: whatever stopped the timing.
    """
    able = sufficiently_exact(
        problem, [one for one in candidates if one.refuses(problem) is None], mode
    )
    samples = measure(problem, able, seconds, mode)
    best = winner(samples)
    entry = ChoiceEntry(best, samples.medians(), "tuned")
    table_for(problem.device).add(problem.key(mode), entry)
    return _choice_of(best, samples.medians(), "measured")


def measure(
    problem: Problem, candidates: Sequence[Candidate], seconds: float, mode: str
) -> timing.Samples:
    """Time candidates on random inputs; one that fails is left out, with one warning.

    Where the device is disturbed, by other processes say, it is tried again; the quietest of three
    attempts counts.

    Raises:
        NotEnoughMemory: the device is too full to time anything.
        Exception: the first candidate, the baseline, failed.
    """
    plain = torch.autocast("cuda", enabled=False)
    with lowering.real_tensors(), plain, torch.cuda.device(problem.device):
        inputs = timing.make_inputs(problem)
        if not mode.startswith("max-autotune"):
            compile_in_parallel(candidates, inputs, problem.device)
        calls = {}
        what = f"{problem.op} {problem.m}x{problem.k}x{problem.n}: compiling"
        for one in progress_bar(candidates, what, wanted=mode.startswith("max-autotune")):
            try:
                call = _call(one, inputs, mode)
                call()
                torch.cuda.synchronize()
            except Exception as error:
                if one.name == INDUCTOR:
                    raise
                _warn_once(one.name, error)
            else:
                calls[one.name] = call
        besides = {one.name: one.overhead_us for one in candidates}
        attempts: list[timing.Samples] = []
        while len(attempts) < _ATTEMPTS:
            how = {"after_reads": problem.after_reads}
            timed = timing.time_on_device(calls, problem.device, seconds, **how)
            attempts.append(timed.with_overhead(besides))
            if attempts[-1].disturbance() <= _QUIET:
                break
        return min(attempts, key=timing.Samples.disturbance)


def _call(
    candidate: Candidate, inputs: tuple[torch.Tensor | None, ...], mode: str
) -> Callable[[], object]:
    """What is timed. What Inductor generates is compiled, and its own candidate if it tunes."""
    autotuned = mode.startswith("max-autotune")
    if candidate.generated or (candidate.name == INDUCTOR and autotuned):
        present = [one for one in inputs if one is not None]
        rest = [None] * (len(inputs) - len(present))
        patches = mode_config("max-autotune-no-cudagraphs") if autotuned else {}
        run = candidate.graphable or candidate.run
        return lowering.compile_region(lambda *a: run(*a, *rest), present, patches)
    return lambda: candidate.run(*inputs)


def _obstacle_to_timing(key: str, mode: str) -> str | None:
    if key in _state.failed:
        return _state.failed[key]
    if torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured"
    if not mode.startswith("max-autotune") and _state.seconds >= SECONDS_PER_PROCESS:
        return f"the {SECONDS_PER_PROCESS:.0f} s for timing in this process are spent"
    return None


def _time_candidates(
    problem: Problem, mode: str, able: Sequence[Candidate], key: str, table: ChoiceTable
) -> Choice:
    autotuned = mode.startswith("max-autotune")
    seconds = SECONDS_PER_PROBLEM_AUTOTUNED if autotuned else SECONDS_PER_PROBLEM
    began = time.perf_counter()
    try:
        every, able = able, sufficiently_exact(problem, able, mode)
        samples = measure(problem, able, seconds, mode)
    except Exception as error:  # noqa: BLE001 - anything may fail on a device in use
        _state.failed[key] = f"timing failed: {type(error).__name__}: {error}"
        if not isinstance(error, (timing.NotEnoughMemory, timing.HostTooSlow)):
            _warn_once(INDUCTOR, error)
        return _choose_by_model(problem, able, _state.failed[key])
    finally:
        spent = time.perf_counter() - began
        _state.seconds += spent
    best = winner(samples)
    medians = samples.medians()
    logger.info("fusepass: timed %s: %s", key, medians)
    note = f"; finding out took {spent:.1f} s"
    if len(able) < len(every):
        note += "; a library computes it in single precision, others would in TF32"
    choice = _choice_of(best, medians, "measured", note)
    noise = samples.disturbance()
    if noise <= _QUIET and len(medians) == len(able):
        table.add(key, ChoiceEntry(best, medians))
        return choice
    if noise > _QUIET and best == INDUCTOR:
        obstacle = f"timings were disturbed by {noise:.0%}: {_list_times(medians, 'took')}"
        hopeful = [one for one in able if medians.get(one.name, math.inf) <= medians[INDUCTOR]]
        choice = _choose_by_model(problem, hopeful, obstacle)
    _state.passing[key] = choice  # not written down: it may come out otherwise another day
    return choice


def winner(samples: timing.Samples) -> str:
    """The fastest candidate that beats Inductor by more than the noise; else Inductor."""
    better = [name for name in samples.rounds if name != INDUCTOR and samples.beats(name, INDUCTOR)]
    medians = samples.medians()
    return min(better, key=medians.__getitem__, default=INDUCTOR)


def _choose_by_model(problem: Problem, able: Sequence[Candidate], why_not_timed: str) -> Choice:
    rates = cost_model.RATES.get(torch.cuda.get_device_name(problem.device))
    if rates is None or not cost_model.applies_to(problem):
        return _leave_to_inductor(f"nothing is known about this device beforehand; {why_not_timed}")
    asked = {one.name: one.estimate(problem, rates) for one in able if one.estimate is not None}
    times = {name: time for name, time in asked.items() if time is not None}
    if not times:
        return _leave_to_inductor(f"no model knows the candidates; {why_not_timed}")
    best = min(times, key=times.__getitem__)
    if times.get(INDUCTOR, 0.0) < _SMALLEST_ESTIMATED_GAIN * times.get(best, 0.0):
        best = INDUCTOR
    return _choice_of(best, times, "model", f" ({why_not_timed})")


def _leave_to_inductor(why: str) -> Choice:
    return Choice(INDUCTOR, {}, "model", why)


def _choice_of(winner: str, times: dict[str, float], source: str, note: str = "") -> Choice:
    verb = "should take" if source == "model" else "took"
    return Choice(winner, times, source, _list_times(times, verb) + note)


def _list_times(times: dict[str, float], verb: str) -> str:
    return ", ".join(f"{name} {verb} {time:.1f} µs" for name, time in times.items())


def several_ranks() -> bool:
    """Whether this process is one of several that must take the same choices."""
    distributed = torch.distributed
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )


def _warn_once(name: str, error: Exception) -> None:
    if name not in _state.warned:
        _state.warned.add(name)
        warnings.warn(CandidateFailed(name, f"{type(error).__name__}: {error}"), stacklevel=2)


# --- Changing a table of choices on purpose; each call starts a new epoch -------------------------

Device = torch.device | str | int | None


def import_choices(path: str | Path, device: Device = None) -> int:
    """Take the choices of another machine's file, so that every rank of a job has the same.

    Args:
        path: a file that fusepass wrote, for a device of the same name.
        device: None for the current CUDA device, or the CPU where there is none.

    Returns:
        How many choices were taken.

    Raises:
        ChoicesNotImported: the file cannot be read, or holds no choices for this device.
        ArgumentType: the path is none.
        TuneDevice: the device is none, or is not there.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentType("path of tune.import_choices", path, "the name of a file")
    table = _table(device)
    entries = _read(Path(path), table.device)
    taken = {key: dataclasses.replace(entry, how="imported") for key, entry in entries.items()}
    table.change(taken, new_epoch=True)
    return len(taken)


def prune(
    unwanted: Callable[[str, ChoiceEntry], bool] = lambda key, entry: True,
    device: Device = None,
) -> int:
    """Remove choices, so that they are measured again; by default all of them.

    Args:
        unwanted: given a choice's key and entry, whether to remove it.
        device: None for the current CUDA device, or the CPU where there is none.

    Returns:
        How many choices were removed.

    Raises:
        ArgumentType: ``unwanted`` is no function.
        TuneDevice: the device is none, or is not there.
    """
    if not callable(unwanted):
        raise ArgumentType("unwanted of tune.prune", unwanted, "a function of a key and an entry")
    table = _table(device)
    before = len(table.entries)
    table.change({}, unwanted, new_epoch=True)
    return before - len(table.entries)


def _read(path: Path, device: str) -> dict[str, ChoiceEntry]:
    advice = "give the file of choices that fusepass wrote where a device of this name was tuned"
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ChoicesNotImported(path, "it is no text", advice) from error
    except (OSError, ValueError) as error:  # ValueError: no name of a file, as with a NUL in it
        raise ChoicesNotImported(path, f"it cannot be read ({error})", advice) from error
    try:
        return parse(text, device)[1]
    except ValueError as error:
        raise ChoicesNotImported(path, f"{error} (this device is {device!r})", advice) from error


def _table(given: Device) -> ChoiceTable:
    """The table of a device a caller named."""
    try:
        current = "cuda" if torch.cuda.is_available() else "cpu"
        device = torch.device(current if given is None else given)
    except (RuntimeError, TypeError) as error:
        raise TuneDevice(given, str(error)) from None
    if device.type not in ("cpu", "cuda"):
        raise TuneDevice(given, "choices are kept for CUDA devices and the CPU")
    try:
        return table_for(device)
    except (RuntimeError, AssertionError) as error:  # torch's ways to say that it is not there
        raise TuneDevice(given, str(error)) from error
