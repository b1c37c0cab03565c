"""Read and change what torch.compile and Dynamo hold about compiles. Run on torch 2.11 to 2.15."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
import torch._dynamo
import torch._inductor

from fusepass.torch_private.dynamo.calls import written_out
from fusepass.torch_private.dynamo.checks import WRITTEN_IN
from fusepass.torch_private.dynamo.ddp import behind_buckets


def transparent(error: Exception) -> Exception:
    """The same error as a subclass that Dynamo passes to the user unwrapped."""
    from torch._dynamo.exc import ShortenTraceback

    kind = type(error)
    both = type(kind.__name__, (kind, ShortenTraceback), {"__module__": kind.__module__})
    clone = both.__new__(both, *error.args)
    clone.args = error.args
    clone.first_useful_frame = None
    return clone  # type: ignore[no-any-return]


def is_control_flow(error: BaseException) -> bool:
    """Whether an error tells Dynamo how to go on, rather than that something failed."""
    from torch._dynamo import exc

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
    """What torch.compile calls with each graph of ``compiled``, mode and options included.

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
    """What torch.compile was given, or the argument itself when it is not a compiled callable."""
    if hasattr(compiled, "_orig_mod"):
        return compiled._orig_mod
    return getattr(compiled, "_torchdynamo_orig_callable", compiled)


def compile_wrapper_arguments(wrapper: Any) -> tuple[str | None, Any, bool | None]:
    """``mode``, ``options`` and ``dynamic`` of one torch.compile call, from its backend wrapper.

    The options are as they were given, which may be anything.
    """
    kwargs = getattr(wrapper, "kwargs", None) or getattr(wrapper, "keywords", None) or {}
    return kwargs.get("mode"), kwargs.get("options") or {}, getattr(wrapper, "dynamic", None)


@contextlib.contextmanager
def room_for_recompiles() -> Iterator[None]:
    """Let code that already has compiled versions be compiled once more."""
    with torch._dynamo.config.patch(recompile_limit=1024, accumulated_recompile_limit=4096):
        yield


def _traced_codes() -> list[Any]:
    """Every code object Dynamo was asked about since the last reset."""
    from torch._dynamo.convert_frame import input_codes

    return [code for code in (weak() for weak in input_codes.seen) if code is not None]


def trace_skipped_again() -> None:
    """Let Dynamo look once more at frames it has given up on, or stopped compiling.

    The mark is on the code object: a frame that one backend met with a graph break inside a loop is
    skipped for every backend from then on.
    """
    from torch._C._dynamo.eval_frame import _FrameAction as FrameAction
    from torch._C._dynamo.eval_frame import _FrameExecStrategy as FrameExecStrategy
    from torch._C._dynamo.eval_frame import set_code_exec_strategy

    again = FrameExecStrategy(FrameAction.DEFAULT, FrameAction.DEFAULT)
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
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

    if code is None:
        return False
    entries = _debug_get_cache_entry_list(code)
    return any(link is compiler for e in entries for link in compiler_chain(e.backend))


def forget_compiled_for(backend: Any) -> None:
    """Drop every compiled version made for ``backend``; those of other backends stay.

    Where a code object has both, ours are invalidated in place, as Dynamo does when something they
    guard on dies, and marked so that they do not count towards the user's recompile limit.
    """
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list, reset_code
    from torch._dynamo.eval_frame import cached_backends
    from torch._dynamo.guards import DeletedGuardManagerWrapper

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
    """What ``module.compile(...)`` put behind a module's call, or None."""
    return getattr(module, "_compiled_call_impl", None)


@contextlib.contextmanager
def without_compile_in_place(module: Any) -> Iterator[None]:
    """Call a module as if ``module.compile(...)`` had not been called on it."""
    held = compiled_in_place(module)
    if held is not None:
        module._compiled_call_impl = None
    try:
        yield
    finally:
        if held is not None:
            module._compiled_call_impl = held


def code_of(target: Any) -> Any:
    """The code object Dynamo starts with for a function, method or module, or None."""
    forward = target.forward if isinstance(target, torch.nn.Module) else target
    return getattr(forward, "__code__", None)


def input_count(translator: Any) -> int:
    """How many inputs the graph being recorded has so far."""
    return len(translator.output.current_tracer.input_name_to_proxy)


def is_internal_file(path: str) -> bool:
    """Whether a source file holds stand-ins, Dynamo's or ours, and is not part of a program."""
    return is_dynamos_file(path) or path in (written_out.__code__.co_filename, WRITTEN_IN)


def is_entrance(code: Any) -> bool:
    """Whether code is that of the wrapper through which a program enters compiled code."""
    return code.co_name == "compile_wrapper" and is_dynamos_file(code.co_filename)


def is_dynamos_file(path: str) -> bool:
    """Whether a source file holds Dynamo's stand-ins for builtins."""
    return "/torch/_dynamo/" in path.replace("\\", "/")
