"""What happened in each compile, kept per torch.compile call for ``last_report`` and ``explain``.

Facts arrive in three ways: branches captured in a graph come with the graph; branches kept come by
source position (a later, successful capture of the same position replaces them); decisions of the
passes that run inside Inductor travel in its counters, so they also come back when a graph came
out of a cache.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from fusepass.report import cached_decisions
from fusepass.report.decision import Decision, Reason, Station

logger = logging.getLogger("fusepass")


@dataclass
class GraphRecord:
    """One graph handed on: where its frame is, how many operations, and what was decided."""

    name: str
    file: str
    line: int
    operations: int = 0
    decisions: list[Decision] = field(default_factory=list)
    positions: set[tuple[Any, ...]] = field(default_factory=set)
    options: Any = None
    asked: tuple[Any, Any] = (None, None)  # mode and options that torch.compile was given
    is_trial: bool = False  # whether fusepass compiled it for itself
    code: Any = None
    waits: list[Any] = field(default_factory=list)
    reads_back: bool = False  # whether the code behind it brings something to the host
    as_written: str | None = None  # why it has to be run op by op, if that is so
    undone: frozenset[str] = frozenset()  # rules that had to be switched off, which is no news

    def news(self, found: Iterable[Decision]) -> list[Decision]:
        """Those of some decisions that do not just say that a rule was switched off for a fault."""
        off = Reason.RULE_OFF
        return [d for d in found if d.reason_code is not off or d.rule not in self.undone]

    def decide(self, found: list[Decision]) -> None:
        """Add decisions; what a rule made of a captured branch takes the place of the capture."""
        settled = {(d.file, d.line) for d in found if d.station is Station.CAPTURE}
        self.decisions = [
            d
            for d in self.decisions
            if d.station is not Station.CAPTURE
            or d.treatment != "where"
            or (d.file, d.line) not in settled
        ] + found


@dataclass
class CompileLog:
    """Everything on record for one torch.compile call.

    Attributes:
        graphs: graphs in the order they were compiled.
        kept: branches left as graph breaks, by source position.
        breaks: graph breaks, as (reason, file, line), in order, each once.
        settled: what is left to Dynamo in every frame, and why, by rule, source position and dtype:
            numbers that Python needs; calls that may fail where the program handles the error;
            branches that write what arms in front may save for a backward, and branches of inlined
            functions whose arms save it.
        saved_names: where functions hold what a graph in front of a graph break may have saved for
            its backward, by the code of the function.
        inside: functions of libraries that lines of the program call, where something of a line is
            decided; by file and line, and by file and line of what is decided there.
        warned: functions of which a warning has said that they have no graph.
        numbers: what inputs held when functions were compiled, by code, source and dtype.
    """

    graphs: list[GraphRecord] = field(default_factory=list)
    kept: dict[tuple[Any, ...], Decision] = field(default_factory=dict)
    breaks: dict[tuple[str, str, int], None] = field(default_factory=dict)
    settled: dict[tuple[Any, ...], str] = field(default_factory=dict)
    saved_names: dict[CodeType, set[str]] = field(default_factory=dict)
    inside: dict[tuple[str, int], dict[tuple[str, int], str]] = field(default_factory=dict)
    warned: set[tuple[str, int, str]] = field(default_factory=set)
    numbers: dict[tuple[Any, ...], Any] = field(default_factory=dict)


_lock = threading.RLock()
_logs: dict[int, tuple[Any, CompileLog]] = {}
_current = threading.local()
_trial: contextvars.ContextVar[bool] = contextvars.ContextVar("fusepass_trial", default=False)
_counter: contextvars.ContextVar[list[GraphRecord] | None] = contextvars.ContextVar(
    "fusepass_entries", default=None
)


def log_of(compiler: Any) -> CompileLog:
    """The log of one torch.compile call, made on first use."""
    with _lock:
        entry = _logs.get(id(compiler))
        if entry is None:
            ref: Any = compiler
            key = id(compiler)
            with contextlib.suppress(TypeError):  # a callback that cannot be referred to weakly
                ref = weakref.ref(compiler, lambda _: _logs.pop(key, None))
            entry = (ref, CompileLog())
            _logs[id(compiler)] = entry
        return entry[1]


def find(compilers: list[Any], code: Any = None) -> CompileLog | None:
    """The log of the first of ``compilers`` (a callback and what it wraps) that has one.

    Torch runs one compiled version for all callbacks that are equal, so the log of an equal
    callback counts if it is about ``code``, the code object of what was compiled.
    """
    _settle()
    with _lock:
        for compiler in compilers:
            if id(compiler) in _logs:
                return _logs[id(compiler)][1]
    for held, found in logs():
        if any(type(held) is type(c) and held == c for c in compilers) and _is_about(found, code):
            return found
    return None


def _is_about(log: CompileLog, code: Any) -> bool:
    """Whether a log holds a graph, a branch or a graph break of a code object."""
    if code is None:
        return False
    if any(graph.code is code for graph in log.graphs):
        return True
    lines = [line for _, _, line in code.co_lines() if line is not None]
    first, last = min(lines, default=0), max(lines, default=0)
    places = [(d.file, d.line) for d in log.kept.values()] + [(f, n) for _, f, n in log.breaks]
    return any(file == code.co_filename and first <= line <= last for file, line in places)


def forget(compilers: list[Any]) -> None:
    """Drop the logs of these callbacks."""
    with _lock:
        for compiler in compilers:
            _logs.pop(id(compiler), None)


def logs() -> Iterator[tuple[Any, CompileLog]]:
    """Callbacks of torch.compile that are still there, with their logs."""
    with _lock:
        entries = list(_logs.values())
    for ref, found in entries:
        held = ref() if isinstance(ref, weakref.ref) else ref
        if held is not None:
            yield held, found


@contextlib.contextmanager
def trial() -> Iterator[None]:
    """What is compiled inside is fusepass's own, and forgotten afterwards."""
    token = _trial.set(True)
    try:
        yield
    finally:
        _trial.reset(token)
        with _lock:
            for key, (_, found) in list(_logs.items()):
                if found.graphs and all(graph.is_trial for graph in found.graphs):
                    del _logs[key]


