"""Dynamo: who compiles, and hooks into the trace. Run on torch 2.11, 2.13, 2.15."""

from __future__ import annotations

import contextlib
import copy
import dis
import functools
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
import torch._dynamo
import torch._inductor
from torch import fx

from fusepass.torch_private.calls import (
    AskedHandler,
    CallHandler,
    hook_calls,
    hook_questions,
    written_out,
)
from fusepass.torch_private.stack import is_any_tensor, realized


def transparent(error: Exception) -> Exception:
    """The same error as a subclass that Dynamo passes to the user unwrapped."""
    from torch._dynamo.exc import ShortenTraceback

    kind = type(error)
    both = type(kind.__name__, (kind, ShortenTraceback), {"__module__": kind.__module__})
    clone = both.__new__(both, *error.args)
    clone.args = error.args
    clone.first_useful_frame = None
    return clone  # type: ignore[no-any-return]


def compiler_chain(compiler: Any) -> Iterator[Any]:
    """The backend wrapped by Dynamo's and torch.compile's layers, from outside in."""
    seen = 0
    while compiler is not None and seen < 16:
        yield compiler
        seen += 1
        for link in ("_torchdynamo_orig_backend", "compiler_fn", "func"):
            inner = getattr(compiler, link, None)
            if inner is not None and callable(inner):
                compiler = inner
                break
        else:
            return


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


def original_callable(compiled: Any) -> Any:
    """What torch.compile was given, or the argument itself when it is not a compiled callable."""
    if hasattr(compiled, "_orig_mod"):
        return compiled._orig_mod
    return getattr(compiled, "_torchdynamo_orig_callable", compiled)


def compile_wrapper_arguments(wrapper: Any) -> tuple[str | None, dict[str, Any], bool | None]:
    """``mode``, ``options`` and ``dynamic`` of one torch.compile call, from its backend wrapper."""
    kwargs = getattr(wrapper, "kwargs", None) or getattr(wrapper, "keywords", None) or {}
    return kwargs.get("mode"), dict(kwargs.get("options") or {}), getattr(wrapper, "dynamic", None)


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
    return "/torch/_dynamo/" in path.replace("\\", "/") or path == _STAND_INS


_JUMPS = {
    "POP_JUMP_IF_TRUE": True,
    "POP_JUMP_IF_FALSE": False,
    "POP_JUMP_FORWARD_IF_TRUE": True,
    "POP_JUMP_FORWARD_IF_FALSE": False,
    "POP_JUMP_BACKWARD_IF_TRUE": True,
    "POP_JUMP_BACKWARD_IF_FALSE": False,
    "JUMP_IF_TRUE_OR_POP": True,
    "JUMP_IF_FALSE_OR_POP": False,
}


def jump_kind(opname: str) -> tuple[bool, bool]:
    """For a conditional jump: (jumps when true, keeps the tested value if it jumps)."""
    return _JUMPS[opname], opname.endswith("_OR_POP")


_STAND_INS = written_out.__code__.co_filename
_IDENTITY_TESTS = ("IS_OP", "CONTAINS_OP", "BINARY_SUBSCR", "STORE_SUBSCR", "BUILD_MAP", "CALL")

ItemHandler = Callable[[Any, Any, Callable[[], Any]], Any]
TruthHandler = Callable[[Any, Any], Any]
JumpHandler = Callable[[Any, Any, Callable[[Any, Any], None]], None]
GraphHandler = Callable[[Any, fx.GraphModule, Callable[[], Any]], Any]
BreakHandler = Callable[[Any, str, Any], None]
RaiseHandler = Callable[[Any, Any], None]


