"""Decide whether the program would see an exception that is raised at an instruction.

What a compiled graph raises, and what is raised after it, comes where no ``except``, ``finally`` or
with-block of the traced frames is active any more. So every handler around the place, in the frame
and in those that called it, must be one the exception passes without a trace: ``except`` clauses of
other classes or that only raise it again, with-blocks that do nothing about it,
what the compiler of Python adds, and what torch does to tidy up its own state.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterable, Iterator
from typing import Any

from fusepass.capture.bytecode.instructions import (
    LOADS_GLOBAL,
    LOADS_LOCAL,
    SKIPPED,
    callee_of,
    handler_of,
)
from fusepass.capture.frame_state import Frame
from fusepass.graph.safety.failures import AnyException
from fusepass.report.user_code import is_torchs_file
from fusepass.torch_private.dynamo.eager_frames import WrittenFrame, eager_frames, written
from fusepass.torch_private.dynamo.errors.raising import (
    context_of,
    frames_outwards,
    manager_of,
    named_value,
    unknown_context,
)
from fusepass.torch_private.dynamo.stack import is_generator_frame

Kinds = tuple[type[BaseException], ...]

_MAX_HANDLERS = 64
_OF_SPELLING = (AttributeError, ImportError, NameError, StopIteration, SyntaxError, TypeError)
_SKIPPED = ("NOP", "CACHE", "TO_BOOL", "NOT_TAKEN", "PUSH_NULL")
_JUMPS = ("POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_FALSE")
_NOTHING = frozenset(
    "COPY_FREE_VARS LOAD_CONST NOP POP_TOP RESUME RETURN_CONST RETURN_VALUE".split()
)
_LEAVE = ("POP_EXCEPT", "RETURN_CONST", "RETURN_VALUE")
_OTHER_HANDLERS = ("CHECK_EXC_MATCH", "CHECK_EG_MATCH", "PUSH_EXC_INFO", "WITH_EXCEPT_START")
_OF_A_NAME = ("LOAD_CONST", "STORE_FAST", "DELETE_FAST")  # how ``except … as name`` ends


def who_sees(translator: Any, kind: type[BaseException]) -> str | None:
    """Name the code in the traced frames that would act on an exception of the program, or None."""
    for frame in frames_outwards(translator):
        if is_generator_frame(frame):
            return "a generator"
        context = unknown_context(frame)
        if context is not None:
            return f"a with-block ({context})"
        if _first(frame, frame.current_instruction, (kind,), cleanup=True) is not None:
            return "a try statement"
    return None


def catching_handler(translator: Any, frame: Frame, kinds: Kinds) -> str | None:
    """Name the handler that would catch an exception which a call raises when it runs, or None.

    A ``finally`` catches nothing. Libraries reset their own state in one around whole models, so
    that a graph that ends there would cost every call of a model for the sake of one that fails.
    """
    found = (_first(one, one.current_instruction, kinds) for one in _around(translator, frame))
    return next((text for text in found if text is not None), None)


def is_seen(frames: Iterable[Any], kinds: Kinds) -> bool:
    """Whether a handler in code as written would act on an error of a call in it."""
    return any(_first(one, one.current_instruction, kinds) is not None for one in frames)


def is_in_a_try(translator: Any, frame: Frame) -> bool:
    """Whether any handler, whatever it does, is around an instruction; asked at every call."""
    around = _around(translator, frame)
    return any(handler_of(one.current_instruction) is not None for one in around)


def _around(translator: Any, frame: Frame) -> Iterator[Any]:
    """The traced functions, innermost first, and then the frames in eager around them."""
    yield from frames_outwards(translator)
    if frame.callers is None:
        frame.callers = eager_frames()
    yield from frame.callers


def _first(frame: Any, instruction: Any, kinds: Kinds, *, cleanup: bool = False) -> str | None:
    """The first handler around an instruction of a frame that would act, for a person; or None.

    Args:
        frame: Dynamo's translator, or code as written.
        instruction: where it is raised.
        kinds: classes it may be of.
        cleanup: whether a ``finally``, behind which it goes on, counts as acting.
    """
    if is_torchs_file(frame.f_code.co_filename):
        return None  # it tidies up; hooks that are always called are not when compiled
    index = frame.indexof
    for _ in range(_MAX_HANDLERS):
        entry = handler_of(instruction)
        if entry is None:
            return None
        passed = _passes(frame, index[entry.target], entry, kinds, cleanup)
        if isinstance(passed, str):
            return passed
        instruction = passed
    return "a try statement"


def _passes(frame: Any, start: int, entry: Any, kinds: Kinds, cleanup: bool) -> Any:
    """The instruction at which the exception leaves a handler again; a text if the handler acts."""
    code = [i for i in frame.instructions[start : start + 64] if i.opname not in _SKIPPED]
    first = code[0].opname
    acting = f"a try statement{_line(code)}"
    if first == "COPY":  # COPY 3, POP_EXCEPT, RERAISE: the end of every handler
        return code[2] if code[2].opname == "RERAISE" else acting
    if first == "SWAP":  # a comprehension puts the locals it hid back
        return next((i for i in code[:12] if i.opname == "RERAISE"), acting)
    if first in _OF_A_NAME:
        end = next(i for i in code if i.opname not in _OF_A_NAME)
        return end if end.opname == "RERAISE" else acting
    if first == "CALL_INTRINSIC_1":  # StopIteration leaves a generator as another error
        return code[1] if code[1].opname == "RERAISE" else acting
    if first != "PUSH_EXC_INFO":
        return acting
    if code[1].opname == "WITH_EXCEPT_START":
        why = _with_block(manager_around(frame, entry), kinds, cleanup)
        return code[1] if why is None else why
    end = None if cleanup else _end_of_finally(code[1:])
    return end or _reraise_if_unmatched(frame, code[1:], kinds) or acting


def _end_of_finally(code: list[Any]) -> Any:
    """The RERAISE behind the body of a ``finally`` that has no other way out; None for others."""
    if code[0].opname == "POP_TOP":  # ``except:`` drops the exception
        return None
    for instruction in code:
        if instruction.opname == "RERAISE":
            return instruction
        if instruction.opname in _LEAVE or instruction.opname in _OTHER_HANDLERS:
            return None
    return None


def _with_block(manager: Any, kinds: Kinds, cleanup: bool) -> str | None:
    """Name a with-block that would act on an exception, for a person; None if it would not.

    Those of torch's put its own state back, which code around a graph has no need of. Those of the
    program may swallow the exception or write something down: they have to do nothing for certain.
    """
    if isinstance(manager, tuple):
        code, names = manager
        name, acts = code.co_name, _generator_acts(code, names, kinds, cleanup)
    else:
        name = getattr(manager, "__name__", None)
        harmless = manager is contextlib.nullcontext or _is_torchs(manager)
        acts = not (harmless or _does_nothing(getattr(manager, "__exit__", None)))
    return (f"a with-block ({name})" if name else "a with-block") if acts else None


def _is_torchs(manager: Any) -> bool:
    return str(getattr(manager, "__module__", "")).partition(".")[0] == "torch"


def _does_nothing(leave: Any) -> bool:
    """Whether an ``__exit__`` only returns, and nothing that is true."""
    code = getattr(leave, "__code__", None)
    steps = [] if code is None else written(code).instructions
    given = [i.argval for i in steps if i.opname in ("LOAD_CONST", "RETURN_CONST")]
    return bool(steps) and all(i.opname in _NOTHING for i in steps) and not any(given)


def _generator_acts(
    code: types.CodeType, names: dict[str, Any], kinds: Kinds, cleanup: bool
) -> bool:
    """Whether something in a generator would act on an exception thrown where it yields."""
    read = written(code)
    yields = (step for step in read.instructions if step.opname == "YIELD_VALUE")
    frames = (WrittenFrame(code, read, step, names) for step in yields)
    return any(
        _first(frame, frame.current_instruction, kinds, cleanup=cleanup) is not None
        for frame in frames
    )


def _reraise_if_unmatched(frame: Any, code: list[Any], kinds: Kinds) -> Any:
    """Follow ``except A: … except (B, C): …`` to the RERAISE behind the last clause."""
    classes: list[Any] = []
    for step, instruction in enumerate(code):
        name = instruction.opname
        if name in LOADS_GLOBAL:
            attributes = _attributes(code[step + 1 :])
            found = named_value(frame, [instruction, *attributes])
            classes += found if isinstance(found, tuple) else [found]
        elif name == "RERAISE":
            return instruction if not classes else None
        elif name == "CHECK_EXC_MATCH":
            jump = code[step + 1]
            if jump.opname not in _JUMPS:
                return None
            if _matches(classes, kinds):
                return _reraise_of(code[step + 2 :])
            target = frame.indexof[jump.target]
            rest = frame.instructions[target : target + 64]
            return _reraise_if_unmatched(
                frame, [i for i in rest if i.opname not in _SKIPPED], kinds
            )
        elif name not in ("BUILD_TUPLE", "LOAD_ATTR"):
            return None
    return None


def _attributes(code: list[Any]) -> list[Any]:
    end = next((i for i, one in enumerate(code) if one.opname != "LOAD_ATTR"), len(code))
    return code[:end]


def _matches(classes: list[Any], kinds: Kinds) -> bool:
    """Whether an ``except`` clause of these classes may catch an exception of one of the kinds."""
    known = all(isinstance(one, type) and issubclass(one, BaseException) for one in classes)
    return not (known and classes) or catches(tuple(classes), kinds)


def catches(classes: tuple[type[BaseException], ...], kinds: Kinds) -> bool:
    """Whether something that catches these classes may catch one of the kinds."""
    return any(
        issubclass(kind, one) or (kind is AnyException and _depends_on_values(one))
        for kind in kinds
        for one in classes
    )


def _depends_on_values(kind: type[BaseException]) -> bool:
    """Whether an exception of a class may be due to a value, rather than to how a call is spelt."""
    return issubclass(kind, Exception) and not issubclass(kind, _OF_SPELLING)


def _reraise_of(code: list[Any]) -> Any:
    """The ``raise`` that is all a clause does, or None."""
    body = [i for i in code[:3] if i.opname not in ("POP_TOP", "STORE_FAST")]
    first = body[0] if body else None
    return (
        first if first is not None and (first.opname, first.arg) == ("RAISE_VARARGS", 0) else None
    )


def _line(code: list[Any]) -> str:
    lines = (getattr(getattr(i, "positions", None), "lineno", None) for i in code)
    line = next((n for n in lines if n), None)
    return "" if line is None else f" (line {line})"


_LOCALS = (*LOADS_LOCAL, "LOAD_DEREF", "LOAD_CLOSURE")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")


def manager_around(frame: Any, entry: Any) -> Any:
    """The context manager of a with-block, whose entry of the exception table is given."""
    if isinstance(frame, WrittenFrame):
        return _written_manager(frame, entry)
    context = context_of(frame, entry)
    if context is None or hasattr(context, "cm_obj"):
        return None if context is None else manager_of(frame, context)
    return contextlib.nullcontext  # all others are torch's, and put its own state back


def _written_manager(frame: WrittenFrame, entry: Any) -> Any:
    """The context manager of a with-block, by its expression.

    ``with name.attribute:`` and ``with name.attribute(…):`` are looked up; None for anything else.
    """
    steps = frame.instructions
    starts = (
        index
        for index, step in enumerate(steps[:-1])
        if step.opname == "BEFORE_WITH"
        and getattr(steps[index + 1].exn_tab_entry, "target", None) is entry.target
    )
    start = next(starts, None)
    if start is None:
        return None
    before = start - 1
    while before >= 0 and steps[before].opname in (*SKIPPED, "PUSH_NULL"):
        before -= 1
    called = steps[before].opname.startswith("CALL")
    if called:
        loaded = callee_of(steps, before)
        if loaded is None:
            return None
        before = frame.indexof[loaded]
    chain: list[Any] = []
    while steps[before].opname in _ATTRIBUTES:
        chain.insert(0, steps[before])
        before -= 1
    value = _value(frame, steps[before], chain)
    if isinstance(value, contextlib._GeneratorContextManager):
        value, called = value.func, True
    made = getattr(value, "__wrapped__", value)  # what @contextmanager was put on
    if called and isinstance(made, types.FunctionType):
        return made.__code__, made.__globals__
    return value if called else None if value is None else type(value)


def _value(frame: WrittenFrame, load: Any, attributes: list[Any]) -> Any:
    if load.opname in LOADS_GLOBAL:
        return named_value(frame, [load, *attributes])
    found = frame.f_locals.get(load.argval) if load.opname in _LOCALS else None
    for attribute in attributes:
        found = getattr(found, "__dict__", {}).get(attribute.argval)
    return found
