"""Install hooks in Dynamo: jumps, truth, identity, items, raises, breaks, errors, graphs.

Run on torch 2.11 to 2.15.
"""

from __future__ import annotations

import contextlib
import dis
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch._dynamo
import torch._inductor
from torch import fx

from fusepass.torch_private.dynamo.calls import (
    AskedHandler,
    CallHandler,
    hook_calls,
    hook_questions,
)
from fusepass.torch_private.dynamo.comprehensions import hook_comprehensions
from fusepass.torch_private.dynamo.eager_frames import hook_frames
from fusepass.torch_private.dynamo.errors.error_hooks import (
    hook_errors,
    hook_failing_calls,
    hook_observed,
)
from fusepass.torch_private.dynamo.errors.raising import RaiseHandler, raise_hook
from fusepass.torch_private.dynamo.guards import hook_descriptors, hook_duplicates
from fusepass.torch_private.dynamo.identity import IdentityHandlers, hook_identity
from fusepass.torch_private.dynamo.imports import import_hook
from fusepass.torch_private.dynamo.kept_classes import hook_classes
from fusepass.torch_private.dynamo.print_calls import (
    LOADS,
    SpeakerHandler,
    SpeechHandler,
    hook_speech,
    speaker_on_top,
)
from fusepass.torch_private.dynamo.recorded_calls import hook_recorded
from fusepass.torch_private.dynamo.saved_tensors import hook_saving
from fusepass.torch_private.dynamo.scalars.float_inputs import hook_tensorified
from fusepass.torch_private.dynamo.scalars.unbacked_scalars import NumberHandlers, hook_numbers
from fusepass.torch_private.dynamo.scalars.unbacked_sizes import SizeHandler, hook_sizes
from fusepass.torch_private.dynamo.stack import is_any_tensor, realized, wrap_call
from fusepass.torch_private.inductor.freezing import hook_freezing

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


_IDENTITY_TESTS = ("IS_OP", "CONTAINS_OP", "BINARY_SUBSCR", "STORE_SUBSCR", "BUILD_MAP", "CALL")

ItemHandler = Callable[[Any, Any, Callable[[], Any]], Any]
TruthHandler = Callable[[Any, Any], Any]
JumpHandler = Callable[[Any, Any, Callable[[Any, Any], None]], None]
GraphHandler = Callable[[Any, fx.GraphModule, Callable[[], Any]], Any]
IdentityHandler = Callable[[Any, Callable[[], list[Any]]], None]
BreakHandler = Callable[[Any, str, Any], None]


