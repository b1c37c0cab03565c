"""What a stretch of a graph costs, from floating-point operations and bytes (a roofline estimate).

Coarse on purpose: it decides only whether running an arm that was not needed is cheaper than
asking the host. Peaks are those of the device class until the tuner measures them (a later
station).
"""

from __future__ import annotations

import math

import torch
from torch import fx

from fusepass.graph.canonical import op_name, tensor_value

# dense FLOP/s in 16 and in 32 bit, bytes/s, seconds to launch a kernel, seconds of a round trip
_CUDA = (600e12, 50e12, 3.0e12, 2e-6, 80e-6)
_CPU = (1e11, 1e11, 1e10, 2e-6, 60e-6)
_MATMUL = frozenset(
    "addbmm addmm baddbmm bilinear bmm einsum linear matmul mm mv dot outer inner tensordot".split()
)
_CONVOLUTION = frozenset(
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d".split()
)
_FREE = frozenset(
    """view reshape expand expand_as permute transpose t T mT unsqueeze squeeze select narrow chunk
    split unbind getitem __getitem__ detach alias movedim flatten unflatten size getattr""".split()
)


def microseconds(nodes: list[fx.Node]) -> float:
    """Estimated device time of running ``nodes``, pointwise work fused into one kernel, in µs."""
    seconds = 0.0
    moved = 0.0
    device = torch.device("cpu")
    for node in nodes:
        value = tensor_value(node)
        name = op_name(node)
        if value is None or name in _FREE:
            continue
        device = value.device
        flops = _flops(node, name)
        if flops:
            peak16, peak32, bandwidth, launch, _ = _peaks(device)
            peak = peak16 if value.dtype in (torch.float16, torch.bfloat16) else peak32
            seconds += launch + max(flops / peak, _bytes(node) / bandwidth)
        else:
            moved = max(moved, _bytes(node))
    _, _, bandwidth, launch, _ = _peaks(device)
    return 1e6 * (seconds + (launch + moved / bandwidth if moved else 0.0))


def host_round_trip(device: torch.device) -> float:
    """Estimated cost of breaking the graph to read a value back, in µs."""
    return 1e6 * _peaks(device)[4]


def _peaks(device: torch.device) -> tuple[float, float, float, float, float]:
    return _CPU if device.type == "cpu" else _CUDA


def _flops(node: fx.Node, name: str | None) -> float:
    value = tensor_value(node)
    operands = [v for v in map(tensor_value, node.all_input_nodes) if v is not None]
    if value is None or not operands:
        return 0.0
    if name in _MATMUL:
        first = operands[-2] if len(operands) > 1 and name in ("addmm", "baddbmm") else operands[0]
        inner = _size(first.shape[-1]) if first.dim() else 1
        return 2.0 * _numel(value) * inner
    if name in _CONVOLUTION and len(operands) > 1:
        return 2.0 * _numel(value) * _numel(operands[1]) / max(1, _size(operands[1].shape[0]))
    if name == "scaled_dot_product_attention" and len(operands) > 1:
        return 4.0 * _numel(value) * _size(operands[1].shape[-2])
    return 0.0


def _bytes(node: fx.Node) -> float:
    values = [tensor_value(node), *map(tensor_value, node.all_input_nodes)]
    return float(sum(_numel(v) * v.element_size() for v in values if v is not None))


def _numel(value: torch.Tensor) -> int:
    return math.prod(_size(s) for s in value.shape)


def _size(size: int | torch.SymInt) -> int:
    """A size as a number without adding a guard: the traced hint of a symbolic one."""
    if isinstance(size, int):
        return size
    hint = getattr(size.node, "hint", None)
    return int(hint) if hint is not None else 1024
