"""``explain`` compiles once for the report; ``last_report`` reports compiles that happened."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fusepass import torch_private
from fusepass.errors import NoReport
from fusepass.report import log
from fusepass.report.report import Report, report_of


def last_report(compiled: Any) -> Report:
    """What happened in the compiles of one torch.compile call so far.

    Args:
        compiled: what ``torch.compile(..., backend="fusepass")`` returned.

    Raises:
        NoReport: it has not been called yet, or is not fusepass's.
    """
    chain = list(torch_private.compiler_chain(torch_private.backend_of(compiled)))
    found = log.find(chain)
    if found is None or not (found.graphs or found.kept or found.breaks):
        raise NoReport(getattr(compiled, "__name__", type(compiled).__name__))
    return report_of(found)


def explain(fn: Any, /, *args: Any, **kwargs: Any) -> Report:
    """Compile and run ``fn`` once with these arguments and say what was decided.

    Parameters, buffers, tensor arguments, module attributes and the random state are put back. A
    callable that came from torch.compile is explained with its own mode, options and ``dynamic``;
    anything else with the defaults and the active ``fusepass.options`` scopes.

    Args:
        fn: a function, an nn.Module, or either of them compiled.
        *args: positional arguments of the call.
        **kwargs: keyword arguments of the call.

    Returns:
        The report of this compile; ``regions_per_call`` is counted during the call.
    """
    from fusepass.backend import fusepass

    wrapper = next(iter(_wrappers(fn)), None)
    mode, options, dynamic = torch_private.compile_wrapper_arguments(wrapper)
    target = torch_private.original_callable(fn)
    backend = _once(functools.partial(fusepass, mode=mode, options=options))
    compiled = torch.compile(target, backend=backend, dynamic=dynamic)
    with (
        _restored(target, args, kwargs),
        torch_private.room_for_recompiles(),
        log.count_entries() as entries,
    ):
        compiled(*args, **kwargs)
    found = log.find(list(torch_private.compiler_chain(torch_private.backend_of(compiled))))
    found = found if found is not None else log.CompileLog()
    torch_private.forget_code_compiled_for(
        backend, [g.code for g in found.graphs if g.code is not None]
    )
    return report_of(found, len(entries))


def reset() -> None:
    """Forget every compiled graph and report; callables compile again on their next call."""
    torch._dynamo.reset()
    from fusepass import backend

    backend.reset()


def _wrappers(fn: Any) -> Iterator[Any]:
    for link in torch_private.compiler_chain(torch_private.backend_of(fn)):
        if torch_private.compile_wrapper_arguments(link)[:2] != (None, {}):
            yield link


def _once(call: Callable[..., Any]) -> Callable[..., Any]:
    """A backend equal to no other, so that Dynamo must compile for it."""

    def backend(gm: Any, inputs: Any) -> Any:
        return call(gm, inputs)

    backend.compiler_fn = call  # type: ignore[attr-defined]
    return backend


@contextlib.contextmanager
def _restored(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
    """Put back everything a call may change."""
    modules = list(target.modules()) if isinstance(target, torch.nn.Module) else []
    tensors = list(target.parameters()) + list(target.buffers()) if modules else []
    tensors += [
        t for t in torch_private.tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)
    ]
    copies = [(t, t.detach().clone()) for t in tensors if not t.is_inference()]
    attributes = [(m, dict(m.__dict__), dict(m._buffers)) for m in modules]
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            for module, plain, buffers in attributes:
                module.__dict__.clear()
                module.__dict__.update(plain)
                module._buffers.clear()
                module._buffers.update(buffers)
            with torch.no_grad():
                for tensor, copy in copies:
                    if not torch.equal(tensor, copy):
                        tensor.copy_(copy)
