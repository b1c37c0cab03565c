"""Decide from the bytecode whether a value is only tested.

``if x.max().item() > 1e4:`` reads a number back only to compare it and jump. Such a number need not
leave the device. One that is stored first is followed through the local name it is stored under,
and the copies that a chained comparison makes are followed down both ways of its jumps. One that is
returned is followed into the caller. At anything the walk does not know it says no.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fusepass.capture.bytecode.instructions import (
    EXPRESSIONS,
    LOADS_LOCAL,
    SKIPPED,
    names_of,
    stack_effect,
    swapped,
)

_TESTS = ("POP_JUMP_IF", "POP_JUMP_FORWARD_IF", "POP_JUMP_BACKWARD_IF")
_UNCHANGED = ("TO_BOOL", "UNARY_NOT")
_OVER = (*EXPRESSIONS, "TO_BOOL")
_PUSHES_ONLY = (
    *LOADS_LOCAL,
    *("LOAD_CONST", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_SMALL_INT", "PUSH_NULL"),
)
_LIMIT = 120  # instructions looked at for one value

Stack = tuple[bool, ...]  # its upper end: which entries are the value, or computed from it


def has_only_predicate_uses(
    instructions: Sequence[Any],
    index: int,
    *,
    arithmetic: bool = True,
    compared: bool = True,
    ignored: Callable[[int], bool] = lambda _: False,
    returned: Callable[[], bool] = lambda: False,
) -> bool:
    """Whether what the instruction at ``index`` pushes is only compared and jumped on.

    Args:
        instructions: of the code object, with ``opname``, ``opcode``, ``arg``, ``argval`` and, for
            jumps, ``target``.
        index: where the value is pushed.
        arithmetic: whether it may go through arithmetic before it is tested.
        compared: whether it may be compared, not only asked for its truth.
        ignored: whether what the instruction at an index loads is of no matter.
        returned: whether the caller only tests what the function returns.
    """
    walk = _UseWalk(instructions, arithmetic, compared, ignored, returned)
    return walk.follows(index)


@dataclass
class _UseWalk:
    """One question about one value; ``names`` are the locals it is being followed through."""

    instructions: Sequence[Any]
    arithmetic: bool
    compared: bool
    ignored: Callable[[int], bool]
    returned: Callable[[], bool]
    names: set[str] = field(default_factory=set)
    left: int = _LIMIT

    def follows(self, index: int) -> bool:
        """Whether what the instruction at ``index`` pushes is only tested."""
        todo: list[tuple[int, Stack]] = [(index + 1, (True,))]
        while todo:
            at, stack = todo.pop()
            if not any(stack):
                continue
            self.left -= 1
            if self.left < 0 or at >= len(self.instructions):
                return False
            further = self._step(at, stack)
            if further is None:
                return False
            todo += further
        return True

    def _step(self, at: int, stack: Stack) -> list[tuple[int, Stack]] | None:
        """The instructions that can follow one; None if the value is used there."""
        inst = self.instructions[at]
        name, following = inst.opname, at + 1
        if name in SKIPPED or (stack[-1] and name in _UNCHANGED):
            return [(following, stack)]
        if name.startswith(_TESTS):
            return [(following, stack[:-1]), (self._index(inst.target), stack[:-1])]
        if name == "RETURN_VALUE":
            return [] if stack[-1] and self.returned() else None
        if name in ("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP"):
            return [(following, stack[:-1]), (self._index(inst.target), stack)]
        if name == "JUMP_FORWARD":
            return [(self._index(inst.target), stack)]
        if name == "POP_TOP":
            return [(following, stack[:-1])]
        if name in ("COPY", "SWAP"):
            return [(following, _stack_after_move(name, inst.arg, stack))]
        if name == "STORE_FAST":
            loads = not stack[-1] or self._loads_only_tested(inst.argval)
            return [(following, stack[:-1])] if loads else None
        result = self._computed(inst, stack)
        return None if result is None else [(following, result)]

    def _computed(self, inst: Any, stack: Stack) -> Stack | None:
        """The stack after an instruction that takes operands and pushes a result."""
        name = inst.opname
        if stack[-1] and name == "UNARY_NEGATIVE" and self.arithmetic:
            return stack
        takes = self.compared if name == "COMPARE_OP" else self.arithmetic
        if name in ("COMPARE_OP", "BINARY_OP") and (takes or not any(stack[-2:])):
            return (*stack[:-2], any(stack[-2:]))
        if not name.startswith(_OVER) or "__" in name or name.count("FAST") > 1:
            return None
        effect = stack_effect(inst)
        taken = 0 if name in _PUSHES_ONLY else max(1, 1 - effect)
        below = stack[: len(stack) - taken] if taken else stack
        if any(stack[len(below) :]):
            return None  # it is an operand
        return (*below, *[False] * (effect + taken))

    def _index(self, target: Any) -> int:
        return next(i for i, inst in enumerate(self.instructions) if inst is target)

    def _loads_only_tested(self, name: str) -> bool:
        if name in self.names:
            return True  # being looked at further up
        self.names.add(name)
        uses = [
            (i, inst.opname)
            for i, inst in enumerate(self.instructions)
            if inst.opname.startswith(("LOAD", "DELETE", "MAKE_CELL"))
            and name in names_of(inst)
            and not self.ignored(i)
        ]
        return bool(uses) and all(op in LOADS_LOCAL and self.follows(i) for i, op in uses)


def _stack_after_move(name: str, depth: int, stack: Stack) -> Stack:
    """The stack after ``COPY`` or ``SWAP``, which may reach below what is known of it."""
    full = [*[False] * (depth - len(stack)), *stack]
    return (*full, full[-depth]) if name == "COPY" else swapped(full, depth)