@dataclass(frozen=True)
class Handlers:
    """What is called at each place of a trace; see :mod:`fusepass.capture.dynamo_hooks`.

    Attributes:
        on_item: called as ``(translator, tensor, read)`` at ``tensor.item()`` and what
            amounts to it; must return ``read()`` or a tracked tensor in its place.
        on_truth: called as ``(translator, tensor)`` at ``bool(tensor)`` and ``not tensor``; gives
            the tracked tensor that may stand for its truth value, or None.
        on_jump: called as ``(translator, instruction, original)`` at each conditional jump.
        on_identity: called as ``(translator, compared)`` before an operation that may look at which
            object a value is (``is``, ``id``, ``in``, dict keys); ``compared()`` gives the values.
        on_graph: called as ``(output_graph, gm, compile)`` when a graph is complete; must return
            ``compile()`` or raise.
        on_break: called as ``(translator, reason, exception)`` before a graph break is logged.
        on_raise: called as ``(translator, instruction)`` before a ``raise`` statement.
        on_import: called as ``(translator, name)`` before an ``import`` that loads a module.
        on_error: called as ``(translator, exception)`` when an error of the traced code, or of
            torch about it, is about to end the trace of a frame; may raise instead.
        on_fault: called in the same way when an error inside Dynamo or a backend is.
        on_observed: called as ``(translator, error)`` when Dynamo finds that an instruction other
            than a ``raise`` raises, before the program's own handlers are looked for.
        on_failing_call: called as ``(translator,)`` where a call fails on fake tensors; says
            whether the graph may break there, so that the call fails on the tensors themselves.
        on_frame: see :func:`~fusepass.torch_private.dynamo.eager_frames.hook_frames`.
        on_not: called as ``(translator, number)`` at ``not number``; gives a tracked value or None.
        on_skip: called as ``(translator, exception)`` when Dynamo is about to give a frame up.
        on_size: see :func:`~fusepass.torch_private.dynamo.scalars.unbacked_sizes.hook_sizes`.
        on_call: see :func:`~fusepass.torch_private.dynamo.calls.hook_calls`.
        on_asked: see :func:`~fusepass.torch_private.dynamo.calls.hook_questions`.
        on_speech: see :func:`~fusepass.torch_private.dynamo.print_calls.hook_speech`.
        on_speaker: called as ``(translator, height)`` when print or the like was loaded to be
            called; ``height`` is that of the stack below it.
        on_list: called as ``(translator, tensor, read)`` at ``tensor.tolist()``, like ``on_item``.
        on_recorded: see :func:`~fusepass.torch_private.dynamo.recorded_calls.hook_recorded`.
        numbers: see :class:`NumberHandlers` in ``scalars/unbacked_scalars.py``.
        identity: see :class:`~fusepass.torch_private.dynamo.identity.IdentityHandlers`.
        is_frozen, is_ours: called as ``(output_graph,)``, of the frame.
    """

    on_item: ItemHandler
    on_truth: TruthHandler
    on_jump: JumpHandler
    on_identity: IdentityHandler
    on_graph: GraphHandler
    on_break: BreakHandler
    on_raise: RaiseHandler
    on_import: Callable[[Any, str], None]
    on_error: Callable[[Any, Exception], None]
    on_fault: Callable[[Any, Exception], None]
    on_observed: Callable[[Any, Exception], None]
    on_failing_call: Callable[[Any], bool]
    on_frame: Callable[[Any, Any], bool]
    on_not: TruthHandler
    on_skip: Callable[[Any, Exception], None]
    on_size: SizeHandler
    on_call: CallHandler
    on_asked: AskedHandler
    on_speech: SpeechHandler
    on_speaker: SpeakerHandler
    on_list: ItemHandler
    on_recorded: Callable[[Any, fx.Node], None]
    numbers: NumberHandlers
    identity: IdentityHandlers
    is_frozen: Callable[[Any], bool]
    is_ours: Callable[[Any], bool]


def install_hooks(handlers: Handlers, *, capture: bool = True) -> Callable[[], None]:
    """Put our handlers in front of Dynamo's; returns the function that takes them out again.

    Args:
        handlers: to be called.
        capture: also those of branches and round trips; else only those that reports and frozen
            weights need.

    Raises:
        Exception: Dynamo has nothing of the name that a hook is put in front of, as a version that
            nobody has tried may; then no hook is left behind.
    """
    of_reports: list[Callable[[], Callable[[], None]]] = [
        lambda: _hook_graphs(handlers.on_graph),
        lambda: _hook_breaks(handlers.on_break),
    ]
    before: list[Callable[[], Callable[[], None]]] = [
        lambda: _hook_instructions(handlers),
        lambda: _hook_items(handlers.on_item, handlers.on_list),
        lambda: hook_numbers(handlers.numbers),
        lambda: hook_identity(handlers.identity),
        lambda: hook_calls(handlers.on_call),
        lambda: hook_questions(handlers.on_asked),
        lambda: hook_speech(handlers.on_speech),
        lambda: hook_sizes(handlers.on_size),
        lambda: hook_recorded(handlers.on_recorded),
    ]
    behind: list[Callable[[], Callable[[], None]]] = [
        lambda: hook_errors(handlers.on_error, handlers.on_skip, handlers.on_fault),
        lambda: hook_observed(handlers.on_observed),
        lambda: hook_failing_calls(handlers.on_failing_call),
        lambda: hook_saving(handlers.is_ours),
        lambda: hook_descriptors(handlers.is_ours),
        lambda: hook_duplicates(handlers.is_ours),
        lambda: hook_tensorified(handlers.is_ours),
        lambda: hook_classes(handlers.is_ours),
        lambda: hook_comprehensions(handlers.is_ours),
        lambda: hook_frames(handlers.on_frame),
    ]
    of_weights = [lambda: hook_freezing(handlers.is_frozen)]
    every = [*before, *of_reports, *behind, *of_weights]  # one may stand in front of another's
    with contextlib.ExitStack() as installed:
        for hook in every if capture else [*of_reports, *of_weights]:
            installed.callback(hook())
        return installed.pop_all().close


