"""Read and change what torch.compile and Dynamo hold about compiles. Run on torch 2.11 to 2.15."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

import torch
import torch._dynamo
import torch._inductor
from torch import fx
from torch._C._dynamo.eval_frame import (
    _debug_get_cache_entry_list,
    _FrameAction,
    _FrameExecStrategy,
    reset_code,
    set_code_exec_strategy,
)
from torch._dynamo import exc
from torch._dynamo.backends.registry import register_backend
from torch._dynamo.convert_frame import input_codes
from torch._dynamo.eval_frame import cached_backends
from torch._dynamo.guards import DeletedGuardManagerWrapper

from fusepass.torch_private.dynamo.calls import WRITTEN_IN
from fusepass.torch_private.patches import Patches, Theirs


def transparent(error: Exception) -> Exception:
    """The same error as a subclass that Dynamo passes to the user unwrapped."""
    kind = type(error)
    both = type(kind.__name__, (kind, exc.ShortenTraceback), {"__module__": kind.__module__})
    clone = both.__new__(both, *error.args)
    clone.args = error.args
    clone.first_useful_frame = None
    return clone  # type: ignore[no-any-return]


def is_control_flow(error: BaseException) -> bool:
    """Whether an error tells Dynamo how to go on, rather than that something failed."""
    return isinstance(error, (exc.RestartAnalysis, exc.SkipFrame, exc.Unsupported, exc.UserError))


def compiler_chain(compiler: Any) -> Iterator[Any]:
    """The backend wrapped by Dynamo's and torch.compile's layers, from outside in."""
    seen = 0
    while compiler is not None and seen < 16:
        yield compiler
        seen += 1
        links = ("_torchdynamo_orig_backend", "compiler_fn", "func")
        inside = [getattr(compiler, link, None) for link in links] + [behind_buckets(compiler)]
        compiler = next((one for one in inside if callable(one)), None)


def backend_of(compiled: Any) -> Any:
    """The callback torch.compile put behind a compiled function or module, or None."""
    context = getattr(compiled, "dynamo_ctx", None)
    if context is not None:
        return getattr(context, "callback", None)
    for function in (compiled, getattr(compiled, "__func__", None)):
        for cell in getattr(function, "__closure__", None) or ():
            with contextlib.suppress(ValueError):
                inner = cell.cell_contents
                if hasattr(inner, "_torchdynamo_orig_backend"):
                    return inner
                if hasattr(getattr(inner, "callback", None), "_torchdynamo_orig_backend"):
                    return inner.callback
    return None


def backend_as_given(compiled: Any) -> Any:
    """The callable that torch.compile calls with each graph of ``compiled``, options included.

    None for something that was not compiled.
    """
    links = list(compiler_chain(backend_of(compiled)))
    wrappers = [link for link in links if type(link).__name__.startswith("_TorchCompile")]
    return (wrappers or links or [None])[0 if wrappers else -1]


def backend_name(backend: Any) -> str:
    """Name of a backend as one gives it to torch.compile."""
    inner = list(compiler_chain(backend))[-1]
    name = getattr(inner, "compiler_name", None) or getattr(inner, "__name__", None)
    return str(name or type(inner).__name__)


def original_callable(compiled: Any) -> Any:
    """The callable that torch.compile was given, or the argument itself if it is not compiled."""
    if hasattr(compiled, "_orig_mod"):
        return compiled._orig_mod
    return getattr(compiled, "_torchdynamo_orig_callable", compiled)


def compile_wrapper_arguments(wrapper: Any) -> tuple[str | None, Any, bool | None]:
    """``mode``, ``options`` and ``dynamic`` of one torch.compile call, from its backend wrapper.

    The options are as they were given, which may be anything.
    """
    kwargs = getattr(wrapper, "kwargs", None) or getattr(wrapper, "keywords", None) or {}
    return kwargs.get("mode"), kwargs.get("options") or {}, getattr(wrapper, "dynamic", None)


def room_for_recompiles() -> contextlib.AbstractContextManager[None]:
    """Let code that already has compiled versions be compiled once more."""
    limits = {"recompile_limit": 1024, "accumulated_recompile_limit": 4096}
    return torch._dynamo.config.patch(limits)  # type: ignore[no-any-return]


def _traced_codes() -> list[Any]:
    """Every code object Dynamo was asked about since the last reset."""
    return [code for code in (weak() for weak in input_codes.seen) if code is not None]


def trace_skipped_again() -> None:
    """Let Dynamo look once more at frames it has given up on, or stopped compiling.

    The mark is on the code object: a frame that one backend met with a graph break inside a loop is
    skipped for every backend from then on.
    """
    again = _FrameExecStrategy(_FrameAction.DEFAULT, _FrameAction.DEFAULT)
    for code in _traced_codes():
        set_code_exec_strategy(code, again)


@contextlib.contextmanager
def dynamic_shapes_unlearned() -> Iterator[None]:
    """Forget, on leaving, which sizes Dynamo has seen vary meanwhile."""
    from torch._dynamo.pgo import get_code_state

    before = copy.deepcopy(dict(get_code_state()))
    try:
        yield
    finally:
        state = get_code_state()
        state.clear()
        state.update(before)


def runs_code_of(code: Any, compiler: Any) -> bool:
    """Whether Dynamo holds a compiled version of a code object that was made for a callback."""
    if code is None:
        return False
    entries = _debug_get_cache_entry_list(code)
    return any(link is compiler for e in entries for link in compiler_chain(e.backend))


def forget_compiled_for(backend: Any) -> None:
    """Drop every compiled version made for ``backend``; those of other backends stay.

    Where a code object has both, ours are invalidated in place, as Dynamo does when something they
    guard on dies, and marked so that they do not count towards the user's recompile limit.
    """

    def is_ours(compiler: Any) -> bool:
        return any(link is backend for link in compiler_chain(compiler))

    for code in _traced_codes():
        entries = _debug_get_cache_entry_list(code)
        ours = [entry for entry in entries if is_ours(entry.backend)]
        if ours and len(ours) == len(entries):
            reset_code(code)
            continue
        for entry in ours:
            dead = DeletedGuardManagerWrapper("compiled to be explained")
            # Entries for another object do not count; `dead` is never a local of that name.
            dead.id_matched_objs = {"": lambda: backend}  # type: ignore[dict-item]
            extra_state = entry.guard_manager.extra_state
            if extra_state is not None:
                extra_state.invalidate(entry, dead)
    for key, value in list(cached_backends.items()):
        if is_ours(value):
            del cached_backends[key]


def compiled_in_place(module: Any) -> Any:
    """The compiled call that ``module.compile(...)`` put behind a module, or None."""
    return getattr(module, "_compiled_call_impl", None)


@contextlib.contextmanager
def without_compile_in_place(module: Any) -> Iterator[None]:
    """Call a module as if ``module.compile(...)`` had not been called on it."""
    with Patches() as patches:
        if compiled_in_place(module) is not None:
            patches.set(module, "_compiled_call_impl", None)
        yield


def code_of(target: Any) -> Any:
    """The code object Dynamo starts with for a function, method or module, or None."""
    forward = target.forward if isinstance(target, torch.nn.Module) else target
    return getattr(forward, "__code__", None)


def input_count(translator: Any) -> int:
    """How many inputs the graph being recorded has so far."""
    return len(translator.output.current_tracer.input_name_to_proxy)


def is_internal_file(path: str) -> bool:
    """Whether a source file holds stand-ins, Dynamo's or ours, and is not part of a program."""
    return is_dynamos_file(path) or path == WRITTEN_IN


