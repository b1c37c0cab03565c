"""Timing candidates against each other on the device: whole against whole, L2-cold, interleaved.

Launches are queued behind a kernel that only waits, as long as the host was seen to need for them,
so that the device never starves and events measure its time, not the host's; and in batches that
fit into a stream's queue: a host that waits for room there is late for the rest. Before each timed
call what earlier calls left in L2 is pushed out, by writing or by reading more than it holds. What
was written has to leave before anything else comes, which costs up to 8 us, more of one kernel than
of another; where a model writes little, as of few rows, reading is what comes before.
"""

from __future__ import annotations

import logging
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, TextIO, TypeVar

import torch
from torch import Tensor

from fusepass.torch_private.inductor import lowering
from fusepass.torch_private.inductor.lowering import keep_device_busy
from fusepass.tune.problems.base import Candidate, Problem

FEWEST_ROUNDS, MOST_ROUNDS = 5, 25
SMALLEST_GAIN = 0.01
_SEED = 2026
_SLACK = 1.5  # of what queueing took before: a host in use may take longer the next time
_ATTEMPTS = 4  # of a batch, when the host takes longer than it was seen to need
_CALLS_PER_BATCH = 100  # each some launches and two events
_QUEUE = 800  # what a stream's queue takes in for sure: it holds a thousand
_FASTEST = 4.0  # microseconds of the host for what enters the queue
_CYCLES_PER_MICROSECOND = 2000.0  # of the waiting kernel; a little above the fastest clocks


class NotEnoughMemory(Exception):
    """Timing would need more device memory than is free."""


class HostTooSlow(Exception):
    """The device had to wait for the host in nearly all rounds: no time would be its own."""


@dataclass(frozen=True)
class Samples:
    """Device times of each candidate, round by round, in microseconds."""

    rounds: Mapping[str, Sequence[float]]

    def medians(self) -> dict[str, float]:
        """Median time of each candidate."""
        return {name: statistics.median(times) for name, times in self.rounds.items()}

    def with_overhead(self, besides: Mapping[str, float]) -> Samples:
        """The same with what each candidate costs elsewhere, in microseconds."""
        return Samples({n: [t + besides[n] for t in times] for n, times in self.rounds.items()})

    def beats(self, name: str, other: str) -> bool:
        """Whether ``name`` is faster than ``other`` by more than the noise and more than 1 %."""
        gain, noise = self._ratio(name, other)
        return gain - 1 > max(SMALLEST_GAIN, noise)

    def disturbance(self) -> float:
        """The largest noise in a comparison with the first candidate, as a fraction."""
        baseline, *others = self.rounds
        return max((self._ratio(name, baseline)[1] for name in others), default=0.0)

    def _ratio(self, name: str, other: str) -> tuple[float, float]:
        """How many times as fast as ``other``, and half the interquartile range of that.

        Candidates of one round ran next to each other, so their ratio is free of slow drifts.
        """
        pairs = zip(self.rounds[other], self.rounds[name], strict=True)
        low, middle, high = statistics.quantiles([b / a for b, a in pairs], n=4)
        return middle, (high - low) / 2


def make_inputs(problem: Problem) -> tuple[Tensor | None, ...]:
    """A problem's random inputs; torch's own generators stay put.

    Raises:
        NotEnoughMemory: operands and results would not leave half of the free memory alone.
    """
    _ensure_room(problem.bytes_needed, problem.device)
    return problem.inputs(torch.Generator(problem.device).manual_seed(_SEED))


def _ensure_room(operands: int, device: torch.device) -> None:
    needed = operands + 2 * _l2_bytes(device)
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if needed > free / 2:
        raise NotEnoughMemory(f"{needed >> 20} MiB needed, {free >> 20} MiB free")