def clear() -> None:
    """Forget everything (torch._dynamo.reset makes compiled callables compile again)."""
    global _open  # noqa: PLW0603  # one log per process, under the lock
    with _lock:
        _logs.clear()
        _open = None


def kept(compiler: Any, decision: Decision, position: tuple[Any, ...]) -> None:
    """Put a branch that keeps its graph break on record.

    One of a helper is at the line that calls it: of the calls of several lines each has a record.
    """
    with _lock:
        held = log_of(compiler).kept
        before, place = held.get(position), (decision.file, decision.line)
        if before is not None and (before.file, before.line) != place:
            held[*position, before.file, before.line] = before
        held[position] = decision


def inside(compiler: Any, place: tuple[str, int], helper: tuple[str, int], name: str) -> None:
    """Put on record that what is decided at a line of the program is in a helper that it calls."""
    with _lock:
        log_of(compiler).inside.setdefault(place, {})[helper] = name


def graph_break(compiler: Any, reason: str, file: str, line: int) -> bool:
    """Put a graph break on record; says whether it is news."""
    with _lock:
        known = log_of(compiler).breaks
        news = (reason, file, line) not in known
        known[reason, file, line] = None
        return news


def take_back(compiler: Any, broken: tuple[str, str, int], kept: Any) -> None:
    """Take a graph break off the record, which the next attempt to trace the frame may not meet."""
    with _lock:
        log = log_of(compiler)
        log.breaks.pop(broken, None)
        log.kept.pop(kept, None)