def is_entrance(code: Any) -> bool:
    """Whether code is that of the wrapper through which a program enters compiled code."""
    return code.co_name == "compile_wrapper" and is_dynamos_file(code.co_filename)


def is_dynamos_file(path: str) -> bool:
    """Whether a source file holds Dynamo's stand-ins for builtins."""
    return "/torch/_dynamo/" in path.replace("\\", "/")


def behind_buckets(compiler: Any) -> Any:
    """The callback that gets the pieces, where ``compiler`` cuts graphs into them; else None."""
    return getattr(getattr(compiler, "__self__", None), "backend_compile_fn", None)


def hook_cuts(patches: Patches, on_cut: Callable[[fx.GraphModule], None]) -> None:
    """Have ``on_cut`` called with each graph, to edit it, before torch cuts it for DDP.

    While a wrapped module runs, Dynamo calls a ``DDPOptimizer`` in place of the backend. That cuts
    a graph where a bucket of parameters is full, so that gradients can be exchanged while the rest
    of the backward runs, and hands the pieces to the backend one by one.
    """
    from torch._dynamo.backends.distributed import DDPOptimizer

    def compile_fn(theirs: Theirs, self: Any, gm: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        on_cut(gm)
        return theirs(self, gm, *args, **kwargs)

    patches.put(DDPOptimizer, "compile_fn", compile_fn)


_registering = threading.RLock()
_as_torch_has_it: list[FunctionType] = []  # one, once the code is exchanged


def allow_registering_twice() -> None:
    """Let a backend be registered again under its own name, which changes nothing.

    ``lookup_backend`` looks whether a name is registered, imports what its entry point names and
    registers it, all without a lock. An import of fusepass takes a while, so threads that compile
    for the first time at once all come to the registration, and each but the first failed there.
    The function's code is exchanged, not the function: these threads are about to call the very
    object they read before.
    """
    with _registering:
        code = register_backend.__code__
        if _as_torch_has_it or code.co_varnames[:3] != ("compiler_fn", "name", "tags"):
            return
        scope, defaults = register_backend.__globals__, register_backend.__defaults__
        _as_torch_has_it.append(FunctionType(code, scope, "register_backend", defaults))
        register_backend.__code__ = _register_backend.__code__


def _register_backend(
    compiler_fn: Callable[..., Any] | None = None,
    name: str | None = None,
    tags: Sequence[str] = (),
) -> Any:
    # Runs with the globals of torch's module, so it names nothing of this one.
    from fusepass.torch_private.dynamo.compile_state import registered

    return registered(compiler_fn, name, tags)


def registered(compiler_fn: Callable[..., Any] | None, name: str | None, tags: Any) -> Any:
    """Do what ``register_backend`` does, once for each name and function."""
    (register,) = _as_torch_has_it
    with _registering:
        held = register.__globals__["_COMPILER_FNS"].get(name)
        if held is not None and held is compiler_fn:
            return compiler_fn
        return register(compiler_fn, name, tags)
