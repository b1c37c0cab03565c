"""Find out whether an error that Dynamo raises involves an unknown number or size.

Run on torch 2.11 to 2.15.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType
from typing import Any

from fusepass.torch_private.dynamo.compile_state import is_internal_file


def has_unknown_in_hand(translator: Any, error: BaseException) -> bool:
    """Whether an error may be about a number or a size that is not known while tracing.

    Dynamo's functions between the instruction and the error hold what it is about as their
    variables. Python code of its own, which stands for a builtin, is traced: it has locals.

    Args:
        translator: Dynamo's, of the code in which the error arises.
        error: what it raised.
    """
    from torch._dynamo.variables.base import VariableTracker

    found: list[Any] = []

    def look(value: Any) -> None:
        if _is_unknown(value):
            found.append(value)

    cache: dict[int, Any] = {}
    for values in (*_of_functions(error), *_of_own_code(translator)):
        for value in values:
            if isinstance(value, (VariableTracker, list, tuple, dict)):
                VariableTracker.visit(look, value, cache)
            if found:
                return True
    return False


def _of_functions(error: BaseException) -> Iterator[list[Any]]:
    """The variables of Dynamo's functions behind the instruction that raised."""
    frames: list[FrameType] = []
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_name == "step":  # of an inlined function, then
            frames.clear()
        else:
            frames.append(trace.tb_frame)
        trace = trace.tb_next
    for frame in frames:
        yield list(frame.f_locals.values())


def _of_own_code(translator: Any) -> Iterator[list[Any]]:
    while translator is not None and is_internal_file(translator.f_code.co_filename):
        yield list(translator.symbolic_locals.values())
        translator = translator.parent


def _is_unknown(value: Any) -> bool:
    from torch._dynamo.variables.tensor import SymNodeVariable, TensorVariable
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    if isinstance(value, SymNodeVariable):
        return bool(free_unbacked_symbols(value.sym_num))
    if not isinstance(value, TensorVariable):
        return False
    held = value.as_proxy().node.meta.get("example_value")
    shape = getattr(held, "shape", ())
    return bool(free_unbacked_symbols(tuple(shape)))
