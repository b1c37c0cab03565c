"""A callable compiled once, as if for the first time, to see what becomes of it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fusepass.report import log
from fusepass.torch_private.dynamo.compile_state import (
    backend_of,
    compile_wrapper_arguments,
    compiled_in_place,
    compiler_chain,
    dynamic_shapes_unlearned,
    forget_compiled_for,
    original_callable,
    room_for_recompiles,
    trace_skipped_again,
    without_compile_in_place,
)


@contextlib.contextmanager
def compiled_once(fn: Any) -> Iterator[Any]:
    """``fn`` compiled with fusepass as if for the first time; on leaving nothing of it is left."""
    from fusepass.backend import fusepass

    target, (mode, options, dynamic) = original_callable(fn), _arguments(fn)
    backend = _once(functools.partial(fusepass, mode=mode, options=options))
    with as_if_first(target, backend):
        compiled = torch.compile(target, backend=backend, dynamic=dynamic)
        try:
            yield compiled
        finally:
            log.forget(chain_of(compiled))


@contextlib.contextmanager
def as_if_first(target: Any, backend: Any) -> Iterator[None]:
    """Compiles for ``backend`` inside find nothing learnt before, and leave nothing behind."""
    trace_skipped_again()
    with (
        without_compile_in_place(target),
        dynamic_shapes_unlearned(),
        room_for_recompiles(),
        log.trial(),
    ):
        try:
            yield
        finally:
            forget_compiled_for(backend)


def found_for(compiled: Any) -> log.CompileLog:
    """What is on record for a callable compiled with fusepass."""
    return log.find(chain_of(compiled)) or log.CompileLog()


def chain_of(compiled: Any) -> list[Any]:
    """The callables from what torch.compile returned to the backend."""
    return list(compiler_chain(backend_of(compiled)))


def _arguments(fn: Any) -> tuple[str | None, dict[str, Any], bool | None]:
    """``mode``, ``options`` and ``dynamic`` a callable was compiled with."""
    compiled = compiled_in_place(fn) or fn
    given = [compile_wrapper_arguments(link) for link in chain_of(compiled)]
    mode = next((m for m, _, _ in given if m is not None), None)
    options: Any = next((o for _, o, _ in given if o), {})
    return mode, options, next((d for _, _, d in given if d is not None), None)


def _once(call: Callable[..., Any]) -> Callable[..., Any]:
    """A backend equal to no other, so that Dynamo must compile for it."""

    def backend(gm: Any, inputs: Any) -> Any:
        return call(gm, inputs)

    backend.compiler_fn = call  # type: ignore[attr-defined]
    return backend
