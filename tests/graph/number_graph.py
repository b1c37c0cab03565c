"""A small graph that reads a number from a tensor and uses it, before and after replacement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fusepass.capture.scalars.call_table import takes_any_number
from fusepass.capture.scalars.lowering import KeptScalar, Number, replace_numbers
from fusepass.capture.scalars.scalar import kind_of

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
DTYPES = (torch.bool, *WHOLE, *FLOATS)


@dataclass
class Replaced:
    """The graph as it was left, and why numbers were kept."""

    gm: fx.GraphModule
    kept: list[KeptScalar]

    @property
    def reads(self) -> int:
        return sum(node.target == "item" for node in self.gm.graph.nodes)


def replaced(function: Callable[..., Any], x: Tensor, *sources: Tensor) -> Replaced:
    """Record ``function(x, *numbers)`` with each number read from a tensor; replace the numbers."""
    graph = fx.Graph()
    mode = FakeTensorMode(shape_env=ShapeEnv())
    tracer = fx.proxy.GraphAppendingTracer(graph)
    inputs = [graph.placeholder(name) for name in ("x", *(f"t{i}" for i in range(len(sources))))]
    items = [graph.call_method("item", (node,)) for node in inputs[1:]]
    result = function(*(fx.Proxy(node, tracer) for node in (inputs[0], *items)))
    graph.output(result.node if isinstance(result, fx.Proxy) else result)
    for node, value in zip(inputs, (x, *sources), strict=True):
        node.meta["example_value"] = mode.from_tensor(value, static_shapes=True)
    for node in graph.nodes:
        if "example_value" not in node.meta and node.op != "output":
            node.meta["example_value"] = _fake(node, mode)
    numbers = [Number(item, source) for item, source in zip(items, inputs[1:], strict=True)]
    kept = replace_numbers(graph, numbers, mode)
    graph.lint()
    return Replaced(fx.GraphModule({}, graph), list(kept.values()))


def _fake(node: fx.Node, mode: Any) -> Any:
    if node.target == "item":
        held = node.args[0].meta["example_value"].dtype  # type: ignore[union-attr]
        if held is torch.bool:
            return mode.shape_env.create_unbacked_symbool()
        if held.is_floating_point:
            return mode.shape_env.create_unbacked_symfloat()
        return mode.shape_env.create_unbacked_symint()
    args = fx.map_arg(node.args, lambda n: _value(n, node))
    kwargs = fx.map_arg(node.kwargs, lambda n: _value(n, node))
    with mode:
        if node.op == "call_method":
            return getattr(args[0], node.target)(*args[1:], **kwargs)
        return node.target(*args, **kwargs)


def _value(source: fx.Node, user: fx.Node) -> Any:
    """What a fake result is computed of: for calls that take any number, with one of its kind."""
    value = source.meta["example_value"]
    kind = kind_of(value)
    if kind is None or not takes_any_number(user):
        return value
    return {"bool": True, "int": 2, "float": 0.5}[kind]


def values_of(dtype: torch.dtype) -> Iterator[Tensor]:
    """0-d tensors of a dtype: ends of its range, zeros, infinities, NaN and what lies between."""
    if dtype is torch.bool:
        numbers: list[float] = [False, True]
    elif dtype.is_floating_point:
        most = torch.finfo(dtype).max
        numbers = [0.0, 1.0, 2.0, -2.5, 0.3333333333333333, 3.0, 1e-8, 70000.0, most, -most]
        numbers += [float("inf"), float("-inf"), float("nan"), -0.0]
    else:
        limits = torch.iinfo(dtype)
        numbers = [limits.min, limits.max, 0, 1, 3, 100]
        numbers += [] if dtype is torch.uint8 else [-1]
    for number in numbers:
        yield torch.tensor(number, dtype=torch.float64 if isinstance(number, float) else None).to(
            dtype
        )


def operands(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """A tensor of a dtype with NaN, infinities and both zeros if it can have them."""
    generator = torch.Generator().manual_seed(5)
    if dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=dtype)
    if not dtype.is_floating_point:
        return torch.randint(0, 2 if dtype is torch.bool else 100, shape, generator=generator).to(
            dtype
        )
    x = (torch.randn(shape, generator=generator) * 3).to(dtype)
    special = torch.tensor([float("nan"), float("inf"), -0.0, 0.0, float("-inf")]).to(dtype)
    count = min(5, x.numel() // 2)
    x.view(-1)[:count] = special[:count]
    return x


def same_bits(a: Tensor, b: Tensor, *, zeros: bool = True) -> bool:
    """Whether two tensors are equal to the bit, all NaNs being one; ``zeros``: and both zeros two."""
    if (a.dtype, a.shape, a.stride()) != (b.dtype, b.shape, b.stride()):
        return False
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    if not torch.equal(a.isnan(), b.isnan()):
        return False
    equal = torch.equal(a.nan_to_num(nan=0.0, posinf=None), b.nan_to_num(nan=0.0, posinf=None))
    signs = torch.equal(a.signbit() & ~a.isnan(), b.signbit() & ~b.isnan())
    return equal and (signs or not zeros)