def _hook_instructions(handlers: Handlers) -> Callable[[], None]:
    """Handlers in the tables of opcodes, one table for each kind of translator."""
    from torch._dynamo import symbolic_convert

    wrappers: dict[str, Callable[[Any], Any]] = {
        **dict.fromkeys(_JUMPS, functools.partial(_jump_hook, handlers.on_jump)),
        **dict.fromkeys(
            _IDENTITY_TESTS,
            functools.partial(_identity_hook, handlers.on_identity, handlers.on_truth),
        ),
        "UNARY_NOT": functools.partial(_not_hook, handlers.on_truth, handlers.on_not),
        "IMPORT_NAME": functools.partial(import_hook, handlers.on_import),
        "RAISE_VARARGS": functools.partial(raise_hook, handlers.on_raise),
        **dict.fromkeys(LOADS, functools.partial(_load_hook, handlers.on_speaker)),
    }
    undo = contextlib.ExitStack()
    base = symbolic_convert.InstructionTranslatorBase
    undo.callback(setattr, base, "UNARY_NOT", base.UNARY_NOT)
    base.UNARY_NOT = wrappers["UNARY_NOT"](base.UNARY_NOT)  # called by "not in"
    for table in [kind.dispatch_table for kind in (base, *_all_subclasses(base))]:
        for opname, wrapped in wrappers.items():
            opcode = dis.opmap.get(opname)
            if opcode is None or opcode >= len(table) or table[opcode] is None:
                continue
            original = table[opcode]
            table[opcode] = wrapped(original)
            undo.callback(table.__setitem__, opcode, original)
    return undo.close


