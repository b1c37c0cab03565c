"""Whether an exception raised at an instruction would be seen by the traced program itself.

A sink raises after the graph, where no ``except``, ``finally`` or with-block of the traced frames
is active any more. So every handler around the site, in the frame and in those that called it, must
be one the exception passes without a trace: ``except`` clauses of other classes, with-blocks of
torch's own modes, and what the compiler of Python adds to comprehensions.
"""

from __future__ import annotations

from typing import Any

from fusepass import torch_private

_MAX_HANDLERS = 64
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME")
_SKIPPED = ("NOP", "CACHE", "TO_BOOL", "NOT_TAKEN", "PUSH_NULL")
_JUMPS = ("POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_FALSE")


def who_sees(translator: Any, kind: type[BaseException]) -> str | None:
    """What in the traced frames would act on an exception of class ``kind``, or None.

    Args:
        translator: of the frame that raises, standing at the instruction.
        kind: class of the exception.
    """
    for frame in torch_private.frames_outwards(translator):
        if torch_private.is_generator_frame(frame):
            return "a generator"
        context = torch_private.unknown_context(frame)
        if context is not None:
            return f"a with-block ({context})"
        found = _first_handler(frame, frame.current_instruction, kind)
        if found is not None:
            return found
    return None


def _first_handler(frame: Any, instruction: Any, kind: type[BaseException]) -> str | None:
    index = frame.indexof
    for _ in range(_MAX_HANDLERS):
        entry = getattr(instruction, "exn_tab_entry", None)
        if entry is None:
            return None
        instruction = _passes(frame, index[entry.target], kind)
        if instruction is None:
            return "a try statement"
    return "a try statement"


def _passes(frame: Any, start: int, kind: type[BaseException]) -> Any:
    """The instruction at which the exception leaves a handler again, None if the handler acts."""
    code = [i for i in frame.instructions[start : start + 64] if i.opname not in _SKIPPED]
    first = code[0].opname
    if first == "COPY":  # COPY 3, POP_EXCEPT, RERAISE: the end of every handler
        return code[2] if code[2].opname == "RERAISE" else None
    if first == "SWAP":  # a comprehension puts the locals it hid back
        return next((i for i in code[:12] if i.opname == "RERAISE"), None)
    if first != "PUSH_EXC_INFO":
        return None
    if code[1].opname == "WITH_EXCEPT_START":
        return code[1]  # its context is known and harmless
    return _unmatched(frame, code[1:], kind)


def _unmatched(frame: Any, code: list[Any], kind: type[BaseException]) -> Any:
    """Follow ``except A: … except (B, C): …`` to the RERAISE behind the last clause."""
    classes: list[Any] = []
    for step, instruction in enumerate(code):
        name = instruction.opname
        if name in _LOADS:
            classes.append(torch_private.builtin_class(frame, instruction.argval))
        elif name == "RERAISE":
            return instruction if not classes else None
        elif name == "CHECK_EXC_MATCH":
            known = bool(classes) and all(classes)
            if not known or issubclass(kind, tuple(classes)):
                return None
            jump = code[step + 1]
            if jump.opname not in _JUMPS:
                return None
            target = frame.indexof[jump.target]
            rest = frame.instructions[target : target + 64]
            return _unmatched(frame, [i for i in rest if i.opname not in _SKIPPED], kind)
        elif name != "BUILD_TUPLE":
            return None
    return None