@contextlib.contextmanager
def compiling(frame: Any, again: GraphRecord | None = None) -> Iterator[GraphRecord]:
    """Collect what is decided while one graph is compiled, perhaps for a second time."""
    code = frame.code
    record = GraphRecord(
        code.co_name, code.co_filename, code.co_firstlineno, options=frame.options, code=code
    )
    record.asked, record.is_trial = frame.asked, _trial.get()
    record.decisions = frame.decisions
    record.positions = {site.place.position for site in frame.sites} | {*frame.round_trips}
    if again is not None:
        record.decisions, record.reads_back = list(again.decisions), again.reads_back
        record.as_written = again.as_written
    outer = current()
    _current.record = record
    _listen(record)
    try:
        yield record
        _settle()
        with _lock:
            log = log_of(frame.compiler)
            log.graphs.append(record)
            for position in record.positions:
                held = log.kept.get(position)
                # The break may be in compiled code, though another frame captured the position.
                broke = held and any((held.file, held.line) == (f, n) for _, f, n in log.breaks)
                if held is not None and not broke:
                    del log.kept[position]
        _summarise(record)
    finally:
        _current.record = outer


def counting(compiled: Callable[..., Any], record: GraphRecord) -> Callable[..., Any]:
    """The compiled graph, counting its entries while :func:`count_entries` is active."""
    if not are_counted():
        return compiled
    boxed = getattr(compiled, "_boxed_call", False)

    @functools.wraps(compiled)
    def entered(*args: Any) -> Any:
        return run_counted(record, compiled, args)

    if boxed:
        entered._boxed_call = True  # type: ignore[attr-defined]
    return entered


def run_counted(record: Any, compiled: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Enter a compiled graph; what runs above this frame is part of the graph of ``record``."""
    tally = _counter.get()
    if tally is not None:
        tally.append(record)
    return compiled(*args)


def are_counted() -> bool:
    """Whether :func:`count_entries` is active: someone looks at what is compiled now."""
    return _counter.get() is not None


@contextlib.contextmanager
def count_entries() -> Iterator[list[GraphRecord]]:
    """Graphs compiled inside are counted each time they are entered inside."""
    tally: list[GraphRecord] = []
    token = _counter.set(tally)
    try:
        yield tally
    finally:
        _counter.reset(token)


def current() -> GraphRecord | None:
    """The record of the graph being compiled on this thread, or None outside a compile of ours."""
    return getattr(_current, "record", None)


def compiling_later(record: GraphRecord | None) -> None:
    """Inductor starts on a graph of ``record`` after its compile: the backward, at its first call.

    Nothing tells us when it ends, so what arrives until the next compile or the next reading of a
    report is taken to be about it. Torch compiles one graph at a time.
    """
    if record is not None and current() is None:
        _listen(record)


_open: tuple[GraphRecord, dict[str, int]] | None = None  # who listens, and the counters before it


def _listen(record: GraphRecord) -> None:
    """From now on what passes inside Inductor say is about ``record``."""
    global _open  # noqa: PLW0603  # one log per process, under the lock
    with _lock:
        if _open is None or _open[0] is not record:
            _settle()
            _open = (record, cached_decisions.snapshot())


def _settle() -> None:
    """Hand what has arrived since :func:`_listen` to the one who listens."""
    global _open  # noqa: PLW0603  # one log per process, under the lock
    with _lock:
        if _open is not None:
            record, before = _open
            _open = None
            record.decisions += record.news(cached_decisions.decisions_since(before))


def _summarise(record: GraphRecord) -> None:
    if not logger.isEnabledFor(logging.INFO):
        return
    counts: dict[str, int] = {}
    for decision in record.decisions:
        key = decision.treatment or decision.outcome.value
        counts[key] = counts.get(key, 0) + 1
    parts = ", ".join(f"{n} {key}" for key, n in sorted(counts.items())) or "nothing to rewrite"
    logger.info(
        "fusepass: %s (%s:%d): %d operations; %s",
        record.name,
        record.file,
        record.line,
        record.operations,
        parts,
    )
