"""Recognise errors of torch that are meant for the user. Run on torch 2.11 to 2.15.

The table in docs/design/exceptions.md says what becomes of which error.
"""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def users_errors() -> tuple[type[Exception], ...]:
    """What torch raises because of what the user asked of it, by a mark or a setting.

    Capture cannot be the cause but by making more of the program one frame.
    """
    from torch._dynamo import exc
    from torch.fx.experimental import symbolic_shapes, validator

    found: list[type[Exception]] = [
        symbolic_shapes.ConstraintViolationError,
        symbolic_shapes.GuardOnDataDependentSymNode,
        validator.ValidationException,
        validator.BisectValidationException,
    ]
    names = (
        *("TorchRuntimeError", "UserError", "UncapturedHigherOrderOpError"),
        *("FailOnRecompileLimitHit", "RecompileError", "PackageError"),
        *("InvalidBackend", "ResetRequired", "UnsafeScriptObjectError"),
    )
    found += [getattr(exc, name) for name in names if hasattr(exc, name)]
    return tuple(found)


def violated(output_graph: Any) -> Exception | None:
    """What torch will raise of a frame that holds for fewer sizes than the user has marked.

    Torch asks when the frame is traced and compiled, and there is no way back from there.
    """
    from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

    shapes = output_graph.shape_env
    tracked = shapes.tracked_fakes or []
    contexts = [one.symbolic_context for one in tracked]
    if not any(map(_is_marked, contexts)):
        return None
    try:
        shapes.produce_guards(
            [one.fake for one in tracked],
            [one.source for one in tracked],
            input_contexts=contexts,
        )
    except ConstraintViolationError as error:
        return error
    return None


def _is_marked(context: Any) -> bool:
    sizes = getattr(context, "constraint_sizes", None) or ()
    strides = getattr(context, "constraint_strides", None) or ()
    number = getattr(context, "constraint", None)
    inner = (getattr(context, "inner_contexts", None) or {}).values()
    marks = (*sizes, *strides, number)
    strict = (mark is not None and not getattr(mark, "warn_only", False) for mark in marks)
    return any(strict) or any(map(_is_marked, inner))
