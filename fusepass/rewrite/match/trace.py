"""Run a rule's function on fake tensors and record its calls.

Before autograd the graph holds calls as users write them, so they are recorded as they pass
``__torch_function__``. After autograd it holds ATen calls, so the function is traced through
Inductor's decompositions. Python control flow in the function runs as it is. A function that cannot
be traced gets an error in the words of its author.
"""

from __future__ import annotations

import contextlib
import inspect
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch.overrides import TorchFunctionMode

from fusepass.graph.dataflow.reached import reached
from fusepass.graph.ops.schemas import SymbolicSize
from fusepass.torch_private.fx.graphs import operator_name, tree_flatten
from fusepass.torch_private.fx.tracing import (
    has_own_backward,
    plain_fake_mode,
    quiet_fakes,
    symbolic_fake,
    symbolic_fake_mode,
    traced_to_aten,
    tracing_a_rule,
)

_METADATA = frozenset(
    """size stride dim ndimension numel nelement element_size is_contiguous is_floating_point
    is_complex storage_offset get_device requires_grad_ is_inference data_ptr untyped_storage
    __len__ __hash__ __repr__ is_signed dim_order""".split()
)
_READS_BACK = frozenset("item __bool__ __int__ __float__ tolist __index__".split())
_WITHOUT_EFFECT = frozenset("retain_grad _assert _assert_async".split())
_PROPERTIES = frozenset("T mT H mH real imag".split())
_TRACED = (torch.Tensor, torch.SymInt, torch.SymFloat)


class TraceError(Exception):
    """A rule's function does what a rule's function cannot do; the text says what."""


class GradModeError(TraceError):
    """A rule's function switches gradients off or on."""

    def __init__(self, *, off: bool) -> None:
        remedy = (
            "instead of `with torch.no_grad():` call `detach()` on what is to have no gradient"
            if off
            else "leave `torch.enable_grad` out"
        )
        super().__init__(
            f"it computes with gradients switched {'off' if off else 'on'}, which is not recorded; "
            + remedy
        )


