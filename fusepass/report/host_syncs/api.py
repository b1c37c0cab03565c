"""``fusepass.syncs``: every host synchronisation of one call, and what fusepass does about it."""

from __future__ import annotations

import traceback
import warnings
from dataclasses import replace
from typing import Any

import torch

from fusepass.errors import FusepassError, NotAProgram, NotCompiled
from fusepass.report.explain import was_compiled_with_fusepass
from fusepass.report.host_syncs import cuda, residence
from fusepass.report.host_syncs.compiled import (
    ENTERED,
    CompiledCall,
    unheard,
    watch_compiled,
    watch_other_backend,
)
from fusepass.report.host_syncs.join import rows_of
from fusepass.report.host_syncs.observe import Wait, Watch, called
from fusepass.report.host_syncs.profiler_marks import MarkedWatch
from fusepass.report.host_syncs.result import Sync, Syncs
from fusepass.report.restore import everything_restored
from fusepass.torch_private.dynamo.compile_state import (
    backend_as_given,
    backend_name,
    compiled_in_place,
    original_callable,
    without_compile_in_place,
)


def syncs(fn: Any, /, *args: Any, **kwargs: Any) -> Syncs:
    """Every place where one call of ``fn`` makes the host wait for the device.

    The call is made as the program is, and compiled with fusepass (with ``fn``'s own mode and
    options, if it came from torch.compile for fusepass); what it changed is put back after each,
    as :func:`fusepass.explain` does. Without a GPU the CPU stands in for one: tensors that exist
    before the call count as on the device. What the program raises is raised;
    where only torch.compile raises, a warning says so and every wait counts as left.

    Args:
        fn: a function, an nn.Module, or either of them compiled with any backend.
        *args: positional arguments of the call.
        **kwargs: keyword arguments of the call.

    Returns:
        One row per line and kind; false where there is none.

    Raises:
        NotAProgram: ``fn`` cannot be called.
    """
    return listed(fn, args, kwargs, with_fusepass=True)


def listed(fn: Any, args: Any, kwargs: Any, *, with_fusepass: bool) -> Syncs:
    """As :func:`syncs`; without fusepass all that is there remains."""
    if not callable(fn):
        raise NotAProgram(fn)
    target = original_callable(fn)
    as_if = residence.no_device()
    ours = was_compiled_with_fusepass(fn)
    given = backend_as_given(compiled_in_place(fn) or fn)
    before = _eager(target, args, kwargs, as_if)
    compiled = None
    if with_fusepass:
        compiled = _compiled(fn, target, args, kwargs, as_if)
    rows = rows_of(before, compiled)
    ran = "eager"
    if given is not None and not ours:
        ran = backend_name(given)
        other = watch_other_backend(fn, target, args, kwargs, _later(as_if))
        rows = _under(other, before, rows)
    return Syncs(rows, name_of(fn), _device(as_if), ran, ours)


def _eager(target: Any, args: Any, kwargs: Any, as_if: bool) -> list[Wait]:
    """Waits of the program as it is written."""
    watch = _watch((), residence.AsIf() if as_if else None)

    def fresh() -> Any:
        return everything_restored(target, args, kwargs)

    def watched() -> Any:
        return watch.call(target, args, kwargs, eager=True)

    def plain() -> Any:
        with torch.compiler.set_stance("force_eager"):
            return called(target, args, kwargs)

    with without_compile_in_place(target):
        if isinstance(watch, MarkedWatch):
            with fresh():
                plain()
            with unheard():
                return cuda.measure(watch, watched, fresh, plain)
        with fresh():
            watched()
    return watch.waits


def raised_by_program(error: BaseException) -> bool:
    """Whether the program as it is written raised what :func:`syncs` did, not what watches it."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    return _eager.__code__ in codes and called.__code__ in codes


def _compiled(fn: Any, target: Any, args: Any, kwargs: Any, as_if: bool) -> CompiledCall | None:
    """The call compiled with fusepass; None where torch.compile cannot compile it."""
    try:
        return watch_compiled(fn, target, args, kwargs, _later(as_if))
    except FusepassError:
        raise
    except Exception as error:  # noqa: BLE001 - what a compiler raises can be anything
        warnings.warn(NotCompiled(name_of(fn), error), stacklevel=4)
        return None


def _watch(entered: Any, as_if: residence.AsIf | None) -> Watch:
    """On CUDA the profiler tells, elsewhere the operations do."""
    if as_if is None and torch.cuda.is_available():
        return MarkedWatch(entered)
    return Watch(entered, as_if)


def _later(as_if: bool) -> Watch:
    return _watch(ENTERED, residence.AsIf(unknown=True) if as_if else None)


def _under(other: CompiledCall, before: list[Wait], rows: tuple[Sync, ...]) -> tuple[Sync, ...]:
    """Rows of a program that another backend compiled: what that backend leaves of them."""
    left = {(row.file, row.line, row.kind): row.remaining for row in rows_of(before, other)}
    made = []
    for row in rows:
        count = left.get((row.file, row.line, row.kind), 0)
        if count or not row.count:
            least = min(row.remaining, count or 1)
            made.append(replace(row, count=count, remaining=least, wait_us=None, idle_us=None))
    return tuple(made)


def name_of(fn: Any) -> str:
    """What to call a program in a message."""
    target = original_callable(fn)
    return str(getattr(target, "__qualname__", type(target).__name__))


def _device(as_if: bool) -> str:
    if as_if:
        return "no GPU here: tensors that exist before the call count as on one"
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and accelerator.type == "cuda":
        return torch.cuda.get_device_name()
    return str(accelerator)
