"""Why a rule's function cannot be traced, in words for who wrote it."""

from __future__ import annotations

from fusepass.rewrite.trace import TraceError

# By name: where the classes are is private to torch.
_ASKED_FOR_DATA = {
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "GuardOnDataDependentSymNode",
}


def trace_fault(what: str, error: Exception) -> str:
    """What is wrong with a rule, by the exception that tracing one of its functions ended with.

    Args:
        what: ``"pattern"`` or ``"replacement"``.
        error: the exception.
    """
    if isinstance(error, TraceError):
        return f"its {what} cannot be used: {error}"
    if "allow_non_fake_inputs" in str(error):  # a call on fake tensors got a real one
        return (
            f"its {what} cannot be used: it uses a tensor that is none of its inputs, as a "
            "module's weights are; make it a parameter of the pattern and of the replacement, with "
            "a value in the example, or build it inside"
        )
    if _ASKED_FOR_DATA & {kind.__name__ for kind in type(error).__mro__}:
        return (
            f"its {what} cannot be used: it reads a tensor's value, or a size that depends on one, "
            "back to Python, as `if`, `int`, `item`, `nonzero` and `x[mask]` do; use torch.where, "
            "or keep the value in a tensor"
        )
    return f"its {what} fails on the example: {type(error).__name__}: {error}"