def install_hooks(
    on_item: ItemHandler,
    on_truth: TruthHandler,
    on_jump: JumpHandler,
    on_identity: Callable[[Any, Callable[[], list[Any]]], None],
    on_graph: GraphHandler,
    on_break: BreakHandler,
    on_raise: RaiseHandler,
    on_error: Callable[[Any, Exception], None],
    on_call: CallHandler,
    on_asked: AskedHandler,
) -> Callable[[], None]:
    """Put our handlers in front of Dynamo's; returns the function that takes them out again.

    Args:
        on_item: called as ``(translator, tensor, read)`` at ``tensor.item()`` and what
            amounts to it; must return ``read()`` or a tracked tensor in its place.
        on_truth: called as ``(translator, tensor)`` at ``bool(tensor)``; gives the tracked tensor
            that may stand for its truth value, or None.
        on_jump: called as ``(translator, instruction, original)`` at each conditional jump.
        on_identity: called as ``(translator, compared)`` before an operation that may look at which
            object a value is (``is``, ``id``, ``in``, dict keys); ``compared()`` gives the values.
        on_graph: called as ``(output_graph, gm, compile)`` when a graph is complete; must return
            ``compile()`` or raise.
        on_break: called as ``(translator, reason, exception)`` before a graph break is logged.
        on_raise: called as ``(translator, instruction)`` before a ``raise`` statement.
        on_error: called as ``(translator, exception)`` when an error of the traced code, or of
            torch about it, is about to end the trace of a frame; may raise instead.
        on_call: see :func:`~fusepass.torch_private.calls.hook_calls`.
        on_asked: see :func:`~fusepass.torch_private.calls.hook_questions`.
    """
    from torch._dynamo import symbolic_convert
    from torch._dynamo.output_graph import OutputGraph

    undo: list[Callable[[], None]] = []
    base = symbolic_convert.InstructionTranslatorBase
    kinds = [base, *_all_subclasses(base)]
    for kind in kinds:
        table = kind.dispatch_table
        for opname in _JUMPS:
            opcode = dis.opmap.get(opname)
            if opcode is None or table[opcode] is None:
                continue
            original = table[opcode]
            table[opcode] = _jump_hook(on_jump, original)
            undo.append(functools.partial(table.__setitem__, opcode, original))

        for opname in _IDENTITY_TESTS:
            opcode = dis.opmap.get(opname)
            if opcode is None or table[opcode] is None:
                continue
            original = table[opcode]
            table[opcode] = _identity_hook(on_identity, on_truth, original)
            undo.append(functools.partial(table.__setitem__, opcode, original))

        opcode = dis.opmap["RAISE_VARARGS"]
        original = table[opcode]
        table[opcode] = _raise_hook(on_raise, original)
        undo.append(functools.partial(table.__setitem__, opcode, original))

    undo.append(_hook_items(on_item))
    undo.append(hook_calls(on_call))
    undo.append(hook_questions(on_asked))
    call_user_compiler = OutputGraph.call_user_compiler

    @functools.wraps(call_user_compiler)
    def with_graph(self: Any, gm: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        return on_graph(self, gm, lambda: call_user_compiler(self, gm, *args, **kwargs))

    OutputGraph.call_user_compiler = with_graph  # type: ignore[method-assign]
    undo.append(lambda: setattr(OutputGraph, "call_user_compiler", call_user_compiler))

    log_graph_break = base.log_graph_break

    @functools.wraps(log_graph_break)
    def with_break(
        self: Any, code_options: Any, reason: str = "", exc: Any = None, **kw: Any
    ) -> Any:
        if not getattr(exc, "logged", False):
            on_break(self, reason, exc)
        return log_graph_break(self, code_options, reason=reason, exc=exc, **kw)

    base.log_graph_break = with_break  # type: ignore[method-assign]
    undo.append(lambda: setattr(base, "log_graph_break", log_graph_break))

    undo.append(_install_error_hook(on_error))

    def uninstall() -> None:
        while undo:
            undo.pop()()

    return uninstall


def _install_error_hook(on_error: Callable[[Any, Exception], None]) -> Callable[[], None]:
    from torch._dynamo import exc
    from torch._dynamo.symbolic_convert import InstructionTranslator
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    own = vars(InstructionTranslator).get("run")
    run = InstructionTranslator.run

    @functools.wraps(run)
    def with_error(self: Any) -> None:
        try:
            run(self)
        except (exc.TorchRuntimeError, exc.UserError, GuardOnDataDependentSymNode) as error:
            on_error(self, error)
            raise

    InstructionTranslator.run = with_error  # type: ignore[method-assign]
    if own is None:
        return lambda: delattr(InstructionTranslator, "run")
    return lambda: setattr(InstructionTranslator, "run", own)


def _all_subclasses(kind: type) -> list[Any]:
    direct: list[Any] = kind.__subclasses__()
    return direct + [deeper for sub in direct for deeper in _all_subclasses(sub)]


def _hook_items(on_item: ItemHandler) -> Callable[[], None]:
    from torch._dynamo.variables import TensorVariable

    original = TensorVariable.call_method

    @functools.wraps(original)
    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name != "item" or args or kwargs:
            return original(self, tx, name, args, kwargs)
        return on_item(tx, self, lambda: original(self, tx, name, args, kwargs))

    TensorVariable.call_method = call_method  # type: ignore[method-assign]

    def undo() -> None:
        TensorVariable.call_method = original  # type: ignore[method-assign]

    return undo


def kept_between_restarts(frame: Any, name: str, make: Callable[[], Any]) -> Any:
    """A value that lives as long as Dynamo tries to compile one frame, restarts included.

    Args:
        frame: the output graph of the frame or, after an error has emptied that, its translator.
        name: of the value.
        make: makes it the first time.
    """
    translator = getattr(frame, "root_tx", None) or frame
    return translator.speculation_log.__dict__.setdefault(name, make())


def restart_frame(reason: str) -> NoReturn:
    """Discard what was traced of the frame and start again."""
    from torch._dynamo.exc import SpeculationRestartAnalysis

    raise SpeculationRestartAnalysis(restart_reason=reason)


@contextlib.contextmanager
def items_as_symbols(translator: Any) -> Iterator[None]:
    """Inside, ``tensor.item()`` gives an unknown number instead of a graph break."""
    mode = translator.fake_mode
    allowed = mode.allow_scalar_outputs
    mode.allow_scalar_outputs = True
    try:
        with torch._dynamo.config.patch(capture_scalar_outputs=True):
            yield
    finally:
        mode.allow_scalar_outputs = allowed


def _jump_hook(
    on_jump: JumpHandler, original: Callable[[Any, Any], None]
) -> Callable[[Any, Any], None]:
    def handler(translator: Any, instruction: Any) -> None:
        on_jump(translator, instruction, original)

    return handler


def _is_truth_of_tensor(translator: Any, instruction: Any) -> bool:
    """Whether an instruction is the call ``bool(tensor)``."""
    if instruction.opname != "CALL" or instruction.arg != 1 or len(translator.stack) < 3:
        return False
    value = translator.stack[-1]
    callee = (getattr(realized(held), "fn", None) for held in translator.stack[-3:-1])
    return any(fn is bool for fn in callee) and is_any_tensor(realized(value))


def _compared(translator: Any, instruction: Any) -> list[Any]:
    """Values on the stack whose identity an instruction may look at."""
    stack, name = translator.stack, instruction.opname
    if name == "IS_OP":
        pair = list(stack[-2:])
        return pair if all(is_any_tensor(realized(value)) for value in pair) else []
    if name == "CALL":
        callee = stack[-instruction.arg - 2 :][:2]
        is_id = any(getattr(realized(value), "fn", None) is id for value in callee)
        return list(stack[-1:]) if is_id else []
    if name == "BUILD_MAP":
        return list(stack[len(stack) - 2 * instruction.arg :: 2]) if instruction.arg else []
    value, container = (stack[-2], stack[-1]) if name == "CONTAINS_OP" else (stack[-1], stack[-2])
    return [] if is_any_tensor(realized(container)) else [value]


def _identity_hook(
    on_identity: Callable[[Any, Callable[[], list[Any]]], None],
    on_truth: TruthHandler,
    original: Callable[[Any, Any], None],
) -> Callable[[Any, Any], None]:
    def handler(translator: Any, instruction: Any) -> None:
        if _is_truth_of_tensor(translator, instruction):
            truth = on_truth(translator, realized(translator.stack[-1]))
            if truth is not None:
                del translator.stack[-3:]  # with the function and the slot for a method's object
                translator.push(truth)
                return
        on_identity(translator, lambda: _compared(translator, instruction))
        original(translator, instruction)

    return handler


def _raise_hook(
    on_raise: RaiseHandler, original: Callable[[Any, Any], None]
) -> Callable[[Any, Any], None]:
    def handler(translator: Any, instruction: Any) -> None:
        on_raise(translator, instruction)
        original(translator, instruction)

    return handler
