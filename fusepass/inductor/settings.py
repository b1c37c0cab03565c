"""Configs: settings of Inductor for one graph, kept where they were measured faster for it.

``freezing``: with ``options={"frozen": True}``, which is the user's word that weights stay.

``conv_layout``: on the CPU Inductor lets images lie channels last wherever there are convolutions.
Weights that do not lie so are copied in every call then, which a batch of one image does not repay:
ResNet-18 on two cores took 30 ms with that, 20 without; a batch of 16 took 238 and 294. So each
convolution is timed once on random images both ways, copy included, and the sums are compared.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, fx

from fusepass.errors import CandidateFailed
from fusepass.graph.ops.op_names import argument, op_name, tensor_value
from fusepass.options import Options
from fusepass.report.decision import Decision, Outcome, Reason, Station
from fusepass.torch_private.fx.graphs import size_hint
from fusepass.torch_private.inductor import lowering
from fusepass.torch_private.inductor.freezing import FREEZING
from fusepass.tune.decide import several_ranks

LAYOUT, SETTING = "conv_layout", "layout_optimization"
_SMALLEST_GAIN = 1.05  # of the convolutions' time; pointwise work takes as long both ways
_ROUNDS, _SECONDS = 3, 2.0
_MOST_BYTES = 256 << 20  # of one convolution's operands


@dataclass(frozen=True)
class _CpuConv:
    """A convolution on the CPU, as it is timed."""

    images: tuple[int, ...]
    weight: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int


def layout_settings(
    gm: fx.GraphModule, options: Options
) -> tuple[Mapping[str, Any], list[Decision]]:
    """Settings of Inductor for a graph, and the decisions behind them."""
    if options.codegen != "inductor":
        return {}, []
    if options.frozen:
        return {FREEZING: True}, []
    if several_ranks():  # of which each would time for itself
        return {}, []
    if SETTING in options.inductor or not options.rule_on(LAYOUT) or torch.is_grad_enabled():
        return {}, []
    found = [_timed_conv(node) for node in gm.graph.nodes if op_name(node) == "conv2d"]
    convolutions = [one for one in found if one is not None]
    if not convolutions:
        return {}, []
    try:
        with lowering.real_tensors():
            as_they_lie, last = _time_both_layouts(tuple(convolutions))
    except Exception as error:  # noqa: BLE001 - whatever fails here must not fail the program
        problem = f"{type(error).__name__}: {error}"
        warnings.warn(CandidateFailed(LAYOUT, problem), stacklevel=2)
        return {}, []
    if not as_they_lie and not last:
        text = "its convolutions are too large to be timed both ways"
        left = Outcome.LEFT_TO_INDUCTOR
        return {}, [Decision(Station.HAND_OFF, LAYOUT, left, Reason.NO_RULE, text)]
    text = (
        f"its convolutions take {_display_time(as_they_lie)} as they lie, {_display_time(last)} "
        "channels last, copies of weights included"
    )
    faster = as_they_lie * _SMALLEST_GAIN < last
    outcome = Outcome.APPLIED if faster else Outcome.SLOWER
    code = Reason.MEASURED if faster else Reason.SLOWER
    times = {"layout_as_it_is": 1e3 * as_they_lie, "channels_last": 1e3 * last}
    decision = Decision(Station.HAND_OFF, LAYOUT, outcome, code, text, candidates=times)
    return {SETTING: False} if faster else {}, [decision]


def _display_time(milliseconds: float) -> str:
    small = milliseconds < 0.1
    return f"{1e3 * milliseconds:.1f} µs" if small else f"{milliseconds:.1f} ms"


def _timed_conv(node: fx.Node) -> _CpuConv | None:
    """A convolution whose weight Inductor would copy; None for any other."""
    x, weight = (tensor_value(one) for one in node.args[:2]) if len(node.args) > 1 else (None, None)
    if x is None or weight is None or x.device.type != "cpu" or x.dim() != len(weight.shape):
        return None
    sizes = [size_hint(size) for size in (*x.shape, *weight.shape)]
    if None in sizes or 0 in sizes or weight.shape[2:].numel() == 1:
        return None
    if not all(_lies_in_order(one) for one in (x, weight)):
        return None
    groups = argument(node, 6, "groups", 1)
    rest = [argument(node, at, key, 1) for at, key in ((3, "stride"), (5, "dilation"))]
    padding = argument(node, 4, "padding", 0)
    if groups != 1 or not all(_is_fixed(one) for one in (*rest, padding)):
        return None
    stride, dilation = (_pair(one) for one in rest)
    shape = tuple(int(size or 0) for size in sizes)
    padded = padding if isinstance(padding, str) else _pair(padding)
    return _CpuConv(shape[:4], shape[4:], x.dtype, stride, padded, dilation, groups)


def _lies_in_order(tensor: Tensor) -> bool:
    """Whether a tensor is contiguous, going by hints: asking for sizes would make them guards."""
    expected = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if size_hint(stride) != expected and size_hint(size) != 1:
            return False
        expected *= size_hint(size) or 0
    return True


def _is_fixed(value: Any) -> bool:
    parts = value if isinstance(value, (list, tuple)) else [value]
    return all(isinstance(part, (int, str)) for part in parts)


def _pair(value: Any) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) else (value, value)


@lru_cache(maxsize=64)
def _time_both_layouts(convolutions: tuple[_CpuConv, ...]) -> tuple[float, float]:
    """Milliseconds of all convolutions as they lie, and with images and weights channels last.

    Each kind is timed once, the largest first; what does not fit into the time there is counts for
    neither side.
    """
    until = time.perf_counter() + _SECONDS
    sums = [0.0, 0.0]
    kinds = sorted(set(convolutions), key=_macs, reverse=True)
    for one in kinds:
        if time.perf_counter() > until:
            break
        count = convolutions.count(one)
        for side, took in enumerate(_time_conv(one, until)):
            sums[side] += count * took
    return sums[0], sums[1]


def _macs(one: _CpuConv) -> int:
    return one.images[2] * one.images[3] * torch.Size(one.weight).numel()


def _time_conv(one: _CpuConv, until: float) -> tuple[float, float]:
    """Milliseconds both ways: the best of some turns, of one if there is no time for more."""
    if 8 * (torch.Size(one.images).numel() + torch.Size(one.weight).numel()) > _MOST_BYTES:
        return 0.0, 0.0
    generator = torch.Generator().manual_seed(0)
    x, weight = (
        torch.randn(shape, generator=generator).to(one.dtype) for shape in (one.images, one.weight)
    )
    convolve = partial(
        torch.conv2d,
        stride=one.stride,
        padding=one.padding,
        dilation=one.dilation,
        groups=one.groups,
    )
    last = torch.channels_last
    images = x.contiguous(memory_format=last)
    ways: tuple[Callable[[], Tensor], ...] = (
        lambda: convolve(x, weight),
        lambda: convolve(images, weight.contiguous(memory_format=last)),
    )
    best = [float("inf")] * len(ways)
    for _ in range(1 + _ROUNDS):  # the first fills caches
        for side, way in enumerate(ways):
            began = time.perf_counter()
            way()
            best[side] = min(best[side], 1e3 * (time.perf_counter() - began))
        if time.perf_counter() > until:
            break
    return best[0], best[1]