class _CallRecorder(TorchFunctionMode):
    """Writes every call of torch down as a node.

    Grad mode is no part of a node: what a rule's function computes without it would have gradients
    in the graph, and a pattern with it match a program without. So no function may switch it.
    """

    def __init__(self, graph: fx.Graph) -> None:
        super().__init__()
        self.grad = torch.is_grad_enabled()
        self.inference = torch.is_inference_mode_enabled()
        self.graph = graph
        self.nodes: dict[int, fx.Node] = {}
        self.alive: list[Any] = []

    def note(self, value: torch.Tensor, node: fx.Node) -> None:
        node.meta["example_value"] = value
        self.nodes[id(value)] = node
        self.alive.append(value)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "_set_grad_enabled":
            if self.grad and args[0]:
                return func(*args)  # changes nothing
            raise GradModeError(off=not args[0])
        if torch.is_inference_mode_enabled() != self.inference:
            raise GradModeError(off=not self.inference)
        result = func(*args, **kwargs)
        if name == "__get__":
            name = getattr(getattr(func, "__self__", None), "__name__", "")
            if name not in _PROPERTIES:
                return result
            node = self.graph.call_function(getattr, (self.argument(args[0]), name))
        elif name in _METADATA or not _has_tensor(result):
            if name in _READS_BACK:
                raise TraceError(f"it reads a tensor's value back to Python ({name})")
            given = tree_flatten((args, kwargs))[0]
            if result is None and name not in _WITHOUT_EFFECT and _has_tensor(given):
                self.effect(func, name, args, kwargs)
            return result
        else:
            node = self.call(func, name, args, kwargs)
        self.note_result(node, result)
        return result

    def effect(self, func: Any, name: str, args: Any, kwargs: Any) -> None:
        """A call that returns nothing writes to what it is given."""
        if name == "__setitem__":
            self.graph.call_function(operator.setitem, self.argument(tuple(args)))
        elif operator_name(func) is not None:
            self.call(func, name, args, kwargs)
        else:
            if name == "__set__":
                name = getattr(getattr(func, "__self__", None), "__name__", name)
            raise TraceError(f"it changes a tensor in a way that cannot be recorded ({name})")

    def call(self, func: Any, name: str, args: Any, kwargs: Any) -> fx.Node:
        wrapped = getattr(func, "__wrapped__", None)
        if wrapped is not None and func.__module__ == "torch._tensor" and _is_method(wrapped):
            func = wrapped  # of Tensor.__pow__, whose own name says "pow" and is none there
            name = func.__name__
        if _is_method(func) and inspect.isfunction(func):  # gives its own defaults on
            bound = inspect.signature(func).bind(*args, **kwargs)
            defaults = {n: p.default for n, p in inspect.signature(func).parameters.items()}
            given = {n: v for n, v in bound.arguments.items() if v is not defaults[n]}
            args, kwargs = (given.pop(next(iter(given))),), given
        args = self.argument(tuple(args))
        kwargs = self.argument(dict(kwargs))
        if _is_method(func):
            return self.graph.call_method(name, args, kwargs)
        return self.graph.call_function(func, args, kwargs)

    def note_result(self, node: fx.Node, result: Any) -> None:
        if isinstance(result, torch.Tensor):
            if id(result) in self.nodes:  # handed back as it was: in place, or nothing to do
                node.meta["example_value"] = result
                self.nodes[id(result)] = node
            else:
                self.note(result, node)
            return
        node.meta["example_value"] = result
        for place, part in enumerate(result):
            if isinstance(part, torch.Tensor):
                item = self.graph.call_function(operator.getitem, (node, place))
                self.note(part, item)

    def argument(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            node = self.nodes.get(id(value))
            if node is None:
                raise TraceError(
                    "it uses a tensor that is none of its inputs; make it one, or build it inside"
                )
            return node
        if isinstance(value, (tuple, list)):
            return tuple(map(self.argument, value))
        if isinstance(value, dict):
            return {key: self.argument(part) for key, part in value.items()}
        if isinstance(value, slice):
            return slice(*map(self.argument, (value.start, value.stop, value.step)))
        symbolic = isinstance(value, (torch.SymInt, torch.SymFloat))
        return SymbolicSize(value) if symbolic else value


def _has_tensor(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(isinstance(part, torch.Tensor) for part in value)
    return isinstance(value, torch.Tensor)


def _is_method(func: Any) -> bool:
    kinds = ("method_descriptor", "wrapper_descriptor")
    if type(func).__name__ in kinds:
        return True
    return getattr(torch.Tensor, getattr(func, "__name__", ""), None) is func


def record_torch(function: Callable[..., Any], inputs: Sequence[Any], fake_mode: Any) -> fx.Graph:
    """Run ``function`` and return the graph of its calls of torch.

    ``inputs`` are fake tensors of ``fake_mode``, scalars and symbolic sizes, one per parameter.

    Returns:
        A graph with one placeholder per input; ``example_value`` in each node's meta.

    Raises:
        TraceError: it returns no tensor, uses a foreign tensor or an ``autograd.Function``, or
            switches gradients.
        Exception: what the function raises.
    """
    graph = fx.Graph()
    recorder = _CallRecorder(graph)
    for place, value in enumerate(inputs):
        node = graph.placeholder(f"input_{place}")
        node.meta["example_value"] = value
        if isinstance(value, torch.Tensor):
            recorder.note(value, node)
    with _isolated(), fake_mode, recorder:
        result = function(*inputs)
    _no_own_backward(result)
    graph.output(recorder.argument(as_outputs(result)))
    return graph


@contextlib.contextmanager
def _isolated() -> Iterator[None]:
    """Nothing of the user's acts on the fake tensors: no compiled code, no saved-tensor hook."""

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    with (
        tracing_a_rule(),
        torch.autograd.graph.saved_tensors_hooks(keep, keep),
        torch.set_grad_enabled(torch.is_grad_enabled()),  # as it was, whatever the function does
    ):
        yield


def as_outputs(result: Any) -> tuple[torch.Tensor, ...]:
    """What a rule's function returned, as a tuple.

    Raises:
        TraceError: it is neither a tensor nor a tuple or list of tensors.
    """
    parts = tuple(result) if isinstance(result, (tuple, list)) else (result,)
    if not parts or not all(isinstance(part, torch.Tensor) for part in parts):
        raise TraceError(f"it returns {type(result).__name__}, not a tensor or tuple of tensors")
    return parts


def _no_own_backward(result: Any) -> None:
    """``autograd.Function`` calls cannot be recorded: its forward would lose its backward."""

    def before(node: Any) -> list[Any]:
        return [source for source, _ in node.next_functions if source is not None]

    last = [t.grad_fn for t in as_outputs(result) if t.grad_fn is not None]
    if any(map(has_own_backward, reached(last, before))):
        raise TraceError(
            "it uses a torch.autograd.Function; define an operator with torch.library and "
            "register_autograd instead"
        )


def record_aten(function: Callable[..., Any], inputs: Sequence[Any], fake_mode: Any) -> fx.Graph:
    """As :func:`record_torch`, but ATen calls after Inductor's decompositions (``val`` in meta)."""
    traced = [value for value in inputs if isinstance(value, _TRACED)]

    def on_traced(*given: Any) -> tuple[torch.Tensor, ...]:
        rest = iter(given)
        full = [next(rest) if isinstance(v, _TRACED) else v for v in inputs]
        return as_outputs(function(*full))

    with _isolated(), fake_mode, torch.no_grad():
        graph = traced_to_aten(on_traced, traced)
    places = iter([n for n in graph.nodes if n.op == "placeholder"])
    following = next(places, None)
    for place, value in enumerate(inputs):  # scalars get a placeholder too, so that places agree
        if isinstance(value, _TRACED):
            following = next(places, None)
            continue
        point = following if following is not None else _first_call(graph)
        with graph.inserting_before(point):
            graph.placeholder(f"scalar_{place}").meta["val"] = value
    return graph


def _first_call(graph: fx.Graph) -> fx.Node:
    nodes: list[fx.Node] = list(graph.nodes)
    return next(n for n in nodes if n.op != "placeholder")


def symbolic_inputs(values: Sequence[Any]) -> tuple[list[Any], Any]:
    """Fake tensors with a symbol of its own for every size above 1, and their mode."""
    mode = symbolic_fake_mode()
    return [
        symbolic_fake(mode, value, place) if isinstance(value, torch.Tensor) else value
        for place, value in enumerate(values)
    ], mode


def fresh_like(value: Any, fake_mode: Any, *, requires_grad: bool) -> Any:
    """A fake tensor of its own memory with the metadata of another; other values as they are."""
    if not isinstance(value, torch.Tensor):
        return value
    with fake_mode, torch.no_grad():
        fresh = torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=value.device
        )
    return fresh.requires_grad_() if requires_grad and value.requires_grad else fresh


@contextlib.contextmanager
def grad_and_autocast(autocasts: Sequence[tuple[Any, ...]], *, grad: bool) -> Iterator[None]:
    """Grad mode and autocast as they are at a place in a graph."""
    with contextlib.ExitStack() as stack:
        for device_type, dtype, enabled, cache in autocasts:
            stack.enter_context(
                torch.autocast(device_type, dtype=dtype, enabled=enabled, cache_enabled=cache)
            )
        stack.enter_context(torch.set_grad_enabled(grad))
        yield


# By name: where the classes are is private to torch.
_DATA_DEPENDENT_ERRORS = {
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "GuardOnDataDependentSymNode",
}


def trace_fault(what: str, error: Exception) -> str:
    """What is wrong with a rule, by the exception that tracing one of its functions ended with."""
    if isinstance(error, TraceError):
        return f"its {what} cannot be used: {error}"
    if "allow_non_fake_inputs" in str(error):  # a call on fake tensors got a real one
        return (
            f"its {what} cannot be used: it uses a tensor that is none of its inputs, as a "
            "module's weights are; make it a parameter of the pattern and of the replacement, with "
            "a value in the example, or build it inside"
        )
    if _DATA_DEPENDENT_ERRORS & {kind.__name__ for kind in type(error).__mro__}:
        return (
            f"its {what} cannot be used: it reads a tensor's value, or a size that depends on one, "
            "back to Python, as `if`, `int`, `item`, `nonzero` and `x[mask]` do; use torch.where, "
            "or keep the value in a tensor"
        )
    return f"its {what} fails on the example: {type(error).__name__}: {error}"


# --- Tracing a pattern with the sizes of its example, where that says as much as symbols do -------
# Symbolic sizes cost five times as much to trace with. They tell which sizes must be equal, and how
# arguments are computed from sizes. The first can be had by trying: of two sizes that are equal in
# the example, change one; if the pattern still runs, they were equal by chance, and only symbols
# will do. If arguments hold a size, likewise.

_SIZES = frozenset(
    {
        torch.Tensor.shape.__get__,  # type: ignore[attr-defined]
        *(getattr(torch.Tensor, name) for name in "size numel nelement stride __len__".split()),
        torch.numel,
    }
)


def trace_concrete(
    function: Callable[..., Any], values: Sequence[Any]
) -> tuple[fx.Graph, Callable[[Any], Any]] | None:
    """ATen graph of ``function``, and its sizes' symbols by size; None if it takes symbols."""
    mode = plain_fake_mode()
    places: dict[int, list[tuple[int, int]]] = {}
    for place, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            for dim, size in enumerate(value.shape):
                if size > 1:
                    places.setdefault(size, []).append((place, dim))
    largest = max(places, default=0)
    for members in places.values():
        if len(members) > 1 and any(_runs(function, values, m, largest) for m in members):
            return None
    watch = _SizeReads()

    def watched(*given: Any) -> Any:
        with watch:
            return function(*given)

    fakes = [mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for v in values]
    graph = record_aten(watched, fakes, mode)
    if watch.read or any(_holds_size(node, places.keys()) for node in graph.nodes):
        return None
    symbols = {size: sympy.Symbol(f"n{size}", integer=True, positive=True) for size in places}
    return graph, lambda size: symbols.get(size, size)


class _SizeReads(TorchFunctionMode):
    """Whether a function reads sizes itself: it may choose, or compute numbers, by them."""

    read = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.read = self.read or func in _SIZES
        return func(*args, **(kwargs or {}))


def _runs(
    function: Callable[..., Any],
    values: Sequence[Any],
    member: tuple[int, int],
    largest: int,
) -> bool:
    """Whether the function still runs with another size at one place."""
    place, dim = member
    shape = list(values[place].shape)
    shape[dim] = largest + 3
    with torch.no_grad(), quiet_fakes():
        inputs = [
            torch.empty(shape if i == place else v.shape, dtype=v.dtype, device="meta")
            if isinstance(v, torch.Tensor)
            else v
            for i, v in enumerate(values)
        ]
        try:
            function(*inputs)
        except Exception:  # noqa: BLE001 - that is the answer
            return False
    return True


def _holds_size(node: fx.Node, sizes: Any) -> bool:
    leaves = tree_flatten((node.args, node.kwargs))[0]
    numbers = {v for v in leaves if isinstance(v, int) and not isinstance(v, bool)}
    return node.op == "call_function" and bool(numbers & set(sizes))
