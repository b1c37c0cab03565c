"""Tracing a pattern with the sizes of its example, where that says as much as symbols do.

Symbolic sizes cost five times as much to trace with. They tell which sizes must be equal, and how
arguments are computed from sizes. The first can be had by trying: of two sizes that are equal in
the example, change one; if the pattern still runs, they were equal by chance, and only symbols
will do. If arguments hold a size, likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch.overrides import TorchFunctionMode

from fusepass.rewrite.match import trace
from fusepass.torch_private.fx.graphs import tree_flatten
from fusepass.torch_private.fx.tracing import plain_fake_mode, quiet_fakes

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
    graph = trace.record_aten(watched, fakes, mode)
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
