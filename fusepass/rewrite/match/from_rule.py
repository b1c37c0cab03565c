"""The pattern of a rule, traced on its example with symbolic sizes.

To find where a bound scalar stands the pattern is traced again with another value of it; what then
changes, and how, :mod:`fusepass.rewrite.match.from_graph` reads from the two graphs.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from typing import Any

import torch
from torch import fx

from fusepass.errors import RuleError
from fusepass.rewrite.match import concrete_trace, trace
from fusepass.rewrite.match.from_graph import PatternConverter
from fusepass.rewrite.match.pattern import FLOATS, Pattern
from fusepass.rewrite.match.trace import trace_fault
from fusepass.rewrite.rule import Rule
from fusepass.torch_private.fx.tracing import chosen_by, size_expression
from fusepass.torch_private.inductor import lowering


def parameter_names(rule: Rule) -> tuple[str, ...]:
    """Names of the pattern's parameters.

    Raises:
        RuleError: the pattern takes ``*args``, ``**kwargs`` or keyword-only parameters, or has no
            readable signature.
    """
    try:
        parameters = list(inspect.signature(rule.pattern).parameters.values())
    except (TypeError, ValueError) as error:
        raise RuleError(rule.name, rule.location, f"its pattern cannot be read: {error}") from None
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        raise RuleError(rule.name, rule.location, "its pattern takes * or **; name the parameters")
    keyword = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    if keyword:
        problem = f"its pattern takes {', '.join(keyword)} by keyword only; examples go by place"
        raise RuleError(rule.name, rule.location, f"{problem}, so leave out the * in front")
    return tuple(p.name for p in parameters)


@functools.lru_cache(maxsize=1024)
def pattern_of(rule: Rule, dtype: torch.dtype) -> Pattern:
    """The pattern of a rule for graphs of a floating dtype; traced on first use.

    Raises:
        RuleError: with what is wrong.
    """
    values = rule.inputs()
    floats = {v.dtype for v in values if isinstance(v, torch.Tensor) and v.dtype in FLOATS}
    if len(floats) > 1:  # a rule about a certain mixture of dtypes
        return _trace(rule, None, exact=True)
    if rule.place == "before":  # most rules call the same operations whatever the dtype
        first = _trace(rule, next(iter(floats), dtype), exact=False)
        if first.dtype is None:
            return first
    return _trace(rule, dtype if floats else None, exact=not floats)


@functools.lru_cache(maxsize=1024)
def _trace(rule: Rule, dtype: torch.dtype | None, *, exact: bool) -> Pattern:
    names = parameter_names(rule)
    with lowering.real_tensors():
        values = _convert_dtype(rule.inputs(), dtype)
    if len(values) != len(names):
        raise RuleError(
            rule.name,
            rule.location,
            f"its example has {len(values)} values, its pattern takes {len(names)}",
        )
    try:
        with lowering.real_tensors():  # whatever compile this is in the middle of
            graph, size_of, choices = _graph(rule, values)
            varied = {
                place: _varied_inputs(rule, values, place)
                for place, value in enumerate(values)
                if not isinstance(value, torch.Tensor)
            }
    except trace.TraceError as error:
        raise RuleError(rule.name, rule.location, trace_fault("pattern", error)) from None
    except Exception as error:
        raise RuleError(rule.name, rule.location, trace_fault("pattern", error)) from error
    converter = PatternConverter(rule, names, graph, size_of, varied)
    pattern = converter.pattern(None if exact else dtype, exact)
    return dataclasses.replace(pattern, chosen_by=choices)


def _convert_dtype(values: tuple[Any, ...], dtype: torch.dtype | None) -> tuple[Any, ...]:
    return tuple(
        v.detach().to(dtype) if isinstance(v, torch.Tensor) and v.dtype in FLOATS and dtype else v
        for v in values
    )


def _graph(rule: Rule, values: tuple[Any, ...]) -> tuple[fx.Graph, Any, tuple[Any, ...]]:
    """The traced pattern, what gives the symbol or number of a size in it, and what it chose by."""
    if rule.place == "after":
        quick = concrete_trace.trace_concrete(rule.pattern, values)
        if quick is not None:
            return *quick, ()
    record = trace.record_torch if rule.place == "before" else trace.record_aten
    inputs, mode = trace.symbolic_inputs(values)
    graph = record(rule.pattern, inputs, mode)
    size_of = functools.partial(size_expression, mode=mode)
    return graph, size_of, chosen_by(mode)


def _varied_inputs(rule: Rule, values: tuple[Any, ...], place: int) -> list[tuple[Any, fx.Graph]]:
    """The pattern with another value of one scalar, for each that it can be traced with."""
    found: list[tuple[Any, fx.Graph]] = []
    for other in _other_value(values[place]):
        changed = (*values[:place], other, *values[place + 1 :])
        try:
            found.append((other, _graph(rule, changed)[0]))
        except Exception:  # noqa: BLE001 - a dimension the example has not, say
            continue
        break
    return found


def _other_value(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1, 0, 1, 2]
    if isinstance(value, float):
        other = [value * 1.25 + 0.0625, value * 0.5]
        return other if math.isfinite(value) else [1.5]  # infinity times a number is infinity
    known = ["none", "tanh", "mean", "sum"] if isinstance(value, str) else []
    return [other for other in known if other != value]
