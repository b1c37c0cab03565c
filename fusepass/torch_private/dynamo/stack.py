"""Read the translator's symbolic stack, and wrap graph nodes as tracked values.

Run on torch 2.11 to 2.15.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import torch
import torch._dynamo
from torch import fx
from torch._dynamo import exc
from torch._dynamo.current_scope_id import enter_new_scope
from torch._dynamo.output_graph import GraphCompileReason
from torch._dynamo.symbolic_convert import (
    InliningGeneratorInstructionTranslator,
    InstructionTranslator,
)
from torch._dynamo.variables import (
    BuiltinVariable,
    CellVariable,
    ConstantVariable,
    LazyVariableTracker,
    NestedUserFunctionVariable,
    TensorVariable,
)
from torch._dynamo.variables.base import AttributeMutationNew
from torch._dynamo.variables.builder import wrap_fx_proxy
from torch._dynamo.variables.lists import SizeVariable
from torch._dynamo.variables.tensor import SymNodeVariable
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from fusepass.torch_private.fx.graphs import known_equal
from fusepass.torch_private.fx.tensor_kinds import why_not_plain

# Dynamo's errors for code it cannot trace, and for values it would have to know.
UNSUPPORTED_ERRORS: tuple[type[BaseException], ...] = (
    *(exc.Unsupported, exc.UserError, exc.TorchRuntimeError, exc.SkipFrame),
    *(exc.UncapturedHigherOrderOpError, GuardOnDataDependentSymNode),
    NotImplementedError,  # a tracked value cannot tell its type, or something else
)
RESTART_ERRORS = (exc.RestartAnalysis,)  # start the analysis again; never to be swallowed
OBSERVED_EXCEPTIONS = (exc.ObservedException,)  # stand for an exception of the traced program
new_scope = enter_new_scope  # inside, writing to anything made outside is refused


def is_plain_tensor(value: Any) -> bool:
    """Whether a tracked value is an ordinary strided tensor (no subclass, no sparse layout)."""
    return is_any_tensor(value) and why_not_plain(value) is None


def tensor_on_top(translator: Any) -> Any:
    """The tracked tensor on top of the symbolic stack, or None when it is not a tensor."""
    value = translator.stack[-1]
    if is_unused(value) and not isinstance(unused_object(value), torch.Tensor):
        return None
    value = translator.stack[-1] = realized(value)
    return value if is_any_tensor(value) else None


def is_unused(value: Any) -> bool:
    """Whether the program has not used a value so far, so that Dynamo has not built it yet.

    Even ``isinstance`` of such a value has Dynamo build it: a complete graph gets another input.
    """
    return isinstance(value, LazyVariableTracker) and not value.is_realized()


def unused_object(value: Any) -> Any:
    """The object behind a value that the program has not used yet; None once it is used."""
    return getattr(getattr(value, "_cache", None), "value", None)


def node_of(value: Any) -> fx.Node | None:
    """The graph node of a tracked tensor, or None for anything else."""
    value = None if is_unused(value) else realized(value)
    return value.as_proxy().node if is_any_tensor(value) else None


def is_any_tensor(value: Any) -> bool:
    """Whether a tracked value is a tensor of any sort."""
    return isinstance(value, TensorVariable)


def realized(value: Any) -> Any:
    """The tracked value itself behind a lazily built one."""
    return value.realize() if isinstance(value, LazyVariableTracker) else value


def constant_of(value: Any) -> tuple[bool, Any]:
    """``(True, python value)`` for a compile-time constant, else ``(False, None)``."""
    value = getattr(value, "vt", value)  # the key of a dictionary
    immutable = ("SizeVariable", "SliceVariable", "EnumVariable")
    plain = isinstance(value, ConstantVariable) or type(value).__name__ in immutable
    if plain and value.is_python_constant():
        return True, value.as_python_constant()
    return False, None


def same_symbol(a: Any, b: Any) -> bool:
    """Whether two tracked sizes, or tuples of sizes, are equal for every input."""
    if isinstance(a, SizeVariable) and isinstance(b, SizeVariable):
        pairs = list(zip(a.items, b.items, strict=False))
        return len(a.items) == len(b.items) and all(same_symbol(x, y) for x, y in pairs)
    if isinstance(a, SymNodeVariable) and isinstance(b, SymNodeVariable):
        return known_equal(a.sym_num, b.sym_num)
    if isinstance(a, ConstantVariable) and isinstance(b, ConstantVariable):
        x, y = a.as_python_constant(), b.as_python_constant()
        return type(x) is type(y) and bool(x == y)
    return False


def is_existing_mutation(value: Any) -> bool:
    """Whether a tracked value existed before the traced frame started."""
    mutation = getattr(value, "mutation_type", None)
    return mutation is not None and getattr(mutation, "scope", 0) == 0


def is_new_object(value: Any) -> bool:
    """Whether a tracked value is an object that the program made, and Dynamo makes later."""
    return isinstance(getattr(value, "mutation_type", None), AttributeMutationNew)


def is_function(value: Any) -> bool:
    """Whether a tracked value is a function that the program makes."""
    return isinstance(value, NestedUserFunctionVariable)


def wrap_tensor(translator: Any, proxy: fx.Proxy, fake: torch.Tensor) -> Any:
    """A tracked tensor for a proxy whose fake value is known."""
    return wrap_fx_proxy(translator, proxy, example_value=fake)


def wrap_call(
    translator: Any, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Record a call in the graph being traced and return its tracked value."""
    proxy = translator.output.create_proxy(kind, target, args, kwargs)
    return wrap_fx_proxy(translator, proxy)


