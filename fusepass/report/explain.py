"""``explain`` compiles once for the report; ``last_report`` reports compiles that happened."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import torch

from fusepass.errors import NoReport, NotAProgram
from fusepass.report import log
from fusepass.report.decision import in_short
from fusepass.report.host_syncs.join import left, looking
from fusepass.report.one_compile import chain_of, compiled_once, found_for
from fusepass.report.report import Report, report_of
from fusepass.report.restore import everything_restored
from fusepass.torch_private.dynamo.compile_state import (
    code_of,
    compiled_in_place,
    original_callable,
)


def last_report(compiled: Any) -> Report:
    """What happened in the compiles of one torch.compile call so far.

    Args:
        compiled: what ``torch.compile(..., backend="fusepass")`` returned.

    Raises:
        NoReport: it has not been called yet, or is not fusepass's.
    """
    compiled = compiled_in_place(compiled) or compiled
    found = log.find(chain_of(compiled), code_of(original_callable(compiled)))
    if found is None or not (found.graphs or found.kept or found.breaks):
        raise NoReport(getattr(compiled, "__name__", type(compiled).__name__))
    return report_of(found)


def explain(fn: Any, /, *args: Any, **kwargs: Any) -> Report:
    """Compile and run ``fn`` once with these arguments and say what was decided.

    Parameters, buffers, gradients, tensor arguments, attributes, containers and the random state
    are put back, and callables compiled before stay compiled. A callable that came from
    torch.compile is explained with its own mode, options and ``dynamic``; anything else with the
    defaults and the active ``fusepass.options`` scopes. What the program raises is raised, with
    the report of what happened before: as a note, and as its attribute ``fusepass_report``.

    Args:
        fn: a function, an nn.Module, or either of them compiled.
        *args: positional arguments of the call.
        **kwargs: keyword arguments of the call.

    Returns:
        The report of this compile; ``regions_per_call`` is counted during the call, and ``syncs``
        has the host's waits seen in it.

    Raises:
        NotAProgram: ``fn`` cannot be called.
    """
    if not callable(fn):
        raise NotAProgram(fn)
    watch = looking()
    with (
        everything_restored(original_callable(fn), args, kwargs),
        compiled_once(fn) as compiled,
        log.count_entries() as entries,
    ):

        def reported() -> Report:
            report = report_of(found_for(compiled), len(entries))
            return dataclasses.replace(report, syncs=left(watch.waits, entries, report.decisions))

        try:
            watch.call(compiled, args, kwargs, eager=False)
        except Exception as error:
            _add_report(error, reported())
            raise
        return reported()


def _add_report(error: Exception, report: Report) -> None:
    """Give an error the report of what happened before it, if anything did."""
    if report.operations or report.decisions or report.graph_breaks:
        report = dataclasses.replace(report, raised=in_short(error))
        error.add_note(str(report))
        with contextlib.suppress(AttributeError):  # of a class that permits no other attributes
            error.fusepass_report = report  # type: ignore[attr-defined]


def was_compiled_with_fusepass(fn: Any) -> bool:
    """Whether a callable came from torch.compile for fusepass (or an equal of it)."""
    from fusepass.backend import fusepass

    chain = chain_of(compiled_in_place(fn) or fn)
    return any(link is fusepass for link in chain)


def reset() -> None:
    """Forget every compiled graph and report; callables compile again on their next call."""
    torch.compiler.reset()
    from fusepass import backend

    backend.reset()
