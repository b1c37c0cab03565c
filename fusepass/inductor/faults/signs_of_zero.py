"""Where the sign of a zero is seen, and calls of which Inductor makes another one than eager.

``minimum(-0.0, 0.0)`` is either zero, and eager's own choice depends on where in the tensor it
lies; ``x + 0.0`` of a negative zero is a positive one, and Inductor takes the sum away. A sign
matters where something else is made of it, as by ``1 / x``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fusepass.inductor.faults.fault import argument, value_of

_aten = torch.ops.aten
EXTREMA = (_aten.minimum.default, _aten.maximum.default)
CLAMPS = (
    *(_aten.clamp_min.default, _aten.clamp_max.default, _aten.clamp.default),
    *(_aten.clamp_min.Tensor, _aten.clamp_max.Tensor, _aten.clamp.Tensor),
)
_MOST = 100  # calls looked at: behind so many nobody knows
# Calls that give a zero of the same or the opposite sign where they are given one.
_KEEP = frozenset(
    """view reshape permute transpose t expand unsqueeze squeeze slice select clone alias cat neg
    mul convert_element_type sqrt flip index where lift_fresh_copy _unsafe_view
    clamp clamp_min clamp_max maximum minimum""".split()
)
# The place of the operand of which they show the sign.
_SHOW = {"div": 1, "reciprocal": 0, "rsqrt": 0, "copysign": 1, "signbit": 0, "pow": 0}
_BOTH = frozenset(("atan2", "view_as_dtype"))


def is_extremum_sign_seen(node: fx.Node) -> bool:
    """Whether the sign of a zero is seen that an extremum or a clamp chooses, on the CPU."""
    made = value_of(node)
    if made is None or not made.dtype.is_floating_point or made.device.type != "cpu":
        return False
    if node.target in CLAMPS:  # whose result is handed out too often for the sign alone
        return _is_bound_by_zero(node) and is_sign_seen(node)
    return is_output(node) or is_sign_seen(node)


def _is_bound_by_zero(node: fx.Node) -> bool:
    bounds = [*node.args[1:], *node.kwargs.values()]
    return any(isinstance(one, fx.Node) or one == 0 for one in bounds)


def is_output(node: fx.Node) -> bool:
    """Whether a graph returns a call's result, or keeps it for its backward."""
    return any(user.op == "output" for user in node.users)


def is_sign_seen(node: fx.Node) -> bool:
    """Whether a number that depends on the sign of a zero is made of a call's result."""
    seen, waiting = {node}, [node]
    while waiting:
        one = waiting.pop()
        for user in one.users:
            name = _name(user)
            if name in _BOTH or (name in _SHOW and _is_at(user, one, _SHOW[name])):
                return True
            if name in _KEEP and user not in seen and not _is_without_zero(user):
                seen.add(user)
                waiting.append(user)
        if len(seen) > _MOST:
            return True
    return False


def _is_at(user: fx.Node, node: fx.Node, place: int) -> bool:
    return len(user.args) > place and user.args[place] is node


def _is_without_zero(clamp: fx.Node) -> bool:
    """Whether a call clamps to numbers above or below zero."""
    bound = argument(clamp, 1) if clamp.target in CLAMPS else None
    if not isinstance(bound, (int, float)):
        return False
    return bound < 0 if clamp.target is _aten.clamp_max.default else bound > 0


def _name(node: fx.Node) -> str:
    if node.target is _aten.view.dtype:
        return "view_as_dtype"
    packet: Any = getattr(node.target, "overloadpacket", None)
    return getattr(packet, "__name__", "") or ""