def number_on_top(translator: Any) -> fx.Node | None:
    """The graph node of the unknown number on top of the symbolic stack, or None."""
    value = translator.stack[-1]
    return None if isinstance(value, LazyVariableTracker) else number_node(value)


def number_node(value: Any) -> fx.Node | None:
    """The graph node of a tracked Python number that is not a constant, or None."""
    return value.as_proxy().node if isinstance(value, SymNodeVariable) else None


def with_node(value: Any, node: fx.Node) -> Any:
    """The tracked tensor again, standing for another node of the same metadata."""
    return value.clone(proxy=fx.Proxy(node, value.proxy.tracer), source=None)


def proxy_of(translator: Any, node: fx.Node) -> fx.Proxy:
    """A proxy for a node of the graph being traced."""
    return fx.Proxy(node, translator.output.current_tracer)


def record_grad_mode(translator: Any, enabled: bool) -> None:
    """Record that autograd is switched on or off from here on (when the graph runs)."""
    translator.output.create_node("call_function", torch._C._set_grad_enabled, (enabled,), {})


def current_translator() -> Any:
    """Dynamo's translator of the frame that this thread traces; None if it traces none."""
    try:
        return InstructionTranslator.current_tx()
    except AttributeError:
        return None


def break_reason(text: str, translator: Any) -> Any:
    """The reason of a graph break, as a speculation entry of Dynamo carries it."""
    return GraphCompileReason(text, [translator.frame_summary()])


def is_generator_frame(translator: Any) -> bool:
    """Whether the frame is a generator that Dynamo inlines."""
    return isinstance(translator, InliningGeneratorInstructionTranslator)


def plain_asserts() -> contextlib.AbstractContextManager[None]:
    """Treat ``assert tensor`` as the branch it is, not as a device-side assert."""
    setting = {"rewrite_assert_with_torch_assert": False}
    return torch._dynamo.config.patch(setting)  # type: ignore[no-any-return]


def frames_held(translator: Any) -> Iterator[Any]:
    """What the frames that are traced hold, on their stacks and under their names."""
    while translator is not None:
        yield from translator.stack
        yield from translator.symbolic_locals.values()
        translator = translator.parent


def is_cell(value: Any) -> bool:
    """Whether a tracked value is a variable that functions share."""
    return isinstance(value, CellVariable)


def is_own_cell(value: Any) -> bool:
    """Whether a tracked value is such a variable that the traced frame itself has made."""
    return is_cell(value) and is_new_object(value)


def cell_contents(effects: Any, cell: Any) -> Any:
    """The tracked value of a variable that functions share; None while it is not bound."""
    pending = effects.store_attr_mutations.get(cell, {})
    return pending.get("cell_contents", cell.pre_existing_contents)


def local_value(translator: Any, name: str) -> Any:
    """The tracked value of a local variable, shared by functions or not; None if it is not bound.

    A value that the program has not used yet stays unbuilt.
    """
    held = translator.symbolic_locals.get(name)
    if held is None or is_unused(held) or not isinstance(held, CellVariable):
        return held
    return cell_contents(translator.output.side_effects, held)


def python_object(tracked: Any) -> Any:
    """The object of the program that a value stands for, looked at without a guard; or None."""
    if is_unused(tracked):
        return unused_object(tracked)
    known, python = constant_of(tracked)
    return python if known else getattr(tracked, "value", None)


def code_of_local(translator: Any, name: str) -> Any:
    """The code object of the function a local or free variable holds; None if it holds none."""
    held = local_value(translator, name)
    if held is None or is_unused(held):  # what is being called has been used
        return None
    held = realized(held)
    code = getattr(held, "code", None)  # of a function made in the frame
    return getattr(getattr(held, "fn", None), "__code__", None) or getattr(code, "value", code)


def constant(value: Any) -> Any:
    """A tracked constant."""
    return ConstantVariable.create(value)


def traced_operator(translator: Any, function: Any, args: list[Any]) -> Any:
    """Trace a call of one of Python's operators, as ``operator.and_``."""
    return BuiltinVariable(function).call_function(translator, args, {})


def break_graph(what: str, why: str, hints: Sequence[str] = (), context: str = "") -> NoReturn:
    """Break the graph at the instruction being traced.

    Raises:
        Unsupported: of Dynamo.
    """
    exc.unimplemented(gb_type=what, context=context, explanation=why, hints=[*hints])
