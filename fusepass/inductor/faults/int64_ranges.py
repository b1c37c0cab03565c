"""Whether integers made of a range may leave 32 bits.

Inductor takes arithmetic on a range with constants into the index that it computes by, and indices
are computed in 32 bits where the sizes allow it.
"""

from __future__ import annotations

import torch
from torch import fx

from fusepass.inductor.faults.fault import value_of
from fusepass.torch_private.fx.tracing import size_hint

_aten = torch.ops.aten
_LARGEST = 2**31 - 1
_UNKNOWN = 2**16  # assumed of a length that varies and of which nothing is known
_SAME = frozenset(
    """view reshape unsqueeze squeeze expand permute transpose t clone slice select neg repeat
    lift_fresh_copy _unsafe_view alias flip""".split()
)


def may_exceed_int32(node: fx.Node) -> bool:
    """Whether what is computed from a range with constants may be too large for an index.

    Args:
        node: a call of ``prims.iota``.
    """
    if node.kwargs.get("dtype") is not torch.int64:
        return False
    length, start, step = node.args[0], node.kwargs.get("start", 0), node.kwargs.get("step", 1)
    count = size_hint(_size(length)) or _UNKNOWN
    if not isinstance(length, int):
        count = max(count, _UNKNOWN)
    ends = [size_hint(_size(end)) or 0 for end in (start, step)]
    return _exceeds_int32(node, max(abs(ends[0]), abs(ends[0] + ends[1] * (count - 1))))


def _size(value: object) -> int | torch.SymInt:
    found = value.meta.get("val") if isinstance(value, fx.Node) else value
    return found if isinstance(found, (int, torch.SymInt)) else 0


def _exceeds_int32(node: fx.Node, largest: int, depth: int = 0) -> bool:
    if largest > _LARGEST:
        return True
    if depth > 20:
        return False
    return any(
        made is not None and _exceeds_int32(user, made, depth + 1)
        for user in node.users
        for made in [_largest(user, node, largest)]
    )


def _largest(user: fx.Node, node: fx.Node, largest: int) -> int | None:
    """The largest number a call makes of one; None where it is no arithmetic with constants."""
    packet = getattr(user.target, "overloadpacket", None)
    name, made = getattr(packet, "__name__", ""), value_of(user)
    if made is None or made.dtype is not torch.int64:
        return None
    if name in _SAME or name == "convert_element_type":
        return largest
    if name not in ("add", "sub", "mul", "bitwise_left_shift", "__lshift__") or len(user.args) < 2:
        return None
    others = [one for one in user.args[:2] if one is not node]
    factor = _constant(others[0]) if others else largest
    if factor is None:
        return None
    if "shift" in name:
        return largest << factor if factor < 64 else None
    alpha = user.kwargs.get("alpha", 1)
    scale = abs(alpha) if isinstance(alpha, int) else 1
    return largest * factor if name == "mul" else largest + factor * scale


def _constant(value: object) -> int | None:
    """The largest magnitude of a number or of a small constant; None if it is not known."""
    if isinstance(value, (int, torch.SymInt)):
        hint = size_hint(value)
        return None if hint is None else abs(hint)
    if not isinstance(value, fx.Node):
        return None
    if value.target is _aten.full.default and isinstance(value.args[1], int):
        return abs(value.args[1])
    packet = getattr(value.target, "overloadpacket", None)
    if getattr(packet, "__name__", "") in _SAME and value.args:
        return _constant(value.args[0])
    if value.target is torch.ops.prims.iota.default:
        return _LARGEST  # of another range
    module = value.graph.owning_module
    held = getattr(module, str(value.target), None) if value.op == "get_attr" else None
    if not isinstance(held, torch.Tensor) or not held.numel() or held.is_meta:
        return None
    return int(held.detach().cpu().abs().max())
