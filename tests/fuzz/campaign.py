"""Many programs of one seed, over the cores of a machine; what came of them as JSON."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.fuzz.generate import seeded
from tests.fuzz.shapes import LOOPS, MECHANISMS, SHAPES, TRIPS

CHUNK = 20  # programs a worker takes at a time
CHUNKS_OF_A_POOL = 25  # for each worker of it
_COUNTED = (*SHAPES, *LOOPS, *TRIPS)
PATIENCE = 120  # seconds for one program, after which it counts as hanging


@dataclass
class Summary:
    """What came of a campaign.

    Attributes:
        seed: of the campaign; program ``i`` of it is ``seeded(seed, i)``.
        codegen: fusepass's.
        device: where arguments and state were.
        programs: how many were run.
        calls: compared, eager with compiled.
        sites: branches on tensors and round trips in them.
        trips: the round trips among them.
        treatments: (site, context) pairs by treatment; ``unseen`` where Dynamo never came.
        shapes: for each shape its sites, their share, and how many were removed, kept, unseen.
        mechanisms: for each the share of all sites that it serves.
        failures: differences that are fusepass's.
        dynamo: differences that are there with ``backend="eager"`` as well.
        broken: programs that could not be run: a crash of the process, or no end.
        unintended: programs in which eager raised what no statement of the program raises.
        no_backward: calls after which eager autograd refused to go backward.
        rounded: calls whose gradients differ by no more than the order of a sum.
        seconds: wall time.
    """

    seed: int
    codegen: str
    device: str = "cpu"
    programs: int = 0
    calls: int = 0
    sites: int = 0
    trips: int = 0
    treatments: dict[str, int] = field(default_factory=dict)
    shapes: dict[str, dict[str, float]] = field(default_factory=dict)
    mechanisms: dict[str, float] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    dynamo: list[dict[str, Any]] = field(default_factory=list)
    broken: list[dict[str, Any]] = field(default_factory=list)
    unintended: list[dict[str, Any]] = field(default_factory=list)
    no_backward: int = 0
    rounded: int = 0
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)


def campaign(
    programs: int,
    *,
    seed: int = 0,
    jobs: int = 1,
    codegen: str = "eager",
    device: str = "cpu",
    first: int = 0,
    most_seconds: float | None = None,
    progress: Callable[[Summary], None] | None = None,
) -> Summary:
    """Run the programs ``first``, ``first + 1``, ... of a seed.

    Args:
        programs: how many.
        seed: of the campaign.
        jobs: processes; 1 runs in this one.
        codegen: of fusepass.
        device: where arguments and state are.
        first: number of the first program.
        most_seconds: stop after this time, with what has been run until then.
        progress: called with what is known so far, after every few programs.
    """
    started = time.monotonic()
    summary = Summary(seed, codegen, device)
    sites: Counter[str] = Counter()
    fates: dict[str, Counter[str]] = {shape: Counter() for shape in _COUNTED}
    total: Counter[str] = Counter()
    chunks = [
        range(at, min(at + CHUNK, first + programs)) for at in range(first, first + programs, CHUNK)
    ]
    for records in _run(chunks, (seed, codegen, device), jobs):
        for record in records:
            _add(summary, record, sites, fates, total)
        summary.seconds = round(time.monotonic() - started, 1)
        if progress is not None:
            progress(summary)
        if most_seconds is not None and summary.seconds > most_seconds:
            break
    summary.treatments = dict(total.most_common())
    summary.shapes = {
        shape: {
            "sites": sites[shape],
            "share": round(sites[shape] / max(_of_kind(summary, sites, shape), 1), 4),
            **{fate: fates[shape][fate] for fate in ("removed", "keep", "unseen")},
            "removed_share": round(_share(fates[shape]), 4),
        }
        for shape in _COUNTED
    }
    summary.mechanisms = {
        name: round(sites[name] / max(summary.sites, 1), 4) for name in MECHANISMS
    }
    return summary


def _of_kind(summary: Summary, sites: Counter[str], shape: str) -> int:
    """The number of sites that the share of a shape is of."""
    if shape in LOOPS:
        return sites["tensor_loop"]
    return summary.trips if shape in TRIPS else summary.sites - summary.trips


def _share(fate: Counter[str]) -> float:
    """The share of sites without a graph break, among those that Dynamo came to."""
    return fate["removed"] / max(fate["removed"] + fate["keep"], 1)


def _add(
    summary: Summary,
    record: dict[str, Any],
    sites: Counter[str],
    fates: dict[str, Counter[str]],
    total: Counter[str],
) -> None:
    summary.programs += 1
    place = {"index": record["index"]}
    if "broken" in record:
        summary.broken.append({**place, "error": record["broken"], "source": record["source"]})
        return
    summary.calls += record["calls"]
    summary.no_backward += record["no_backward"]
    summary.rounded += record["rounded"]
    if record["unintended"]:
        summary.unintended.append({**place, "errors": record["unintended"]})
    for failure in record["failures"]:
        group = summary.dynamo if failure["dynamo"] else summary.failures
        group.append({**place, **failure, "source": record["source"]})
    for shapes, treatments in record["sites"]:
        summary.sites += 1
        summary.trips += not shapes or shapes[0] in TRIPS
        sites.update(shapes)
        sites.update(name for name, its in MECHANISMS.items() if not its.isdisjoint(shapes))
        for treatment in treatments:
            total[treatment or "unseen"] += 1
            fate = treatment if treatment == "keep" else "removed" if treatment else "unseen"
            for shape in shapes:
                fates[shape][fate] += 1


def _run(
    chunks: list[range], how: tuple[int, str, str], jobs: int
) -> Iterator[list[dict[str, Any]]]:
    if jobs == 1:
        for chunk in chunks:
            yield run_chunk(chunk, *how)
        return
    waiting = list(chunks)
    while waiting:
        # New processes now and then, for the memory that compiling leaves behind. (Not by
        # max_tasks_per_child: in Python 3.11 and 3.12 the pool then stops: python/cpython#115634.)
        now, waiting = waiting[: jobs * CHUNKS_OF_A_POOL], waiting[jobs * CHUNKS_OF_A_POOL :]
        lost: list[range] = []
        # A process that dies takes the pool with it: its programs are then tried one by one.
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
            tasks: dict[Future[list[dict[str, Any]]], range] = {
                pool.submit(run_chunk, chunk, *how): chunk for chunk in now
            }
            try:
                for task in as_completed(tasks):
                    try:
                        yield task.result()
                    except BrokenProcessPool:
                        lost.append(tasks[task])
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
        for chunk in lost:
            if len(chunk) > 1:
                waiting += [range(i, i + 1) for i in chunk]
            else:
                yield [_broken(chunk[0], how[0], "the process died")]


def run_chunk(indices: range, seed: int, codegen: str, device: str = "cpu") -> list[dict[str, Any]]:
    """Run some programs of a seed in this process; a record for each."""
    from fusepass.torch_private.dynamo.guards import guards_not_timed  # here, as in _record

    with quiet(), guards_not_timed():
        return [_record(index, seed, codegen, device) for index in indices]


def _record(index: int, seed: int, codegen: str, device: str) -> dict[str, Any]:
    from tests.fuzz.examine import examine  # here: workers import torch, the parent not

    program = seeded(seed, index)
    try:
        with _patience(PATIENCE):
            found = examine(program, codegen=codegen, device=device)
    except (Exception, NoEnd):  # noqa: BLE001 - whatever goes wrong is for the summary
        return _broken(index, seed, traceback.format_exc(limit=-6))
    return {
        "index": index,
        "source": program.source if found.failures else "",
        "calls": found.calls,
        "no_backward": found.no_backward,
        "rounded": found.rounded,
        "unintended": found.unintended,
        "failures": [asdict(failure) for failure in found.failures],
        "sites": [
            (sorted(site.shapes), list(treated.values()))
            for site, treated in zip(program.sites, found.treatments, strict=True)
        ],
    }


def _broken(index: int, seed: int, error: str) -> dict[str, Any]:
    return {"index": index, "broken": error, "source": seeded(seed, index).source}


class NoEnd(BaseException):
    """Raised in a program that takes too long; no handler of an error of its own takes it."""


@contextlib.contextmanager
def _patience(seconds: int) -> Iterator[None]:
    """Raise NoEnd in what takes longer; only the main thread of a process can."""

    def give_up(*_: object) -> None:
        raise NoEnd(f"no end within {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """One thread; no warnings and no logs: programs do on purpose what torch tells of."""
    import torch

    threads, level = torch.get_num_threads(), logging.root.manager.disable
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        torch.set_num_threads(threads)