def time_on_device(
    calls: Mapping[str, Callable[[], object]],
    device: torch.device,
    seconds: float,
    *,
    after_reads: bool = False,
) -> Samples:
    """Time each call in interleaved rounds, for about ``seconds`` in all.

    Before each call L2 is full of what was read if ``after_reads``, else of what was written.

    Raises:
        HostTooSlow: the host is in use by others.
        Exception: whatever a call raises; names nothing, so time suspects by themselves first.
    """
    with torch.cuda.device(device):
        other = torch.zeros(_l2_bytes(device) // 2, device=device)  # twice as large
        flush = other.sum if after_reads else other.zero_
        _run_rounds(calls, flush, 1, 0.0)
        first, host = _run_rounds(calls, flush, 1, 0.0)
        once = sum(times[0] for times in first.values()) + 60.0 * len(calls)
        count = min(MOST_ROUNDS, max(FEWEST_ROUNDS, int(seconds * 1e6 / once)))
        rounds: dict[str, list[float]] = {name: [] for name in calls}
        fits = int(_QUEUE * _FASTEST / max(host, 1.0))  # rounds, were all the host does launches
        batch = max(1, min(_CALLS_PER_BATCH // len(calls), fits))
        for done in range(0, count, batch):
            for _ in range(_ATTEMPTS):
                planned = host * _SLACK
                times, host = _run_rounds(calls, flush, min(batch, count - done), planned)
                if host <= planned:  # else the device had to wait for the host
                    for name, some in times.items():
                        rounds[name] += some
                    break
        if min(map(len, rounds.values())) < FEWEST_ROUNDS:
            raise HostTooSlow(f"queueing a round took {host:.0f} µs, longer each time")
        return Samples(rounds)


def _run_rounds(
    calls: Mapping[str, Callable[[], object]],
    flush: Callable[[], object],
    count: int,
    host: float,
) -> tuple[dict[str, list[float]], float]:
    """Times of each call, and what the host took to queue one round, all in microseconds.

    ``host`` is what queueing a round will take; 0 for not keeping the device busy meanwhile.
    """
    names = list(calls)
    pending: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
    if host:
        keep_device_busy(int(host * count * _CYCLES_PER_MICROSECOND))
    began = time.perf_counter()
    for turn in range(count):
        for offset in range(len(names)):
            name = names[(turn + offset) % len(names)]
            before = torch.cuda.Event(enable_timing=True)
            after = torch.cuda.Event(enable_timing=True)
            flush()
            before.record()
            result = calls[name]()
            after.record()
            del result  # its memory serves the next call
            pending.append((name, before, after))
    host = (time.perf_counter() - began) * 1e6 / count
    torch.cuda.synchronize()
    times: dict[str, list[float]] = {name: [] for name in names}
    for name, before, after in pending:
        times[name].append(before.elapsed_time(after) * 1e3)
    return times, host


def _l2_bytes(device: torch.device) -> int:
    size: int = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)
    return size or 64 << 20


# --- Compiling candidates in threads --------------------------------------------------------------

logger = logging.getLogger("fusepass")

_COMPILED_AT_ONCE = 4


def compile_in_parallel(
    candidates: Sequence[Candidate],
    inputs: tuple[torch.Tensor | None, ...],
    device: torch.device,
) -> None:
    """Call those that compile once, in threads: compilers let go of the interpreter meanwhile.

    What fails here fails again, and is reported, when it is called for itself.
    """
    waiting = [one for one in candidates if one.compiles]
    if len(waiting) < 2:
        return
    torch.cuda.synchronize(device)  # the stream of this thread is not that of the others

    def called(one: Candidate) -> None:
        with torch.cuda.device(device), torch.no_grad():
            torch.cuda.synchronize(device)  # a thread has no context before it asks for something
            one.run(*inputs)
            torch.cuda.synchronize(device)

    with ThreadPoolExecutor(_COMPILED_AT_ONCE) as pool:
        calls = [pool.submit(copy_context().run, called, one) for one in waiting]
    for one, done in zip(waiting, calls, strict=True):
        if done.exception() is not None:
            logger.debug("fusepass: %s, called in a thread: %r", one.name, done.exception())


# --- A line on the terminal while candidates are compiled, for modes that take their time ---------

_WIDTH = 20
_T = TypeVar("_T")


def progress_bar(
    items: Sequence[_T], name: str, *, wanted: bool, stream: TextIO | None = None
) -> Iterator[_T]:
    """The items, with a bar that says how many of them are done; it is gone when all are.

    Nothing is written where nobody would see it move: into a file or a pipe.
    """
    out = sys.stderr if stream is None else stream
    if not wanted or not out.isatty():
        yield from items
        return
    try:
        for done, item in enumerate(items):
            filled = _WIDTH * done // len(items)
            bar = "#" * filled + "." * (_WIDTH - filled)
            out.write(f"\r\x1b[Kfusepass: {name} [{bar}] {done + 1} of {len(items)}")
            out.flush()
            yield item
    finally:
        out.write("\r\x1b[K")
        out.flush()


# --- Which candidates are as exact as eager, where products may be TF32 ---------------------------

_ROUNDING = 5e-5  # a sixth of the error of TF32, ten times that of sums in single precision


def sufficiently_exact(
    problem: Problem, candidates: Sequence[Candidate], mode: str
) -> list[Candidate]:
    """Those whose products are TF32 only if eager's are, tried on random inputs.

    Libraries compute some small products in single precision where TF32 is allowed. Operands are
    rounded alike, so that results differ by the order of sums only, or by what TF32 drops.

    Raises:
        NotEnoughMemory: the device is too full to try anything.
        Exception: the first candidate, the baseline, failed.
    """
    if not problem.may_be_tf32:
        return list(candidates)
    first, *others = candidates
    plain = torch.autocast("cuda", enabled=False)
    with lowering.real_tensors(), plain, torch.cuda.device(problem.device), torch.no_grad():
        inputs = make_inputs(problem)
        many = mode.startswith("max-autotune")
        if not many:
            compile_in_parallel(candidates, inputs, problem.device)
        eager, found = first.run(*inputs), [first]
        what = f"{problem.op} {problem.m}x{problem.k}x{problem.n}: comparing"
        for one in progress_bar(others, what, wanted=many):
            try:
                made = one.run(*inputs)
            except Exception as error:  # noqa: BLE001 - it fails again, and is reported, when timed
                logger.debug("fusepass: %s: %r", one.name, error)
            else:
                if _differs(made, eager):
                    logger.info("fusepass: %s is coarser than eager's for %s", one.name, problem)
                    continue
            found.append(one)
    return found


def _differs(made: Any, eager: Any) -> bool:
    """Whether results are further apart than single precision rounds, by root mean squares."""
    pairs = [(made, eager)] if isinstance(eager, torch.Tensor) else zip(made, eager, strict=True)
    for mine, theirs in pairs:
        finite = theirs.isfinite() & mine.isfinite()
        difference = torch.where(finite, mine - theirs, 0.0).double().norm()
        if bool(difference > _ROUNDING * torch.where(finite, theirs, 0.0).double().norm()):
            return True
    return False