def _hook_graphs(on_graph: GraphHandler) -> Callable[[], None]:
    from torch._dynamo.output_graph import OutputGraph

    call_user_compiler = OutputGraph.call_user_compiler

    @functools.wraps(call_user_compiler)
    def with_graph(self: Any, gm: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        return on_graph(self, gm, lambda: call_user_compiler(self, gm, *args, **kwargs))

    OutputGraph.call_user_compiler = with_graph  # type: ignore[method-assign]
    return lambda: setattr(OutputGraph, "call_user_compiler", call_user_compiler)


def _hook_breaks(on_break: BreakHandler) -> Callable[[], None]:
    from torch._dynamo import symbolic_convert

    base = symbolic_convert.InstructionTranslatorBase
    log_graph_break = base.log_graph_break

    @functools.wraps(log_graph_break)
    def with_break(
        self: Any, code_options: Any, reason: str = "", exc: Any = None, **kw: Any
    ) -> Any:
        if not getattr(exc, "logged", False):
            on_break(self, reason, exc)
        return log_graph_break(self, code_options, reason=reason, exc=exc, **kw)

    base.log_graph_break = with_break  # type: ignore[method-assign]
    return lambda: setattr(base, "log_graph_break", log_graph_break)


def _all_subclasses(kind: type) -> list[Any]:
    direct: list[Any] = kind.__subclasses__()
    return direct + [deeper for sub in direct for deeper in _all_subclasses(sub)]


def _hook_items(on_item: ItemHandler, on_list: ItemHandler) -> Callable[[], None]:
    from torch._dynamo.variables import TensorVariable

    original = TensorVariable.call_method
    readers = {"item": on_item, "tolist": on_list}

    @functools.wraps(original)
    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name not in readers or args or kwargs:
            return original(self, tx, name, args, kwargs)
        return readers[name](tx, self, lambda: original(self, tx, name, args, kwargs))

    TensorVariable.call_method = call_method  # type: ignore[method-assign]

    def undo() -> None:
        TensorVariable.call_method = original  # type: ignore[method-assign]

    return undo


class Attempts:
    """Dynamo's attempts to compile one frame: each but the first is a restart.

    Args:
        output_graph: of the attempt that is made now.

    Attributes:
        kept: what is left to Dynamo; empty at the first attempt.
    """

    def __init__(self, output_graph: Any) -> None:
        self._log = output_graph.root_tx.speculation_log
        self.kept: dict[Any, Any] = self._log.__dict__.setdefault("fusepass_kept", {})

    def restart(self, reason: str, *, afresh: bool) -> NoReturn:
        """Discard what was traced of the frame and start again.

        Args:
            reason: for Dynamo's log.
            afresh: whether the next attempt may take another way than this one before it comes
                here; graph breaks already found are then found again.
        """
        from torch._dynamo.exc import SpeculationRestartAnalysis

        if afresh:
            self._log.clear()
        raise SpeculationRestartAnalysis(restart_reason=reason)


def was_emptied(output_graph: Any) -> bool:
    """Whether an error has ended the trace of a frame and Dynamo has emptied its output graph."""
    return getattr(output_graph, "root_tx", None) is None


def _jump_hook(
    on_jump: JumpHandler, original: Callable[[Any, Any], None]
) -> Callable[[Any, Any], None]:
    def handler(translator: Any, instruction: Any) -> None:
        try:
            on_jump(translator, instruction, original)
        except AssertionError:
            # torch 2.11 goes on after it has broken the graph at an assert known to fail, until
            # ``jump`` notices; the graph and the code that raises are complete by then.
            if translator.instruction_pointer is not None:
                raise

    return handler


def _load_hook(
    on_speaker: SpeakerHandler, original: Callable[[Any, Any], None]
) -> Callable[[Any, Any], None]:
    def handler(translator: Any, instruction: Any) -> None:
        original(translator, instruction)
        height = speaker_on_top(translator)
        if height is not None:
            on_speaker(translator, height)

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
        pair = list(map(realized, stack[-2:]))
        told = pair[0] is pair[1] or not all(map(is_any_tensor, pair))  # one value is itself
        return [] if told else pair
    if name == "CALL":
        callee = stack[-instruction.arg - 2 :][:2]
        is_id = any(getattr(realized(value), "fn", None) is id for value in callee)
        return list(stack[-1:]) if is_id else []
    if name == "BUILD_MAP":
        return list(stack[len(stack) - 2 * instruction.arg :: 2]) if instruction.arg else []
    value, container = (stack[-2], stack[-1]) if name == "CONTAINS_OP" else (stack[-1], stack[-2])
    return [] if is_any_tensor(realized(container)) else [value]


def _identity_hook(
    on_identity: IdentityHandler,
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


def _not_hook(
    on_truth: TruthHandler, on_not: TruthHandler, original: Callable[[Any, Any], None]
) -> Callable[[Any, Any], None]:
    def handler(translator: Any, instruction: Any) -> None:
        value = realized(translator.stack[-1])
        if not is_any_tensor(value):
            negated = on_not(translator, value)
        else:
            truth = on_truth(translator, value)
            args = () if truth is None else (truth.as_proxy(),)
            call = functools.partial(wrap_call, translator, "call_function", torch.logical_not)
            negated = None if truth is None else call(args, {})
        if negated is None:
            original(translator, instruction)
        else:
            translator.stack[-1] = negated

    return handler
