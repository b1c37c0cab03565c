"""What the predicates of several faults ask of a call: signs of zero, layouts, integers' ranges.

``minimum(-0.0, 0.0)`` is either zero, and eager's own choice depends on where in the tensor it
lies; ``x + 0.0`` of a negative zero is a positive one, and Inductor takes the sum away. A sign
matters where something else is made of it, as by ``1 / x``.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, fx

from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.inductor.faults.fault import argument, is_on_cpu
from fusepass.torch_private.fx.graphs import size_hint

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
_BOTH = frozenset(("atan2", "view_dtype"))


def is_extremum_sign_seen(node: fx.Node) -> bool:
    """Whether the sign of a zero is seen that an extremum or a clamp chooses, on the CPU."""
    if not is_on_cpu(node) or not node.meta["val"].dtype.is_floating_point:
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
            name = op_name(user)
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


# --- Whether what a call reads lies in memory in the order of its dimensions ----------------------
# Inductor chooses the order of a kernel's loops by how memory lies, also that of what it computes
# in the same kernel, so that one operand of a kernel that lies otherwise decides.

_MAX_NODES = 200  # nodes looked at: behind so many nobody knows
_KERNELS = frozenset(  # of libraries, whose results lie as their meta data say
    "mm addmm bmm baddbmm convolution _convolution convolution_backward _scaled_dot_product".split()
)


def may_be_permuted(node: fx.Node, last: int | None = None) -> bool:
    """Whether a tensor, or one that may be computed in its kernel, lies in another order.

    Only the ``last`` dimensions must lie in order, if that is given.
    """
    seen, waiting = {node}, [node]
    while waiting:
        one = waiting.pop()
        value = tensor_value(one)
        if len(seen) > _MAX_NODES or (value is not None and not _in_order(value, last)):
            return True
        if one.op != "call_function" or (op_name(one) or "").startswith(tuple(_KERNELS)):
            continue
        new = [given for given in one.all_input_nodes if given not in seen]
        seen.update(new)
        waiting += new
    return False


def _in_order(value: Tensor, last: int | None) -> bool:
    if last is not None and value.dim() <= last:
        return True
    sizes, strides = list(value.shape), list(value.stride())
    if last is not None:
        sizes, strides = sizes[-last:], strides[-last:]
    known = [
        size_hint(stride)
        for size, stride in zip(sizes, strides, strict=True)
        if size_hint(size) != 1
    ]
    numbers = [one for one in known if one is not None]
    return len(numbers) == len(known) and all(a >= b > 0 for a, b in itertools.pairwise(numbers))


# --- Integers that leave their type, of which a C++ compiler assumes that they do not -------------
# Eager wraps round: of the largest number ``x + 1 > x`` is False. Where both sides of a comparison
# are made of one tensor, a compiler may decide it without a look at the numbers.

_ARITHMETIC = (
    *(_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.add.Scalar, _aten.sub.Scalar),
    *(_aten.mul.Scalar, _aten.neg.default, _aten.abs.default),
)
_COMPARISONS = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))
_WIDTHS = (torch.int32, torch.int64)  # narrower ones are computed in these
_MAX_DEPTH = 8


def compares_with_own_operand(node: fx.Node) -> bool:
    """Whether a call's result is compared with what is made of the same tensor, on the CPU."""
    if not is_on_cpu(node) or node.meta["val"].dtype not in _WIDTHS:
        return False
    return any(_is_compared(user, node) for user in node.users)


def _is_compared(user: fx.Node, node: fx.Node) -> bool:
    if op_name(user) not in _COMPARISONS or len(user.args) < 2:
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


# --- Whether integers made of a range may leave 32 bits -------------------------------------------
# Inductor takes arithmetic on a range with constants into the index that it computes by, and
# indices are computed in 32 bits where the sizes allow it.

_LARGEST = 2**31 - 1
_UNKNOWN = 2**16  # assumed of a length that varies and of which nothing is known
_SAME = frozenset(
    """view reshape unsqueeze squeeze expand permute transpose t clone slice select neg repeat
    lift_fresh_copy _unsafe_view alias flip view_dtype""".split()
)


def may_exceed_int32(node: fx.Node) -> bool:
    """Whether what is computed from a range with constants may be too large for an index."""
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
    name, made = op_name(user) or "", tensor_value(user)
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
    if op_name(value) in _SAME and value.args:
        return _constant(value.args[0])
    if value.target is torch.ops.prims.iota.default:
        return _LARGEST  # of another range
    module = value.graph.owning_module
    held = getattr(module, str(value.target), None) if value.op == "get_attr" else None
    if not isinstance(held, torch.Tensor) or not held.numel() or held.is_meta:
        return None
    return int(held.detach().cpu().abs().max())
