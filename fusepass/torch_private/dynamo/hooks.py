"""Install hooks in Dynamo: jumps, truth, identity, items, raises, breaks, errors, graphs.

Run on torch 2.11 to 2.15.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch._dynamo
import torch._inductor
from torch import fx

from fusepass.torch_private.dynamo.errors.raising import RaiseHandler, raise_hook
from fusepass.torch_private.dynamo.imports import import_hook
from fusepass.torch_private.dynamo.print_calls import LOADS, SpeakerHandler, speaker_on_top
from fusepass.torch_private.dynamo.stack import is_any_tensor, realized, wrap_call
from fusepass.torch_private.patches import Patches, Theirs

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


def hook_instructions(
    patches: Patches,
    *,
    on_truth: TruthHandler,
    on_not: TruthHandler,
    on_jump: JumpHandler,
    on_identity: IdentityHandler,
    on_raise: RaiseHandler,
    on_import: Callable[[Any, str], None],
    on_speaker: SpeakerHandler,
) -> None:
    """Put handlers into the tables of opcodes, one table for each kind of translator.

    Args:
        patches: take the hooks out again.
        on_truth: called as ``(translator, tensor)`` at ``bool(tensor)`` and ``not tensor``; gives
            the tracked tensor that may stand for its truth value, or None.
        on_not: called as ``(translator, number)`` at ``not number``; gives a tracked value or None.
        on_jump: called as ``(translator, instruction, original)`` at each conditional jump.
        on_identity: called as ``(translator, compared)`` before an operation that may look at which
            object a value is (``is``, ``id``, ``in``, dict keys); ``compared()`` gives the values.
        on_raise: called as ``(translator, instruction)`` before a ``raise`` statement.
        on_import: called as ``(translator, name)`` before an ``import`` that loads a module.
        on_speaker: called as ``(translator, height)`` when print or the like was loaded to be
            called; ``height`` is that of the stack below it.
    """
    from torch._dynamo import symbolic_convert

    wrappers: dict[str, Callable[[Any], Any]] = {
        **dict.fromkeys(_JUMPS, functools.partial(_jump_hook, on_jump)),
        **dict.fromkeys(_IDENTITY_TESTS, functools.partial(_identity_hook, on_identity, on_truth)),
        "UNARY_NOT": functools.partial(_not_hook, on_truth, on_not),
        "IMPORT_NAME": functools.partial(import_hook, on_import),
        "RAISE_VARARGS": functools.partial(raise_hook, on_raise),
        **dict.fromkeys(LOADS, functools.partial(_load_hook, on_speaker)),
    }
    base = symbolic_convert.InstructionTranslatorBase
    patches.set(base, "UNARY_NOT", wrappers["UNARY_NOT"](base.UNARY_NOT))  # called by "not in"
    for table in [kind.dispatch_table for kind in (base, *_all_subclasses(base))]:
        for opname, wrapped in wrappers.items():
            opcode = dis.opmap.get(opname)
            if opcode is not None and opcode < len(table) and table[opcode] is not None:
                patches.put_into(table, opcode, wrapped)


def hook_graphs(patches: Patches, on_graph: GraphHandler) -> None:
    """Put a handler in front of the backend.

    Args:
        patches: take the hook out again.
        on_graph: called as ``(output_graph, gm, compile)`` when a graph is complete; must return
            ``compile()`` or raise.
    """
    from torch._dynamo.output_graph import OutputGraph

    def with_graph(theirs: Theirs, self: Any, gm: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        return on_graph(self, gm, lambda: theirs(self, gm, *args, **kwargs))

    patches.put(OutputGraph, "call_user_compiler", with_graph)


def hook_breaks(patches: Patches, on_break: BreakHandler) -> None:
    """Call ``on_break`` as ``(translator, reason, exception)`` before a graph break is logged."""
    from torch._dynamo import symbolic_convert

    def with_break(
        theirs: Theirs, self: Any, code_options: Any, reason: str = "", exc: Any = None, **kw: Any
    ) -> Any:
        if not getattr(exc, "logged", False):
            on_break(self, reason, exc)
        return theirs(self, code_options, reason=reason, exc=exc, **kw)

    patches.put(symbolic_convert.InstructionTranslatorBase, "log_graph_break", with_break)


def _all_subclasses(kind: type) -> list[Any]:
    direct: list[Any] = kind.__subclasses__()
    return direct + [deeper for sub in direct for deeper in _all_subclasses(sub)]


def hook_items(patches: Patches, on_item: ItemHandler, on_list: ItemHandler) -> None:
    """Put handlers in front of reading numbers from tensors.

    Args:
        patches: take the hook out again.
        on_item: called as ``(translator, tensor, read)`` at ``tensor.item()`` and what
            amounts to it; must return ``read()`` or a tracked tensor in its place.
        on_list: called so at ``tensor.tolist()``.
    """
    from torch._dynamo.variables import TensorVariable

    readers = {"item": on_item, "tolist": on_list}

    def call_method(theirs: Theirs, self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        call = functools.partial(theirs, self, tx, name, args, kwargs)
        return call() if name not in readers or args or kwargs else readers[name](tx, self, call)

    patches.put(TensorVariable, "call_method", call_method)


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
