"""Write a line at compile time with stand-ins for unknown values, to find out if it can fail.

A line that fails raises where the program has the call; later it would raise too late. A format
that does not fit fails with any number, so trying a few tells: zero, one, the largest, NaN.
Dividing by a number that is not known is refused without a trial.
"""

from __future__ import annotations

import io
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from fusepass.capture.nodes import emit
from fusepass.capture.nodes.value_recipe import CallValue, Items, KnownValue, Recipe, evaluate
from fusepass.capture.refusal import Refusal
from fusepass.graph.ops.op_names import tensor_value
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.errors.stop_reasons import error_in_short
from fusepass.torch_private.fx.graphs import size_hint

_TRIALS = 6
_WHOLE = 4096  # elements: larger stand-ins are cut short
_DIVIDES = (operator.truediv, operator.floordiv, operator.mod)
_CONTAINERS = (tuple, dict, torch.Size)


def check_sure(recipe: Recipe, nodes: Sequence[fx.Node]) -> None:
    """Check that a line can be written whatever the values are.

    Args:
        recipe: writes the line.
        nodes: its operands.

    Raises:
        Refusal: it may fail.
    """
    _check_divisors(recipe)
    trial = _without_effects(recipe)
    plain = (*_CONTAINERS, _print, _message)
    computes = any(part.function not in plain for part in _parts(trial))
    for number in range(_TRIALS if computes else 1):
        try:
            values = [_stand_in(node, number) for node in nodes]
            with torch.no_grad():
                evaluate(trial, values)
        except Exception as error:  # noqa: BLE001 - whatever eager would raise
            text = f"writing it may fail ({error_in_short(error)})"
            raise Refusal(Reason.PARTIAL_OP, text.split("\n")[0]) from None


def _check_divisors(recipe: Recipe) -> None:
    for part in _parts(recipe):
        if part.function in _DIVIDES and not isinstance(part.args[1], KnownValue):
            text = isinstance(part.args[0], KnownValue) and isinstance(part.args[0].value, str)
            if not text:
                raise Refusal(Reason.PARTIAL_OP, "it divides by a number that may be zero")


def _parts(recipe: Recipe) -> Iterator[CallValue]:
    if isinstance(recipe, CallValue):
        yield recipe
    parts: tuple[Recipe, ...] = ()
    if isinstance(recipe, Items):
        parts = recipe.parts
    elif isinstance(recipe, CallValue):
        parts = (*recipe.args, *(value for _, value in recipe.kwargs))
    for part in parts:
        yield from _parts(part)


def _without_effects(recipe: Recipe) -> Recipe:
    """The recipe of all texts of a line, which writes nothing and calls nothing of the program."""
    if isinstance(recipe, Items):
        return Items(tuple(map(_without_effects, recipe.parts)))
    if not isinstance(recipe, CallValue):
        return recipe
    args = tuple(map(_without_effects, recipe.args))
    kwargs = tuple((name, _without_effects(value)) for name, value in recipe.kwargs)
    if recipe.function is emit.emit_print:
        return CallValue(_print, args, tuple(item for item in kwargs if item[0] != "stream"))
    if recipe.function is emit.emit_pprint:
        return CallValue(_pprint, args, kwargs)
    if recipe.function is emit.emit_log:
        return CallValue(_message, args[3:])
    if recipe.function is emit.emit_warning:
        return Items(args[:1])
    if isinstance(recipe.function, type) and issubclass(recipe.function, BaseException):
        return Items(args)
    return CallValue(recipe.function, args, kwargs)


def _print(function: Any, *values: Any, **options: Any) -> None:
    function(*values, **options, file=io.StringIO())


def _pprint(function: Any, value: Any, **options: Any) -> None:
    function(value, **options, stream=io.StringIO())


def _message(message: Any, *values: Any) -> str:
    """As ``LogRecord.getMessage``."""
    given: Any = values
    if len(values) == 1 and isinstance(values[0], dict) and values[0]:
        given = values[0]
    return str(message) % given if values else str(message)


def _stand_in(node: fx.Node, trial: int) -> Any:
    value = tensor_value(node)
    if value is None:
        held = node.meta.get("example_value")
        kind = getattr(getattr(held, "node", None), "pytype", type(held))
        return _number(kind, trial)
    sizes = [size_hint(size) for size in value.shape]
    known = [2 if size is None else size for size in sizes]
    if torch.Size(known).numel() > _WHOLE:
        known = [min(size, 2) for size in known]
    return torch.full(known, _fill(value.dtype, trial), dtype=value.dtype, device="cpu")


def _number(kind: Any, trial: int) -> Any:
    if kind is bool:
        return trial % 2 == 0
    if kind is int:
        return (0, 1, -1, 2**63 - 1, 2, 3)[trial]
    return (0.0, 1.0, -1.0, float("nan"), float("inf"), 1.7e308)[trial]


def _fill(dtype: torch.dtype, trial: int) -> Any:
    if dtype is torch.bool:
        return trial % 2 == 0
    if dtype.is_floating_point:
        return (0.0, 1.0, -1.0, float("nan"), float("inf"), torch.finfo(dtype).max)[trial]
    if dtype.is_complex:
        return (0j, 1j, -1 + 0j, complex("nan"), complex("inf"), 1e30j)[trial]
    limits = torch.iinfo(dtype)
    return (0, 1, max(-1, limits.min), limits.max, limits.min, 2)[trial]
