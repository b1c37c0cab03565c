"""Install hooks in Dynamo: jumps, truth, identity, items, raises, imports, breaks, graphs.

Run on torch 2.11 to 2.15.
"""

from __future__ import annotations

import dis
import functools
import importlib.util
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch._dynamo
from torch import fx
from torch._dynamo import symbolic_convert
from torch._dynamo.exc import SpeculationRestartAnalysis
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.variables import TensorVariable

from fusepass.torch_private.dynamo.print_calls import LOADS, speaker_on_top
from fusepass.torch_private.dynamo.stack import (
    UNSUPPORTED_ERRORS,
    is_any_tensor,
    realized,
    wrap_call,
)
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
_HEADS = "fusepass_heads"
_IDENTITY_TESTS = ("IS_OP", "CONTAINS_OP", "BINARY_SUBSCR", "STORE_SUBSCR", "BUILD_MAP", "CALL")

ItemHandler = Callable[[Any, Any, Callable[[], Any]], Any]
TruthHandler = Callable[[Any, Any], Any]
JumpHandler = Callable[[Any, Any, Callable[[Any, Any], None]], None]
GraphHandler = Callable[[Any, fx.GraphModule, Callable[[], Any]], Any]
IdentityHandler = Callable[[Any, Callable[[], list[Any]]], None]
BreakHandler = Callable[[Any, str, Any], None]


def jump_kind(opname: str) -> tuple[bool, bool]:
    """For a conditional jump: (jumps when true, keeps the tested value if it jumps).

    A jump that compares with None tests whether the value is None.
    """
    if opname.endswith("NONE"):
        return "NOT" not in opname, False
    return _JUMPS[opname], opname.endswith("_OR_POP")


