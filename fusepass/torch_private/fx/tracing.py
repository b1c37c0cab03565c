"""Run a rule's functions on fake tensors. Run on torch 2.11 to 2.15."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import sympy
import torch
import torch._dynamo
import torch._inductor
from torch import fx

from fusepass.torch_private.fx.graphs import operator_name


def traced_to_aten(function: Callable[..., Any], inputs: Sequence[Any]) -> fx.Graph:
    """Trace to ATen calls through Inductor's decompositions, with fake tensors and symbols."""
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    traced = make_fx(function, select_decomp_table(), tracing_mode="real")(*inputs)
    graph = traced.graph
    graph.eliminate_dead_code()
    return graph


def symbolic_fake_mode() -> Any:
    """A fake mode whose sizes are symbols that know nothing of each other."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return FakeTensorMode(shape_env=ShapeEnv(duck_shape=False), allow_non_fake_inputs=False)


@contextlib.contextmanager
def quiet_fakes() -> Iterator[None]:
    """No log lines of fake tensors for what is tried and may well fail."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


@contextlib.contextmanager
def tracing_a_rule() -> Iterator[None]:
    """Functions made by torch.compile run as written (compiled code takes no fakes); symbols work.

    Several operations have a kernel for symbolic sizes only in Python.
    """
    from torch._dispatch.python import enable_python_dispatcher

    with torch.compiler.set_stance("force_eager"), enable_python_dispatcher(), quiet_fakes():
        yield


def plain_fake_mode() -> Any:
    """A fake mode with sizes as they are."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=False)


def symbolic_fake(mode: Any, value: torch.Tensor, place: int) -> torch.Tensor:
    """A fake tensor like ``value`` with a symbol of its own for every size but 0 and 1."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    context: Any = StatelessSymbolicContext(
        dynamic_sizes=[DimDynamic.DYNAMIC] * value.dim(),
        constraint_sizes=[None] * value.dim(),
    )
    source = ConstantSource(f"rule_input_{place}")
    return mode.from_tensor(value, source=source, symbolic_context=context)  # type: ignore[no-any-return]


def size_expression(size: Any, mode: Any) -> Any:
    """An int, or the sympy expression of a symbolic size with what the mode found out put in."""
    if isinstance(size, int):
        return size
    expression = mode.shape_env.simplify(mode.shape_env.replace(size.node.expr))
    if not expression.is_number:
        return expression
    return int(expression) if isinstance(size, torch.SymInt) else float(expression)


def chosen_by(mode: Any) -> tuple[Any, ...]:
    """What a traced function found out of its sizes to choose by, as sympy expressions.

    Not what torch itself asked: the same operations come out either way.
    """
    environment, own = mode.shape_env, f"{Path(torch.__file__).parent}{os.sep}"
    found = []
    for guard in environment.guards:
        place = getattr(guard.sloc, "framework_loc", None)
        if str(getattr(place, "filename", place)).startswith(own):
            continue
        expression = environment.simplify(environment.replace(guard.expr))
        if not expression.is_number and expression not in (sympy.true, sympy.false):
            found.append(expression)
    return tuple(found)


def evaluated_size(expression: Any, sizes: dict[Any, Any]) -> Any:
    """A size expression with symbols replaced by the sizes (ints or SymInts) they stand for.

    Raises:
        KeyError: a symbol without a size.
    """
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    if isinstance(expression, (int, float)):
        return expression
    missing = expression.free_symbols - sizes.keys()
    if missing:
        raise KeyError(str(missing))
    return sympy_interp(PythonReferenceAnalysis, sizes, expression)


def lacks_backward(target: Any) -> bool:
    """Whether an operator of a library can be run but not differentiated."""
    from torch._library.custom_ops import OPDEFS

    names = operator_name(target)
    if names is None or names[0] in ("aten", "prims"):
        return False
    name = "::".join(names)
    definition = OPDEFS.get(name)
    if definition is not None:
        return definition._backward_fn is None
    keys = ("Autograd", "CompositeImplicitAutograd", "AutogradCPU", "AutogradCUDA")
    return not any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys)


def has_own_backward(grad_fn: Any) -> bool:
    """Whether a node of autograd's graph is a user's ``autograd.Function``.

    ``torch.library.register_autograd`` makes such functions too; those belong to their operator.
    """
    is_function = isinstance(grad_fn, torch.autograd.function.BackwardCFunction)
    return is_function and not type(grad_fn).__name__.startswith("GeneratedBackwardFor_")


@contextlib.contextmanager
def guards_not_timed() -> Iterator[None]:
    """Spare each compile the timing of its guards, which Dynamo does for its log only.

    It empties the CPU's caches first, a third of what compiling a small program takes.
    """
    guards: Any = torch._dynamo.guards
    timed = getattr(guards, "profile_guard_manager", None)
    if timed is None:
        yield
        return
    guards.profile_guard_manager = lambda *_: 0.0
    try:
        yield
    finally:
        guards.profile_guard_manager = timed


@contextlib.contextmanager
def faking(fake_mode: Any) -> Iterator[None]:
    """Inside, operations on fake tensors of a mode compute, symbolic sizes included."""
    from torch._dispatch.python import enable_python_dispatcher

    with fake_mode, enable_python_dispatcher():
        yield
