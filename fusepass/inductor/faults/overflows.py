"""Integers that leave their type, of which a C++ compiler assumes that they do not.

Eager wraps round: of the largest number ``x + 1 > x`` is False. Where both sides of a comparison
are made of one tensor, a compiler may decide it without a look at the numbers.
"""

from __future__ import annotations

import torch
from torch import fx

from fusepass.inductor.faults.fault import value_of

_aten = torch.ops.aten
_ARITHMETIC = (
    *(_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.add.Scalar, _aten.sub.Scalar),
    *(_aten.mul.Scalar, _aten.neg.default, _aten.abs.default),
)
_COMPARISONS = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))
_WIDTHS = (torch.int32, torch.int64)  # narrower ones are computed in these
_MAX_DEPTH = 8


def compares_with_own_operand(node: fx.Node) -> bool:
    """Whether a call's result is compared with what is made of the same tensor, on the CPU."""
    made = value_of(node)
    if made is None or made.dtype not in _WIDTHS or made.device.type != "cpu":
        return False
    return any(_is_compared(user, node) for user in node.users)


def _is_compared(user: fx.Node, node: fx.Node) -> bool:
    packet = getattr(user.target, "overloadpacket", None)
    if getattr(packet, "__name__", "") not in _COMPARISONS or len(user.args) < 2:
        return False
    other = user.args[1] if user.args[0] is node else user.args[0]
    if isinstance(other, fx.Node):
        return other is not node and bool(_sources(node) & _sources(other))
    return node.target is _aten.abs.default and isinstance(other, (int, float)) and other <= 0


def _sources(node: fx.Node, depth: int = 0) -> set[fx.Node]:
    """What the arithmetic that makes a tensor begins with, each with itself."""
    if node.target not in _ARITHMETIC or depth > _MAX_DEPTH:
        return {node}
    return {node}.union(*(_sources(one, depth + 1) for one in node.all_input_nodes))
