"""One call of a compiled program, watched: which waits remain, and what fusepass decided."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

import torch

from fusepass.report import log
from fusepass.report.decision import Decision
from fusepass.report.host_syncs import cuda
from fusepass.report.host_syncs.graph import read_back, waits_in_graph
from fusepass.report.host_syncs.kinds import READ, Kind
from fusepass.report.host_syncs.observe import Wait, Watch
from fusepass.report.host_syncs.profiler_marks import MarkedWatch
from fusepass.report.one_compile import as_if_first, compiled_once, found_for
from fusepass.report.report import report_of
from fusepass.report.restore import everything_restored
from fusepass.torch_private.dynamo.compile_state import (
    backend_as_given,
    backend_of,
    compile_wrapper_arguments,
    compiled_in_place,
    compiler_chain,
)

ENTERED: tuple[CodeType, ...] = (log.run_counted.__code__,)
_READS_NUMBERS = "items.py"  # of fusepass.capture
_WARM_UPS = 3  # CUDA graphs are recorded by the second call and replayed from the third


@dataclass(frozen=True)
class CompiledCall:
    """What was seen of one call.

    Attributes:
        waits: in Python code around and between the graphs, and in the graphs that were entered.
        decisions: fusepass's; none for another backend.
    """

    waits: list[Wait]
    decisions: tuple[Decision, ...] = ()


def watch_compiled(fn: Any, target: Any, args: Any, kwargs: Any, watch: Watch) -> CompiledCall:
    """Compile ``fn`` anew with fusepass, call it twice and watch the second call.

    State that can be reached from ``target``, what the user wrote, is put back after each call.
    """
    with compiled_once(fn) as compiled:
        seen = _watched(compiled, target, args, kwargs, watch)
        decisions = report_of(found_for(compiled)).decisions
    return CompiledCall(seen, decisions)


def watch_other_backend(fn: Any, target: Any, args: Any, kwargs: Any, watch: Watch) -> CompiledCall:
    """The same for a callable that another backend compiled, with that backend."""
    given = compiled_in_place(fn) or fn
    inner = backend_as_given(given)
    dynamic = next(
        (
            found
            for link in compiler_chain(backend_of(given))
            if (found := compile_wrapper_arguments(link)[2]) is not None
        ),
        None,
    )

    def backend(gm: Any, inputs: Any) -> Any:
        record = log.GraphRecord(type(gm).__name__, "", 0)
        record.waits = waits_in_graph(gm, [])
        return log.counting(inner(gm, inputs), record)

    with as_if_first(target, backend):
        compiled = torch.compile(target, backend=backend, dynamic=dynamic)
        return CompiledCall(_watched(compiled, target, args, kwargs, watch))


def _watched(compiled: Any, target: Any, args: Any, kwargs: Any, watch: Watch) -> list[Wait]:
    """Waits seen, with what in the graphs waits where that is not seen."""

    def fresh() -> Any:
        return everything_restored(target, args, kwargs)

    def plain() -> Any:
        return compiled(*args, **kwargs)

    def watched() -> Any:
        return watch.call(compiled, args, kwargs, eager=False)

    with unheard(), log.count_entries() as entries:
        if isinstance(watch, MarkedWatch):
            for _ in range(_WARM_UPS):
                with fresh():
                    plain()
            measured = cuda.measure(watch, watched, fresh)
            return [_in_program(as_read_back(wait)) for wait in measured]
        with fresh():
            plain()
        entries.clear()
        with fresh():
            watched()
    return every_wait(watch.waits, entries)


def every_wait(seen: Iterable[Wait], entries: Iterable[log.GraphRecord]) -> list[Wait]:
    """Waits seen of the program's own code, then what waits in and behind graphs entered."""
    own = [
        wait
        for wait in seen
        if wait.place.graph is None and as_read_back(wait).kind is not Kind.READ_BACK
    ]
    return own + [wait for entry in entries for wait in [*entry.waits, *read_back(entry)]]


def as_read_back(wait: Wait) -> Wait:
    """A wait of the code behind a graph, as such; a number read there is the program's own."""
    ours = wait.place.emitted not in ("", _READS_NUMBERS)
    return replace(wait, kind=Kind.READ_BACK) if ours else wait


def _in_program(wait: Wait) -> Wait:
    """A wait inside a graph, at the line of the program that the graph has it from."""
    record = wait.place.graph
    if record is None:
        return wait
    for inside in record.waits:
        if inside.kind is wait.kind or (inside.kind in READ and wait.kind in READ):
            found = inside.place
            place = replace(wait.place, file=found.file, line=found.line, graph=None)
            record.waits.remove(inside)
            record.waits.append(inside)  # the next one of this kind is another
            return replace(wait, kind=inside.kind, place=place)
    return replace(wait, place=replace(wait.place, graph=None))


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """What the program prints is printed once, by its first call."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
