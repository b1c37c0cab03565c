"""``explain`` compiles once for the report; ``last_report`` reports compiles that happened."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fusepass import torch_private
from fusepass.errors import NoReport, NotAProgram
from fusepass.report import log
from fusepass.report.decision import in_short
from fusepass.report.report import Report, report_of
from fusepass.report.restore import everything_restored


def last_report(compiled: Any) -> Report:
    """What happened in the compiles of one torch.compile call so far.

    Args:
        compiled: what ``torch.compile(..., backend="fusepass")`` returned.

    Raises:
        NoReport: it has not been called yet, or is not fusepass's.
    """
    compiled = torch_private.compiled_in_place(compiled) or compiled
    found = log.find(_chain(compiled), torch_private.code_of(_target(compiled)))
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
    from fusepass.waits.left import left, looking

    if not callable(fn):
        raise NotAProgram(fn)
    watch = looking()
    with (
        everything_restored(_target(fn), args, kwargs),
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


@contextlib.contextmanager
def compiled_once(fn: Any) -> Iterator[Any]:
    """``fn`` compiled with fusepass as if for the first time; on leaving nothing of it is left.

    Args:
        fn: as for :func:`explain`.
    """
    from fusepass.backend import fusepass

    target, (mode, options, dynamic) = _target(fn), _arguments(fn)
    backend = _once(functools.partial(fusepass, mode=mode, options=options))
    with as_if_first(target, backend):
        compiled = torch.compile(target, backend=backend, dynamic=dynamic)
        try:
            yield compiled
        finally:
            log.forget(_chain(compiled))


@contextlib.contextmanager
def as_if_first(target: Any, backend: Any) -> Iterator[None]:
    """Compiles for ``backend`` inside find nothing learnt before, and leave nothing behind."""
    torch_private.trace_skipped_again()
    with (
        torch_private.without_compile_in_place(target),
        torch_private.dynamic_shapes_unlearned(),
        torch_private.room_for_recompiles(),
        log.trial(),
    ):
        try:
            yield
        finally:
            torch_private.forget_compiled_for(backend)


def found_for(compiled: Any) -> log.CompileLog:
    """What is on record for a callable compiled with fusepass."""
    return log.find(_chain(compiled)) or log.CompileLog()


def was_compiled_with_fusepass(fn: Any) -> bool:
    """Whether a callable came from torch.compile for fusepass (or an equal of it)."""
    from fusepass.backend import fusepass

    chain = _chain(torch_private.compiled_in_place(fn) or fn)
    return any(link is fusepass for link in chain)


def reset() -> None:
    """Forget every compiled graph and report; callables compile again on their next call."""
    torch.compiler.reset()
    from fusepass import backend

    backend.reset()


def _target(fn: Any) -> Any:
    """The function or module the user wrote."""
    return torch_private.original_callable(fn)


def _chain(compiled: Any) -> list[Any]:
    return list(torch_private.compiler_chain(torch_private.backend_of(compiled)))


def _arguments(fn: Any) -> tuple[str | None, dict[str, Any], bool | None]:
    """``mode``, ``options`` and ``dynamic`` a callable was compiled with."""
    compiled = torch_private.compiled_in_place(fn) or fn
    given = [torch_private.compile_wrapper_arguments(link) for link in _chain(compiled)]
    mode = next((m for m, _, _ in given if m is not None), None)
    options: Any = next((o for _, o, _ in given if o), {})
    return mode, options, next((d for _, _, d in given if d is not None), None)


def _once(call: Callable[..., Any]) -> Callable[..., Any]:
    """A backend equal to no other, so that Dynamo must compile for it."""

    def backend(gm: Any, inputs: Any) -> Any:
        return call(gm, inputs)

    backend.compiler_fn = call  # type: ignore[attr-defined]
    return backend
