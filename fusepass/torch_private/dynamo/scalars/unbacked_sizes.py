"""Allow fake tensors with sizes that are known only when the graph runs.

Find out as well which unknown size or number an error is about. Run on torch 2.11 to 2.15.
"""

from __future__ import annotations

import contextlib
import dataclasses
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch._dynamo import utils
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.tensor import SymNodeVariable
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    PendingUnbackedSymbolNotFound,
    ShapeEnv,
    free_unbacked_symbols,
)

from fusepass.torch_private.dynamo.compile_state import is_internal_file
from fusepass.torch_private.dynamo.stack import current_translator, is_unused, node_of
from fusepass.torch_private.patches import Patches


@contextlib.contextmanager
def data_sizes(translator: Any) -> Iterator[None]:
    """Inside, ``x[mask]`` gives a tensor of unknown size instead of a graph break."""
    shapes = translator.fake_mode.shape_env
    allowing = dataclasses.replace(shapes.settings, allow_dynamic_output_shape_ops=True)
    with Patches() as patches:
        patches.set(shapes, "settings", allowing)
        yield


def hook_sizes(patches: Patches, on_size: Callable[[Any, Any], bool]) -> None:
    """Put a handler in front of operations whose result has a size that only the data know.

    Args:
        patches: take the hook out again.
        on_size: called as ``(translator, node)`` with the translator of the function being traced
            and the call just recorded; says whether it may give such a tensor instead of a graph
            break.
    """
    original: Any = ShapeEnv.allow_dynamic_output_shape_ops

    def allowed(self: Any) -> bool:
        if original.fget(self):
            return True
        output = getattr(current_translator(), "output", None)
        if output is None or output.shape_env is not self:
            return False
        if output.current_tracer is not output.root_tracer:
            return False  # the body of a higher-order operator
        node = next(iter(reversed(output.graph.nodes)), None)
        return node is not None and on_size(output.current_tx, node)

    patches.set(ShapeEnv, "allow_dynamic_output_shape_ops", property(allowed))


def sizes_bound(meta: dict[str, Any]) -> frozenset[Any]:
    """The unknown sizes that a node introduces, by the meta data Dynamo gave it."""
    if isinstance(meta.get("example_value"), (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return frozenset()  # a number read from a tensor is no size
    return frozenset(meta.get("unbacked_bindings") or ())


def unknown_sizes(value: Any) -> frozenset[Any]:
    """The unknown sizes and numbers in a fake tensor, or in a number."""
    if isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)):
        return frozenset(free_unbacked_symbols(value))
    return frozenset()


def linear_size(value: Any) -> tuple[Any, int, int] | None:
    """``(symbol, factor, rest)`` of an integer ``factor * symbol + rest`` of one unknown size."""
    if not isinstance(value, torch.SymInt):
        return None
    expression = value.node.expr
    symbols = expression.free_symbols
    if len(symbols) != 1 or not unknown_sizes(value):
        return None
    (symbol,) = symbols
    factor, rest = expression.coeff(symbol), expression.subs(symbol, 0)
    whole = factor.is_Integer and rest.is_Integer
    if not whole or expression != factor * symbol + rest:
        return None
    return symbol, int(factor), int(rest)


def sizes_from_data(fake: torch.Tensor) -> list[int]:
    """The dimensions of a fake tensor whose size depends on data."""
    return [dim for dim, size in enumerate(fake.shape) if free_unbacked_symbols(size)]


def count_as(mask: Any, other: Any) -> None:
    """Have the next ``x[mask]`` be of the size that was counted for an equal mask.

    Args:
        mask: a fake tensor, not counted yet or counted by itself.
        other: one of the same values and sizes.
    """
    counted = getattr(other, "nonzero_memo", None)
    if counted is not None and getattr(mask, "nonzero_memo", None) is None:
        mask.nonzero_memo = counted


def forget_count(mask: torch.Tensor, sizes: frozenset[Any]) -> None:
    """Have the next ``x[mask]`` count anew, if the count known is one of ``sizes``."""
    counted = getattr(mask, "nonzero_memo", None)
    if counted is not None and unknown_sizes(counted) & sizes:
        mask.nonzero_memo = None  # type: ignore[attr-defined]


