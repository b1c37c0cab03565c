"""Functions of one number, as epilogues: which keep the order of numbers, one after the other.

A maximum of what such a function gives is what it gives for the maximum.
"""

from __future__ import annotations

from fusepass.graph.epilogue import Argument, Epilogue, Output, Step

_LARGE = 1e38  # what is smaller is finite in fp32, and so is one over it


def is_monotone(body: Epilogue) -> bool:
    """Whether a function never gives less for more, also in floating point, and NaN for NaN alone.

    Then the maximum of what it gives is what it gives for the maximum: each window has a pixel, as
    padding is at most half of it. Of numbers that it makes equal (0 and -0, say) another one may be
    taken, which is equal. Sums with a finite number and products with a positive one are monotone
    because rounding is.
    """
    previous = "%0"
    for number, step in enumerate(body.steps, start=1):
        if not _keeps_order(step, previous):
            return False
        previous = f"%{number}"
    return body.outputs[0].value == previous


def _keeps_order(step: Step, previous: str) -> bool:
    if step.op == "relu":
        return step.args == (previous,)
    if len(step.args) != 2 or step.args[0] != previous:
        return False
    number = step.args[1]
    if isinstance(number, (bool, str)) or not abs(number) < _LARGE:
        return False
    scales = step.op in ("mul", "div") and number > 1 / _LARGE
    return scales or step.op in ("maximum", "minimum", "add", "sub")


def tells_zeros_apart(body: Epilogue) -> bool:
    """Whether 0 and -0 may give different numbers."""
    return any(
        step.op in ("reciprocal", "rsqrt") or (step.op == "div" and isinstance(step.args[1], str))
        for step in body.steps
    )


def joined(first: Epilogue, second: Epilogue) -> Epilogue:
    """One function after the other, both of one product."""
    count = len(first.steps)

    def moved(arg: Argument) -> Argument:
        if not isinstance(arg, str):
            return arg
        return first.outputs[0].value if arg == "%0" else f"%{int(arg[1:]) + count}"

    steps = (Step(step.op, tuple(map(moved, step.args))) for step in second.steps)
    output = Output(str(moved(second.outputs[0].value)), second.outputs[0].dtype)
    return Epilogue(1, (), (*first.steps, *steps), (output,))
