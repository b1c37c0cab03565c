"""Roundings to half precision that the program asks for, which Inductor leaves out.

Generated code computes halves in single precision and rounds what it stores, so that
``x.half().float()`` is ``x`` there, and ``(x.half() * y).float()`` neither rounds nor overflows.
Where a cast of the program's own begins a chain of pointwise calls and another one ends it, or
the result of the first is promoted at once, each call of the chain is made by its own kernel.
Casts of autocast, and those that a kernel's formula makes, are no casts of the program's: there
Inductor's result is the closer one, and rounding it would keep kernels apart.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fusepass.graph.ops.op_names import tensor_value
from fusepass.inductor.faults.fault import Fault, is_on_cpu
from fusepass.report.decision import Decision, Station

_aten = torch.ops.aten
_CONVERT = torch.ops.prims.convert_element_type.default
_FAULT = Fault(
    "lost_rounding",
    (181568, 183607, 185337, 194357),
    "leaves out that a result is rounded to half precision",
)
_HALF = (torch.float16, torch.bfloat16)
_WIDE = (torch.float32, torch.float64)
_CASTS = frozenset("bfloat16 double float half to type type_as".split())
_VIEWS = (
    *(_aten.view.default, _aten.reshape.default, _aten.permute.default, _aten.expand.default),
    *(_aten.unsqueeze.default, _aten.squeeze.dim, _aten.squeeze.dims, _aten.slice.Tensor),
    *(_aten.select.int, _aten.clone.default, _aten.alias.default, _aten.t.default),
)
_STEEP_FUNCTIONS = (
    _aten.tan.default,
)  # of which a rounded operand gives another number altogether


def keep_casts(graph: fx.Graph) -> list[Decision]:
    """Have such chains of a joint or forward ATen graph rounded as written; what was decided."""
    kept: set[fx.Node] = set()
    for node in graph.find_nodes(op="call_function", target=_CONVERT):
        made, given = tensor_value(node), tensor_value(node.args[0])
        if made is None or given is None or made.dtype not in _HALF:
            continue
        if given.dtype in _WIDE and _is_users_cast(node):
            kept |= _chain(node)
    for operator in _STEEP_FUNCTIONS:
        for node in graph.find_nodes(op="call_function", target=operator):
            kept |= _half_precision_operand(node)
    for node in kept:
        node.meta["should_fallback"] = True
        if node.target is _CONVERT:
            _separate_cast_pair(node)
    return [_FAULT.decision("rounded as written", Station.AFTER)] if kept else []


def _separate_cast_pair(cast: fx.Node) -> None:
    """Put a copy behind a cast: up to torch 2.12 a pattern takes a pair of casts away."""
    with cast.graph.inserting_after(cast):
        copy = cast.graph.call_function(_aten.lift_fresh_copy.default, (cast,))
    copy.meta = {key: value for key, value in cast.meta.items() if key != "should_fallback"}
    cast.replace_all_uses_with(copy, lambda user: user is not copy)


def _is_users_cast(node: fx.Node) -> bool:
    """Whether a cast, or the one of which it is the gradient, stands in the program."""
    calls = node.meta.get("source_fn_stack") or node.meta.get("fwd_source_fn_stack")
    target: Any = calls[-1][1] if calls else None
    return (target if isinstance(target, str) else getattr(target, "__name__", "")) in _CASTS


def _chain(cast: fx.Node) -> set[fx.Node]:
    """The calls from a cast to a half on that round what is widened behind them."""
    found: set[fx.Node] = set()
    on_cpu = is_on_cpu(cast)

    def widened(node: fx.Node, direct: bool, depth: int) -> bool:
        """Whether what a call gives is widened; notes the calls that round it."""
        met = False
        for user in node.users:
            if _widens(user):
                met |= direct or (user.target is _CONVERT and _is_users_cast(user))
            elif user.target is _aten.view.dtype:
                met = True
            elif user.target in _VIEWS:
                met |= widened(user, direct, depth + 1)
            elif on_cpu and depth < _DEEPEST and _is_element_wise(user):
                met |= widened(user, False, depth + 1)
        if met and node.target not in _VIEWS:
            found.add(node)
        return met

    widened(cast, True, 0)
    return found


_DEEPEST = 16


def _half_precision_operand(node: fx.Node) -> set[fx.Node]:
    """The call that makes the operand of a steep function, if both are of half precision."""
    operand = node.args[0]
    while isinstance(operand, fx.Node) and operand.target is _CONVERT:
        operand = operand.args[0]  # in which a half's formula computes
    made = tensor_value(operand)
    rounds = made is not None and made.dtype in _HALF and is_on_cpu(operand)
    return {operand} if rounds and _is_element_wise(operand) else set()  # type: ignore[arg-type]


def _widens(node: fx.Node) -> bool:
    made, tags = tensor_value(node), getattr(node.target, "tags", ())
    wide = made is not None and made.dtype in _WIDE
    return wide and (node.target is _CONVERT or torch.Tag.pointwise in tags)


def _is_element_wise(node: fx.Node) -> bool:
    made, tags = tensor_value(node), getattr(node.target, "tags", ())
    return made is not None and made.dtype in _HALF and torch.Tag.pointwise in tags