def forget_sizes(
    translator: Any, sizes: Iterable[Any], metas: Iterable[dict[str, Any]] = ()
) -> None:
    """Drop what is to be checked about unknown sizes that nothing in the graph uses any more."""
    shapes = translator.fake_mode.shape_env
    for size in sizes:
        checks = shapes.deferred_runtime_asserts.pop(size, [])
        shapes.num_deferred_runtime_asserts -= len(checks)
        translator.output.root_tracer.bound_symbols.pop(size, None)
    for meta in metas:
        meta.pop("unbacked_bindings", None)


def asked_symbols(error: BaseException) -> frozenset[Any]:
    """The unknown sizes and numbers an error is about, if it or what caused it says so."""
    for link in _causes(error):
        if isinstance(link, GuardOnDataDependentSymNode):
            return frozenset(getattr(getattr(link, "cond", None), "free_symbols", ()))
    return frozenset()


def asked_by_operation(error: BaseException) -> bool:
    """Whether it was an operation on tensors, or ``range``, that asked for a value."""
    if gives_unknown_sizes(error):
        return True
    calls = utils.run_node.__code__
    frames = (f for link in _causes(error) for f, _ in traceback.walk_tb(link.__traceback__))
    return any(
        one.f_code.co_name == "call_range" or (one.f_code is calls and not _is_of_numbers(one))
        for one in frames
    )


def _is_of_numbers(call: Any) -> bool:
    """Whether the call that Dynamo runs there is one of Python's or NumPy's on numbers alone."""
    target, args = getattr(call.f_locals.get("node"), "target", None), call.f_locals.get("args", ())
    of_python = getattr(target, "__module__", None) in ("_operator", "math")
    of_numpy = type(target).__module__ == "torch._dynamo.utils"  # a function of NumPy's, wrapped
    return (of_python or of_numpy) and not any(isinstance(one, torch.Tensor) for one in args)


def gives_unknown_sizes(error: BaseException) -> bool:
    """Whether the last call traced fails because sizes of what it gives cannot be known."""
    return any(isinstance(link, PendingUnbackedSymbolNotFound) for link in _causes(error))


def _causes(error: BaseException) -> list[BaseException]:
    """An error and what led to it, latest first."""
    found: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in found:
        found.append(link)
        link = link.__cause__ or link.__context__
    return found


def has_unknown_in_hand(translator: Any, error: BaseException) -> bool:
    """Whether an error may be about a number or a size that is not known while tracing.

    Dynamo's functions between the instruction and the error hold what it is about as their
    variables. Python code of its own, which stands for a builtin, is traced: it has locals.
    """
    found: list[Any] = []

    def look(value: Any) -> None:
        if not is_unused(value) and _is_unknown(value):
            found.append(value)

    cache: dict[int, Any] = {}
    for values in (*_of_functions(error), *_of_own_code(translator)):
        for value in values:
            if isinstance(value, (VariableTracker, list, tuple, dict)):
                VariableTracker.visit(look, value, cache)
            if found:
                return True
    return False


def _is_unknown(value: Any) -> bool:
    if isinstance(value, SymNodeVariable):
        return bool(free_unbacked_symbols(value.sym_num))
    node = node_of(value)
    held = None if node is None else node.meta.get("example_value")
    return bool(free_unbacked_symbols(tuple(getattr(held, "shape", ()))))


def _of_functions(error: BaseException) -> list[list[Any]]:
    """The variables of Dynamo's functions behind the instruction that raised."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    steps = [at for at, one in enumerate(frames) if one.f_code.co_name == "step"]
    return [list(one.f_locals.values()) for one in frames[steps[-1] + 1 if steps else 0 :]]


def _of_own_code(translator: Any) -> Iterator[list[Any]]:
    while translator is not None and is_internal_file(translator.f_code.co_filename):
        yield list(translator.symbolic_locals.values())
        translator = translator.parent
