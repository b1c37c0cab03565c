"""Add constants to a graph, and read bounds of sizes and pinned inputs.

Run on torch 2.11 to 2.15.
"""

from __future__ import annotations

import math

import torch
from torch import fx

from fusepass.torch_private.fx.graphs import real_input


def add_constant(gm: fx.GraphModule, name: str, value: torch.Tensor) -> None:
    """Give a graph a tensor of its own, which its compiled code takes as it takes a parameter.

    AOTAutograd wants to know where each parameter and buffer of Dynamo's graphs comes from.
    """
    from torch._dynamo.source import ConstantSource

    gm.register_buffer(name, value, persistent=False)
    sources = getattr(gm, "_param_name_to_source", None)
    if sources is not None:
        sources[name] = ConstantSource(source_name=f"fusepass_{name}")


def remove_constant(gm: fx.GraphModule, name: str) -> None:
    """Undo :func:`add_constant`."""
    delattr(gm, name)
    getattr(gm, "_param_name_to_source", {}).pop(name, None)


def bounds_up_to(size: torch.SymInt, limit: int) -> tuple[int, int] | None:
    """Bounds of a symbolic size that is at most ``limit`` either way, which becomes a guard.

    None for one that is larger, and, without a guard, for one that depends on data.
    """
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    if free_unbacked_symbols(size) or not bool(size <= limit):
        return None
    if bool(size >= 0):
        return 0, limit
    return (-limit, limit) if bool(size >= -limit) else None


def size_bounds(size: torch.SymInt) -> tuple[float, float]:
    """Bounds of a symbolic integer that hold for every input, without a guard; may be infinite."""
    found = size.node.shape_env.bound_sympy(size.node.expr)
    least = int(found.lower) if found.lower.is_Integer else -math.inf
    return least, int(found.upper) if found.upper.is_Integer else math.inf


def known_bounds(size: torch.SymInt) -> tuple[int, int] | None:
    """Bounds of a symbolic size that hold for every input, without a guard, or None."""
    least, most = size_bounds(size)
    return (least, most) if isinstance(least, int) and isinstance(most, int) else None


def as_int(size: object) -> int | None:
    """The value of a size that is one number for every input of this compile, else None."""
    if isinstance(size, int):
        return size
    if not isinstance(size, torch.SymInt):
        return None
    mode = size.node.shape_env
    expression = mode.simplify(mode.replace(size.node.expr))
    return int(expression) if expression.is_number else None


def is_pinned_input(node: fx.Node) -> bool:
    """Whether an input of the graph was in pinned memory when this was compiled."""
    value = real_input(node) if node.op == "placeholder" else None
    return isinstance(value, torch.Tensor) and value.is_pinned()
