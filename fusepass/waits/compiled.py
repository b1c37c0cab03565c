"""One call of a compiled program, watched: which waits remain, and what fusepass decided."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from fusepass import torch_private
from fusepass.report import log
from fusepass.report.decision import Decision
from fusepass.report.explain import as_if_first, compiled_once, found_for
from fusepass.report.report import report_of
from fusepass.report.restore import everything_restored
from fusepass.waits.graph import GraphWait, waits_in_graph
from fusepass.waits.observe import Wait, Watch

ENTERED: tuple[CodeType, ...] = (log.run_counted.__code__,)


@dataclass(frozen=True)
class CompiledCall:
    """What was seen of one call.

    Attributes:
        waits: in Python code around and between the graphs, and in the graphs where it was seen.
        in_graphs: calls in the graphs that wait, once for each time their graph was entered.
        decisions: fusepass's; none for another backend.
    """

    waits: list[Wait]
    in_graphs: list[GraphWait]
    decisions: tuple[Decision, ...] = ()


def watch_compiled(fn: Any, target: Any, args: Any, kwargs: Any, watch: Watch) -> CompiledCall:
    """Compile ``fn`` anew with fusepass, call it twice and watch the second call.

    Args:
        fn: as for :func:`fusepass.explain`.
        target: what the user wrote: state reachable from it is put back after each call.
        args: positional arguments of the call.
        kwargs: keyword arguments of the call.
        watch: made for ``ENTERED``.
    """
    with compiled_once(fn) as compiled:
        entries = _watched(compiled, target, args, kwargs, watch)
        decisions = report_of(found_for(compiled)).decisions
    return CompiledCall(watch.waits, _inside(entries), decisions)


def watch_other_backend(fn: Any, target: Any, args: Any, kwargs: Any, watch: Watch) -> CompiledCall:
    """The same for a callable that another backend compiled, with that backend."""
    given = torch_private.compiled_in_place(fn) or fn
    inner = torch_private.backend_as_given(given)
    dynamic = next(
        (
            found
            for link in torch_private.compiler_chain(torch_private.backend_of(given))
            if (found := torch_private.compile_wrapper_arguments(link)[2]) is not None
        ),
        None,
    )

    def backend(gm: Any, inputs: Any) -> Any:
        record = log.GraphRecord(type(gm).__name__, "", 0)
        record.waits = waits_in_graph(gm, [])
        return log.counting(inner(gm, inputs), record)

    with as_if_first(target, backend):
        compiled = torch.compile(target, backend=backend, dynamic=dynamic)
        entries = _watched(compiled, target, args, kwargs, watch)
    return CompiledCall(watch.waits, _inside(entries))


def _watched(
    compiled: Any, target: Any, args: Any, kwargs: Any, watch: Watch
) -> list[log.GraphRecord]:
    with _unheard(), log.count_entries(), everything_restored(target, args, kwargs):
        compiled(*args, **kwargs)
    with _unheard(), log.count_entries() as entries, everything_restored(target, args, kwargs):
        watch.call(compiled, args, kwargs, eager=False)
    return entries


def _inside(entries: list[log.GraphRecord]) -> list[GraphWait]:
    return [wait for entry in entries for wait in entry.waits]


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """What the program prints is printed once, by its first call."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
