"""Inputs that are not plain contiguous: their strides must reach the result, and the kernels.

Every layout is met by operations whose results, or the order of whose sums, depend on strides. With
gradients the arms see gated operands, which must not come out in another layout.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..support.inputs import InputSets
from ..support.program import WHERE, Family, keep

FAMILY = Family("layouts")
N = 24


def base(*shape: int) -> Tensor:
    values = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
    return (values * 0.7).sin() + 0.05


# Each gives (24, 24); positive sum, negated for the other outcome.
LAYOUTS: dict[str, Callable[[float], Tensor]] = {
    "transposed": lambda sign: (base(N, N) * sign).t(),
    "gappy_columns": lambda sign: (base(N, 2 * N) * sign)[:, ::2],
    "gappy_rows": lambda sign: (base(2 * N, N) * sign)[::2],
    "part_of_rows": lambda sign: (base(N, 3 * N) * sign)[:, 5 : 5 + N],
    "expanded_rows": lambda sign: (base(1, N) * sign).expand(N, N),
    "expanded_columns": lambda sign: (base(N, 1) * sign).expand(N, N),
    "offset": lambda sign: (base(N + 3, N) * sign)[3:],
}


def pointwise(x: Tensor, w: Tensor) -> Tensor:
    return x * 2 + w


def product(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


def product_from_left(x: Tensor, w: Tensor) -> Tensor:
    return w.t() @ x


def row_sums(x: Tensor, w: Tensor) -> Tensor:
    return x.exp().sum(1) + w.sum(0)


def normalised(x: Tensor, w: Tensor) -> Tensor:
    return F.layer_norm(x, (N,)) * w


def flattened(x: Tensor, w: Tensor) -> Tensor:
    return x.reshape(-1) * w.reshape(-1)


def unary(x: Tensor, w: Tensor) -> Tensor:
    # Its result takes its strides from x alone.
    return x.tanh()


ARMS = (pointwise, product, product_from_left, row_sums, normalised, flattened, unary)


def branch(arm: Callable[[Tensor, Tensor], Tensor], x: Tensor, w: Tensor) -> Tensor:
    if x.sum() > 0:
        y = arm(x, w)
    else:
        y = arm(x * 0.5, w) + 1
    return y


def both_signs(layout: Callable[[float], Tensor], seed: int) -> InputSets:
    return [(layout(sign), base(N, N).cos()) for sign in (1.0, -1.0)]


for name, layout in LAYOUTS.items():
    for arm in ARMS:
        # tanh of an expanded tensor keeps the zero stride's order of dimensions; x * 0.5 + 1 may not.
        FAMILY.add(
            f"{name}_{arm.__name__}",
            lambda arm=arm: partial(branch, arm),
            partial(both_signs, layout),
            WHERE | keep("stride_mismatch") if "expanded" in name else WHERE,
            grad=arm is not unary,
        )


def images(memory_format: torch.memory_format) -> InputSets:
    x = base(2, 4, 6, 6).to(memory_format=memory_format)
    return [(x.clone(), base(4, 4, 3, 3)), (-x, base(4, 4, 3, 3))]


def convolved(x: Tensor, w: Tensor) -> Tensor:
    if x.sum() > 0:
        y = F.conv2d(x, w, padding=1).relu()
    else:
        y = F.conv2d(x * 2, w, padding=1) + x
    return y


def channel_means(x: Tensor, w: Tensor) -> Tensor:
    scale = w.mean((1, 2, 3))[None, :, None, None]
    return (x * scale if x.sum() > 0 else x - scale).mean((2, 3))


for label, memory_format in {
    "contiguous": torch.contiguous_format,
    "channels_last": torch.channels_last,
}.items():
    for function in (convolved, channel_means):
        FAMILY.add(
            f"{label}_{function.__name__}",
            lambda function=function: function,
            lambda seed, memory_format=memory_format: images(memory_format),
            WHERE,
            grad=True,
        )
