"""Read the translator's symbolic stack, and wrap graph nodes as tracked values.

Run on torch 2.11 to 2.15.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch._dynamo
import torch._inductor
from torch import fx

from fusepass.torch_private.fx.graphs import known_equal
from fusepass.torch_private.fx.tensor_kinds import why_not_plain


def is_plain_tensor(value: Any) -> bool:
    """Whether a tracked value is an ordinary strided tensor (no subclass, no sparse layout)."""
    return is_any_tensor(value) and why_not_plain(value) is None


def tensor_on_top(translator: Any) -> Any:
    """The tracked tensor on top of the symbolic stack, or None when it is not a tensor."""
    from torch._dynamo.variables import LazyVariableTracker

    value = translator.stack[-1]
    if isinstance(value, LazyVariableTracker):
        held = getattr(value, "_cache", None)  # its value is gone once somebody looked at it
        wanted = isinstance(getattr(held, "value", None), torch.Tensor) or value.is_realized()
        if not wanted:
            return None
        value = value.realize()
        translator.stack[-1] = value
    return value if is_any_tensor(value) else None


def node_of(value: Any) -> fx.Node | None:
    """The graph node of a tracked tensor, or None for anything else."""
    from torch._dynamo.variables import LazyVariableTracker

    if isinstance(value, LazyVariableTracker) and not value.is_realized():
        return None
    value = realized(value)
    return value.as_proxy().node if is_any_tensor(value) else None


def is_any_tensor(value: Any) -> bool:
    """Whether a tracked value is a tensor of any sort."""
    from torch._dynamo.variables import TensorVariable

    return isinstance(value, TensorVariable)


def realized(value: Any) -> Any:
    """The tracked value itself behind a lazily built one."""
    from torch._dynamo.variables import LazyVariableTracker

    return value.realize() if isinstance(value, LazyVariableTracker) else value


def constant_of(value: Any) -> tuple[bool, Any]:
    """``(True, python value)`` for a compile-time constant, else ``(False, None)``."""
    from torch._dynamo.variables import ConstantVariable

    value = getattr(value, "vt", value)  # the key of a dictionary
    immutable = ("SizeVariable", "SliceVariable", "EnumVariable")
    plain = isinstance(value, ConstantVariable) or type(value).__name__ in immutable
    if plain and value.is_python_constant():
        return True, value.as_python_constant()
    return False, None


def same_symbol(a: Any, b: Any) -> bool:
    """Whether two tracked sizes, or tuples of sizes, are equal for every input."""
    from torch._dynamo.variables import ConstantVariable
    from torch._dynamo.variables.lists import SizeVariable
    from torch._dynamo.variables.tensor import SymNodeVariable

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


def wrap_tensor(translator: Any, proxy: fx.Proxy, fake: torch.Tensor) -> Any:
    """A tracked tensor for a proxy whose fake value is known."""
    from torch._dynamo.variables.builder import wrap_fx_proxy

    return wrap_fx_proxy(translator, proxy, example_value=fake)


def wrap_call(
    translator: Any, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Record a call in the graph being traced and return its tracked value."""
    from torch._dynamo.variables.builder import wrap_fx_proxy

    proxy = translator.output.create_proxy(kind, target, args, kwargs)
    return wrap_fx_proxy(translator, proxy)


def number_on_top(translator: Any) -> fx.Node | None:
    """The graph node of the unknown number on top of the symbolic stack, or None."""
    from torch._dynamo.variables import LazyVariableTracker

    value = translator.stack[-1]
    return None if isinstance(value, LazyVariableTracker) else number_node(value)


def number_node(value: Any) -> fx.Node | None:
    """The graph node of a tracked Python number that is not a constant, or None."""
    from torch._dynamo.variables.tensor import SymNodeVariable

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


@contextlib.contextmanager
def new_scope() -> Iterator[None]:
    """Dynamo's mutation scope: inside, writing to anything made outside is refused."""
    from torch._dynamo.current_scope_id import enter_new_scope

    with enter_new_scope():
        yield


def break_reason(text: str, translator: Any) -> Any:
    """What a speculation entry carries as the reason of its graph break."""
    from torch._dynamo.output_graph import GraphCompileReason

    return GraphCompileReason(text, [translator.frame_summary()])


def is_generator_frame(translator: Any) -> bool:
    """Whether the frame is a generator that Dynamo inlines."""
    from torch._dynamo.symbolic_convert import InliningGeneratorInstructionTranslator

    return isinstance(translator, InliningGeneratorInstructionTranslator)


@contextlib.contextmanager
def plain_asserts() -> Iterator[None]:
    """Treat ``assert tensor`` as the branch it is, not as a device-side assert."""
    with torch._dynamo.config.patch(rewrite_assert_with_torch_assert=False):
        yield


def code_of_local(translator: Any, name: str) -> Any:
    """The code object of the function a local or free variable holds; None if it holds none."""
    from torch._dynamo.variables import CellVariable

    held = translator.symbolic_locals.get(name)
    if isinstance(held, CellVariable):
        effects = translator.output.side_effects
        if effects.has_pending_mutation_of_attr(held, "cell_contents"):
            held = effects.load_attr(held, "cell_contents", check=False)
        else:
            held = held.pre_existing_contents
    if held is None:
        return None
    held = realized(held)
    code = getattr(held, "code", None)  # of a function made in the frame
    return getattr(getattr(held, "fn", None), "__code__", None) or getattr(code, "value", code)


def unsupported_errors() -> tuple[type[BaseException], ...]:
    """What Dynamo raises for code it cannot trace, and for values it would have to know."""
    from torch._dynamo import exc
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    kinds: list[type[BaseException]] = [exc.Unsupported, exc.UserError, exc.TorchRuntimeError]
    kinds.extend([exc.SkipFrame, exc.UncapturedHigherOrderOpError, GuardOnDataDependentSymNode])
    kinds.append(NotImplementedError)  # a tracked value cannot tell its type, or something else
    return tuple(kinds)


def restart_errors() -> tuple[type[BaseException], ...]:
    """What Dynamo raises to start its analysis again; never to be swallowed."""
    from torch._dynamo import exc

    return (exc.RestartAnalysis,)


def observed_exceptions() -> tuple[type[BaseException], ...]:
    """What Dynamo raises inside itself for an exception of the traced program."""
    from torch._dynamo import exc

    return (exc.ObservedException,)
