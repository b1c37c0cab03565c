"""Calls that Inductor's own code gets wrong are made by the operator's own kernel, as in eager.

Run behind all passes of Inductor's that could take such a call into another one.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from fusepass.graph.ops.op_names import tensor_value
from fusepass.inductor.faults.call_facts import (
    CLAMPS,
    EXTREMA,
    compares_with_own_operand,
    is_extremum_sign_seen,
    may_be_permuted,
    may_exceed_int32,
)
from fusepass.inductor.faults.fault import Fault, argument, is_on_cpu, steered
from fusepass.report.decision import Decision

_aten = torch.ops.aten


def use_eager_kernels(graph: fx.Graph) -> list[Decision]:
    """Have the calls of a forward or backward ATen graph made by own kernels; what was decided."""

    def fall_back(fault: Fault, node: fx.Node) -> None:
        node.meta["should_fallback"] = True  # which Inductor reads when it lowers the call

    return steered(_FAULTS, graph, "made by its own kernel", fall_back)


def _is_flattened_index(node: fx.Node) -> bool:
    """Whether an index counts over several dimensions, of memory that may lie otherwise."""
    x = tensor_value(node.args[0])
    sizes: list[Any] = [] if x is None else [*x.shape]
    several = sum(not isinstance(size, int) or size != 1 for size in sizes) > 1
    return several and argument(node, 1) is None and may_be_permuted(node.args[0])  # type: ignore[arg-type]


def _is_index_along_one_dim(node: fx.Node) -> bool:
    """Whether an index counts along one dimension, of memory that may lie otherwise."""
    x = node.args[0]
    return isinstance(x, fx.Node) and argument(node, 1) is not None and may_be_permuted(x)


def _is_inverse_pair(node: fx.Node) -> bool:
    """Whether a C++ compiler may take two calls together, ``sin(atan(x))`` for one."""
    x = node.args[0]
    return is_on_cpu(node) and isinstance(x, fx.Node) and x.target is _aten.atan.default


def _gives_uint8(node: fx.Node) -> bool:
    made = tensor_value(node)
    return made is not None and made.dtype is torch.uint8


def _is_out_of_range(node: fx.Node) -> bool:
    """Whether a bound of a clamp is a number that the dtype does not have."""
    made, bound = tensor_value(node), argument(node, 1)
    if made is None or not isinstance(bound, (int, float)) or made.dtype is torch.bool:
        return False
    if made.dtype.is_floating_point:
        return math.isfinite(bound) and abs(bound) > torch.finfo(made.dtype).max
    if made.dtype.is_complex or (isinstance(bound, float) and not bound.is_integer()):
        return False
    info = torch.iinfo(made.dtype)
    return not info.min <= bound <= info.max


def _window_exceeds_padding(node: fx.Node) -> bool:
    """Whether a mean's last window reaches behind the padding, which ``ceil_mode`` lets it."""
    grad, x = tensor_value(node.args[0]), tensor_value(node.args[1])
    kernel, stride, padding = (argument(node, place, ()) for place in (2, 3, 4))
    ceil_mode, counted, divisor = (argument(node, place) for place in (5, 6, 7))
    if grad is None or x is None or not ceil_mode or counted is False or divisor is not None:
        return False
    count = 3 if node.target is _aten.avg_pool3d_backward.default else 2
    kernel, stride, padding = (_per_dim(one, count) for one in (kernel, stride or kernel, padding))
    for dim in range(count):
        sizes: list[Any] = [x.shape[dim - count], grad.shape[dim - count]]
        size, results = sizes
        if not isinstance(size, int) or not isinstance(results, int):
            return True
        if (results - 1) * stride[dim] + kernel[dim] > size + 2 * padding[dim]:
            return True
    return False


def _per_dim(numbers: Any, count: int) -> list[int]:
    listed = list(numbers) if isinstance(numbers, (list, tuple)) else [numbers]
    return listed * count if len(listed) == 1 else listed


def _is_integer_matmul(node: fx.Node) -> bool:
    return is_on_cpu(node) and not node.meta["val"].dtype.is_floating_point


def _is_of_other_dtype(node: fx.Node) -> bool:
    """Whether ``ldexp`` promotes otherwise than to the first operand's dtype."""
    made, x = tensor_value(node), tensor_value(node.args[0])
    if made is None or x is None:
        return made is not None
    return made.dtype is not (x.dtype if x.dtype.is_floating_point else torch.float32)


_INDICES = (_aten.argmax.default, _aten.argmin.default)
_UNARY = (_aten.neg.default, _aten.abs.default)
_FAULTS = (
    Fault(
        "flattened_index",
        (183082, 193661, 193751, 197739),
        "counts an index over several dimensions in the order of memory",
        _INDICES,
        _is_flattened_index,
        fixed_in=(2, 15),
    ),
    Fault(
        "index",
        (178964,),
        "loses the index of the largest number",
        (*_INDICES, _aten.max.dim, _aten.min.dim),
        _is_index_along_one_dim,
        fixed_in=(2, 13),
    ),
    Fault(
        "pair_of_functions",
        (186018,),
        "lets the compiler make a number of sin(atan(NaN))",
        (_aten.sin.default, _aten.cos.default, _aten.tan.default),
        _is_inverse_pair,
        fixed_in=(2, 13),
    ),
    Fault(
        "any_of_bytes",
        (198081,),
        "gives bool for uint8",
        (_aten.any.default, _aten.any.dim, _aten.any.dims),
        _gives_uint8,
    ),
    Fault(
        "clamp_out_of_range",
        (195675,),
        "takes a bound that eager refuses",
        (_aten.clamp_min.default, _aten.clamp_max.default),
        _is_out_of_range,
    ),
    Fault(
        "overhanging_mean",
        (198119,),
        "divides the gradient of a window that hangs over by all of the kernel's size",
        (_aten.avg_pool2d_backward.default, _aten.avg_pool3d_backward.default),
        _window_exceeds_padding,
    ),
    Fault(
        "batched_integers",
        (191308,),
        "gives int64 for a product of integers",
        (_aten.bmm.default, _aten.baddbmm.default),
        _is_integer_matmul,
    ),
    Fault("erfinv", (198133,), "loses digits of erfinv near 1", (_aten.erfinv.default,), is_on_cpu),
    Fault(
        "sign_of_zero",
        (189799, 194347),
        "gives zero another sign",
        (*EXTREMA, *CLAMPS),
        is_extremum_sign_seen,
    ),
    Fault(
        "compared_overflow",
        (190764,),
        "lets the compiler decide a comparison as if integers never left their type",
        (*(getattr(_aten, name).Tensor for name in ("add", "sub", "mul")), *_UNARY),
        compares_with_own_operand,
    ),
    Fault(
        "ldexp_dtype",
        (197091,),
        "gives another dtype than eager",
        (_aten.ldexp.Tensor,),
        _is_of_other_dtype,
    ),
    Fault(
        "long_range",
        (175966, 183901),
        "computes with 64-bit numbers of a range as with 32-bit indices",
        (torch.ops.prims.iota.default,),
        may_exceed_int32,
    ),
)