def hook_instructions(
    patches: Patches,
    *,
    on_truth: TruthHandler,
    on_not: TruthHandler,
    on_jump: JumpHandler,
    on_identity: IdentityHandler,
    on_raise: Callable[[Any, Any], None],
    on_import: Callable[[Any, str], None],
    on_speaker: Callable[[Any, int], None],
    on_subscript: Callable[[Any, Any], bool],
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
        on_subscript: called as ``(translator, instruction)`` before ``x[key]`` and
            ``x[key] = value``; says whether it has done that.
    """
    hooks: dict[str, Callable[..., None]] = {
        **dict.fromkeys(_JUMPS, functools.partial(_jump, on_jump)),
        **dict.fromkeys(
            _IDENTITY_TESTS, functools.partial(_identity, on_identity, on_truth, on_subscript)
        ),
        "UNARY_NOT": functools.partial(_not, on_truth, on_not),
        "IMPORT_NAME": functools.partial(_import, on_import),
        "RAISE_VARARGS": functools.partial(_raise, on_raise),
        **dict.fromkeys(LOADS, functools.partial(_load, on_speaker)),
    }
    base = symbolic_convert.InstructionTranslatorBase
    for table in [kind.dispatch_table for kind in (base, *_all_subclasses(base))]:
        for opname, ours in hooks.items():
            opcode = dis.opmap.get(opname)
            if opcode is not None and opcode < len(table) and table[opcode] is not None:
                patches.put_into(table, opcode, ours)
    patches.put(base, "UNARY_NOT", hooks["UNARY_NOT"])  # called by "not in"


def _all_subclasses(kind: type) -> list[Any]:
    direct: list[Any] = kind.__subclasses__()
    return direct + [deeper for sub in direct for deeper in _all_subclasses(sub)]


def _jump(on_jump: JumpHandler, theirs: Theirs, translator: Any, instruction: Any) -> None:
    try:
        on_jump(translator, instruction, theirs)
    except AssertionError:
        # torch 2.11 goes on after it has broken the graph at an assert known to fail, until
        # ``jump`` notices; the graph and the code that raises are complete by then.
        if translator.instruction_pointer is not None:
            raise


def _load(on_speaker: Callable[[Any, int], None], theirs: Theirs, translator: Any, at: Any) -> None:
    theirs(translator, at)
    height = speaker_on_top(translator)
    if height is not None:
        on_speaker(translator, height)


def _is_truth_of_tensor(translator: Any, instruction: Any) -> bool:
    """Whether an instruction is the call ``bool(tensor)``."""
    if instruction.opname != "CALL" or instruction.arg != 1 or len(translator.stack) < 3:
        return False
    callee = (getattr(realized(held), "fn", None) for held in translator.stack[-3:-1])
    return any(fn is bool for fn in callee) and is_any_tensor(realized(translator.stack[-1]))


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


def _identity(
    on_identity: IdentityHandler,
    on_truth: TruthHandler,
    on_subscript: Callable[[Any, Any], bool],
    theirs: Theirs,
    translator: Any,
    instruction: Any,
) -> None:
    if _is_truth_of_tensor(translator, instruction):
        truth = on_truth(translator, realized(translator.stack[-1]))
        if truth is not None:
            del translator.stack[-3:]  # with the function and the slot for a method's object
            translator.push(truth)
            return
    if instruction.opname.endswith("_SUBSCR") and on_subscript(translator, instruction):
        return
    on_identity(translator, lambda: _compared(translator, instruction))
    theirs(translator, instruction)


def _not(
    on_truth: TruthHandler, on_not: TruthHandler, theirs: Theirs, translator: Any, instruction: Any
) -> None:
    value = realized(translator.stack[-1])
    negated = None
    if not is_any_tensor(value):
        negated = on_not(translator, value)
    elif (truth := on_truth(translator, value)) is not None:
        args = (truth.as_proxy(),)
        negated = wrap_call(translator, "call_function", torch.logical_not, args, {})
    if negated is None:
        theirs(translator, instruction)
    else:
        translator.stack[-1] = negated


def _raise(
    on_raise: Callable[[Any, Any], None], theirs: Theirs, translator: Any, instruction: Any
) -> None:
    on_raise(translator, instruction)
    try:
        theirs(translator, instruction)
    except AssertionError as fault:
        # Dynamo 2.11 looks for the current exception also where it could not raise one, and so
        # hides that it gives up the frame.
        if isinstance(fault.__context__, UNSUPPORTED_ERRORS):
            raise fault.__context__ from None
        raise


def _import(
    on_import: Callable[[Any, str], None], theirs: Theirs, translator: Any, instruction: Any
) -> None:
    """Dynamo executes an ``import`` while it traces it."""
    name = _not_loaded(translator, instruction)
    if name is not None:
        on_import(translator, name)
    theirs(translator, instruction)


def _not_loaded(translator: Any, instruction: Any) -> str | None:
    """The first module that an ``import`` loads, or may load."""
    level, members = (realized(value).as_python_constant() for value in translator.stack[-2:])
    name = instruction.argval
    if level:
        package = translator.f_globals.get("__package__") or ""
        try:
            name = importlib.util.resolve_name("." * level + name, package)
        except ImportError:
            return str(name)
    if name not in sys.modules:
        return str(name)
    missing = (m for m in members or () if m != "*" and not hasattr(sys.modules[name], m))
    return next((f"{name}.{member}" for member in missing), None)


def hook_steps(
    patches: Patches,
    wanted: Callable[[Any], frozenset[int]],
    on_head: Callable[[Any], bool],
) -> None:
    """Put a handler in front of some instructions.

    Args:
        patches: take the hook out again.
        wanted: given a translator that begins, gives the indices of these instructions.
        on_head: called with a translator that stands at one; says whether it has gone on.
    """

    def step(theirs: Theirs, self: Any) -> Any:
        held = self.__dict__
        heads = held.get(_HEADS)
        if heads is None:
            heads = held[_HEADS] = wanted(self)
        if heads and self.instruction_pointer in heads and on_head(self):
            return True
        return theirs(self)

    patches.put(symbolic_convert.InstructionTranslatorBase, "step", step)


def hook_graphs(patches: Patches, on_graph: GraphHandler) -> None:
    """Put a handler in front of the backend.

    Args:
        patches: take the hook out again.
        on_graph: called as ``(output_graph, gm, compile)`` when a graph is complete; must return
            ``compile()`` or raise.
    """

    def with_graph(theirs: Theirs, self: Any, gm: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        return on_graph(self, gm, lambda: theirs(self, gm, *args, **kwargs))

    patches.put(OutputGraph, "call_user_compiler", with_graph)


def hook_breaks(patches: Patches, on_break: BreakHandler) -> None:
    """Call ``on_break`` as ``(translator, reason, exception)`` before a graph break is logged."""

    def with_break(
        theirs: Theirs, self: Any, code_options: Any, reason: str = "", exc: Any = None, **kw: Any
    ) -> Any:
        if not getattr(exc, "logged", False):
            on_break(self, reason, exc)
        return theirs(self, code_options, reason=reason, exc=exc, **kw)

    patches.put(symbolic_convert.InstructionTranslatorBase, "log_graph_break", with_break)


def hook_items(patches: Patches, on_item: ItemHandler, on_list: ItemHandler) -> None:
    """Put handlers in front of reading numbers from tensors.

    Args:
        patches: take the hook out again.
        on_item: called as ``(translator, tensor, read)`` at ``tensor.item()`` and what
            amounts to it; must return ``read()`` or a tracked tensor in its place.
        on_list: called so at ``tensor.tolist()``.
    """
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
        broken: graph breaks on record, and the keys of their decisions.
    """

    def __init__(self, output_graph: Any) -> None:
        self._log = output_graph.root_tx.speculation_log
        self.kept: dict[Any, Any] = self._log.__dict__.setdefault("fusepass_kept", {})
        self.broken: list[Any] = self._log.__dict__.setdefault("fusepass_broken", [])

    def restart(self, reason: str, *, afresh: bool) -> NoReturn:
        """Discard what was traced of the frame and start again.

        Args:
            reason: for Dynamo's log.
            afresh: whether the next attempt may take another way than this one before it comes
                here; graph breaks already found are then found again.
        """
        if afresh:
            self._log.clear()
        raise SpeculationRestartAnalysis(restart_reason=reason)


def was_emptied(output_graph: Any) -> bool:
    """Whether an error has ended the trace of a frame and Dynamo has emptied its output graph."""
    return getattr(output_graph, "root_tx", None) is None
