"""Say how many rounds a counter leaves to a loop: ``while … and it < most: it += 1``."""

from __future__ import annotations

import dis
from collections.abc import Sequence
from typing import Any

from fusepass.capture.bytecode.natural_loops import Loop
from fusepass.torch_private.dynamo import stack

_STEPS = {"+": 1, "+=": 1, "-": -1, "-=": -1}


def rounds_left(translator: Any, loop: Loop) -> float | None:
    """The rounds until a counter ends a loop; None if no counter that is known does."""
    found = [_rounds(translator, loop, test) for test in loop.tests]
    return min((rounds for rounds in found if rounds is not None), default=None)


def _rounds(translator: Any, loop: Loop, test: int) -> float | None:
    instructions = translator.instructions
    if test < 3 or instructions[test - 1].opname != "COMPARE_OP":
        return None
    right = _operand(instructions, test - 2)
    left = _operand(instructions, right - 1)
    if left < 0:
        return None
    sides = instructions[left:right], instructions[right : test - 1]
    values = [_known(translator, side) for side in sides]
    steps = [_step(instructions, loop, side) for side in sides]
    if None in values or sum(step is not None for step in steps) != 1:
        return None
    gap = values[1] - values[0]  # type: ignore[operator]
    step = steps[0] if steps[0] is not None else -steps[1]  # type: ignore[operator]
    return max(gap / step, 0) if step else None


def _operand(instructions: Sequence[Any], last: int) -> int:
    """Where the load of a name, its attribute, or a constant begins that ends at ``last``."""
    while last >= 0 and instructions[last].opname == "LOAD_ATTR":
        last -= 1
    names = ("LOAD_FAST", "LOAD_CONST", "LOAD_DEREF")
    return last if last >= 0 and instructions[last].opname.startswith(names) else -1


def _known(translator: Any, loads: Sequence[Any]) -> float | None:
    """The number that some instructions load, if it is known; nothing is guarded on it."""
    first, *attributes = loads
    if first.opname == "LOAD_CONST":
        value = first.argval
    else:
        tracked = stack.local_value(translator, first.argval)
        value = None if tracked is None else stack.python_object(tracked)
    for one in attributes:
        value = vars(value).get(one.argval) if hasattr(value, "__dict__") else None
    return value if type(value) in (int, float) else None


def _step(instructions: Sequence[Any], loop: Loop, loads: Sequence[Any]) -> float | None:
    """What one round adds to a counter; None for a value that the loop does not bind so."""
    (first, *rest) = loads
    if rest or not first.opname.startswith("LOAD_FAST"):
        return None
    stores = [
        at
        for at in loop.members
        if instructions[at].opname == "STORE_FAST" and instructions[at].argval == first.argval
    ]
    if len(stores) != 1 or stores[0] < 3:
        return None
    load, number, add = instructions[stores[0] - 3 : stores[0]]
    if not (load.opname.startswith("LOAD_FAST") and load.argval == first.argval):
        return None
    if number.opname != "LOAD_CONST" or type(number.argval) not in (int, float):
        return None
    if add.opname != "BINARY_OP":
        return None
    sign = _STEPS.get(dis._nb_ops[add.arg][1])  # type: ignore[attr-defined]
    return None if sign is None else sign * number.argval
