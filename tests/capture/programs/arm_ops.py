"""Operations that are pure and total: each is one arm, a plain pointwise expression the other.

The pair is (arm, other); both use every differentiable operand, so that no gradient can be None.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..support.inputs import signs
from ..support.program import WHERE, Family

FAMILY = Family("arm_ops")
Op = Callable[[Tensor], Tensor]


def one(arm: Op, other: Op, x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = arm(x)
    else:
        y = other(x)
    return y


def two(
    arm: Callable[[Tensor, Tensor], Tensor],
    other: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    w: Tensor,
) -> Tensor:
    if x.sum() > 0:
        y = arm(x, w)
    else:
        y = other(x, w)
    return y


UNARY: dict[str, tuple[Op, Op]] = {
    "clamp": (lambda x: x.clamp(-0.5, 0.5), lambda x: x * 2),
    "clamp_tensor_bounds": (lambda x: x.clamp(min=x.mean() - 1), lambda x: x * 2),
    "masked_fill": (lambda x: x.masked_fill(x > 0, 0.0), lambda x: x * 2),
    "masked_fill_mask_of_rows": (lambda x: x.masked_fill(x[:, :1] > 0, -1.0), lambda x: x * 2),
    "where_inside": (lambda x: torch.where(x > 0, x, x * 0.1), lambda x: x * 2),
    "nan_to_num": (lambda x: torch.nan_to_num(x), lambda x: x * 2),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), lambda x: x * 2),
    "softplus": (F.softplus, lambda x: x * 2),
    "hardswish": (F.hardswish, lambda x: x * 2),
    "softmax": (lambda x: x.softmax(-1), lambda x: x / x.exp().sum()),
    "log_softmax": (lambda x: F.log_softmax(x, 0), lambda x: x - x.logsumexp(0)),
    "layer_norm": (lambda x: F.layer_norm(x, (4,)), lambda x: x - x.mean(-1, keepdim=True)),
    "rms_norm": (lambda x: F.rms_norm(x, (4,)), lambda x: x * 2),
    "group_norm": (lambda x: F.group_norm(x.view(4, 4, 1), 2).view(4, 4), lambda x: x * 2),
    "sum": (lambda x: x.sum(0), lambda x: x.mean(0)),
    "amax": (lambda x: x.amax(1), lambda x: x.amin(1)),
    "max_with_indices": (lambda x: x.max(1).values, lambda x: x.min(1).values),
    "var": (lambda x: x.var(0), lambda x: x.sum(0)),
    "norm": (lambda x: x.norm(dim=1), lambda x: x.abs().sum(1)),
    "cumsum": (lambda x: x.cumsum(1), lambda x: x * 2),
    "prod": (lambda x: x.prod(1), lambda x: x.sum(1)),
    "sort": (lambda x: x.sort(1).values, lambda x: x.sort(1, descending=True).values),
    "topk": (lambda x: x.topk(2, 1).values, lambda x: x[:, :2] * 2),
    "matmul": (lambda x: x @ x, lambda x: x * 2),
    "transposed_matmul": (lambda x: x.t() @ x, lambda x: x + x.mean()),
    "einsum": (lambda x: torch.einsum("ij,kj->ik", x, x), lambda x: x * 2),
    "outer": (lambda x: torch.outer(x[0], x.sum(0)), lambda x: x * 2),
    "baddbmm": (
        lambda x: torch.baddbmm(x[None], x[None], x[None]).sum(0),
        lambda x: x * 2,
    ),
    "cat": (lambda x: torch.cat([x, x * 2], 1), lambda x: torch.cat([x * 3, x], 1)),
    "stack": (lambda x: torch.stack([x, x.sin()]), lambda x: torch.stack([x.cos(), x])),
    "pad": (lambda x: F.pad(x, (1, 1)), lambda x: F.pad(x * 2, (0, 2))),
    "roll": (lambda x: x.roll(1, 0), lambda x: x * 2),
    "flip": (lambda x: x.flip(1), lambda x: x * 2),
    "tril": (lambda x: x.tril(), lambda x: x.triu()),
    "static_index": (lambda x: x[1] * 2, lambda x: x[0] + 1),
    "static_slice": (lambda x: x[1:3, ::2] * 2, lambda x: x[:2, 1:3] + 1),
    "new_axis": (lambda x: x[:, None, :] * x[None], lambda x: x[:, None, :] + x[None]),
    "permute_copy": (lambda x: x.t().contiguous() * 1, lambda x: x * 2),
    "expand_and_add": (lambda x: x.mean(0).expand(4, 4) + x, lambda x: x * 2),
    "to_and_back": (lambda x: x.half().float() + 0, lambda x: x.double().float() + 0),
    "float_floor_division": (lambda x: x - x // 0.3, lambda x: x * 2),
    "float_remainder": (lambda x: x % 0.7, lambda x: x * 2),
    "power": (lambda x: x**3, lambda x: x**2),
    "logical": (lambda x: ((x > 0) & (x < 1)).float() + x, lambda x: (x > 0).float() * x),
    "fresh_constants": (lambda x: x + torch.arange(4.0), lambda x: x + torch.ones(4)),
    "like_constants": (lambda x: x * torch.full_like(x, 3), lambda x: x * torch.ones_like(x)),
    "new_zeros": (lambda x: x + x.new_zeros(4), lambda x: x + x.new_tensor(2.0)),
    "max_pool": (
        lambda x: F.max_pool2d(x[None, None], 2),
        lambda x: F.avg_pool2d(x[None, None], 2),
    ),
    "interpolate": (
        lambda x: F.interpolate(x[None, None], scale_factor=2),
        lambda x: F.interpolate(x[None, None] * 2, scale_factor=2),
    ),
    "glu": (lambda x: F.glu(x), lambda x: x[:, :2] * x[:, 2:]),
    "cosine_similarity": (
        lambda x: F.cosine_similarity(x, x.roll(1, 0)),
        lambda x: x.sum(1),
    ),
    "normalize": (lambda x: F.normalize(x), lambda x: x * 2),
    "mse_loss": (lambda x: F.mse_loss(x, x.sin()), lambda x: F.l1_loss(x, x.cos())),
    "huber": (lambda x: F.smooth_l1_loss(x, torch.zeros_like(x)), lambda x: x.abs().mean()),
    "lerp": (lambda x: torch.lerp(x, x * 2, 0.25), lambda x: x * 2),
    "addcmul": (lambda x: torch.addcmul(x, x, x, value=0.5), lambda x: x * 2),
    "complex_round_trip": (
        lambda x: torch.view_as_real(torch.polar(x.abs(), x)).sum(-1),
        lambda x: x * 2,
    ),
}
BINARY: dict[
    str,
    tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]],
] = {
    "linear": (F.linear, lambda x, w: x * w),
    "matmul_then_softmax": (lambda x, w: (x @ w).softmax(-1), lambda x, w: x @ w.t()),
    "attention": (
        lambda x, w: F.scaled_dot_product_attention(x[None], w[None], x[None])[0],
        lambda x, w: x + w,
    ),
    "convolution": (
        lambda x, w: F.conv2d(x[None, None], w[None, None], padding=2)[0, 0, :4, :4] + 0,
        lambda x, w: x * w,
    ),
    "maximum": (torch.maximum, torch.minimum),
    "atan2": (torch.atan2, lambda x, w: x - w),
    "swapped_operands": (lambda x, w: x - w, lambda x, w: w - x),
    "broadcast": (lambda x, w: x[:, :1] * w, lambda x, w: x + w[:1]),
    "bilinear_form": (lambda x, w: (x @ w @ x.t()).diagonal() * 2, lambda x, w: (x * w).sum(0)),
    "weighted_layer_norm": (
        lambda x, w: F.layer_norm(x, (4,), w[0], w[1]),
        lambda x, w: x * w[0] + w[1],
    ),
    "cross": (lambda x, w: torch.linalg.cross(x[:, :3], w[:, :3]), lambda x, w: (x * w)[:, 1:] * 1),
    "cdist": (torch.cdist, lambda x, w: x * w),
}
FOR_INDUCTOR = {
    "clamp",
    "masked_fill",
    "softmax",
    "layer_norm",
    "sum",
    "var",
    "matmul",
    "cat",
    "power",
    "linear",
    "attention",
    "maximum",
    "cumsum",
    "log_softmax",
    "to_and_back",
    "weighted_layer_norm",
}
FOR_CONTEXTS = FOR_INDUCTOR | {"einsum", "norm", "convolution", "bilinear_form", "mse_loss"}


def tags(name: str) -> str:
    return " ".join(
        tag
        for tag, names in (("inductor", FOR_INDUCTOR), ("contexts", FOR_CONTEXTS))
        if name in names
    )


for name, (arm, other) in UNARY.items():
    FAMILY.add(
        name,
        lambda arm=arm, other=other: partial(one, arm, other),
        signs((4, 4)),
        WHERE,
        grad=name != "float_floor_division",  # has no derivative
        tags=tags(name),
    )
for name, (arm, other) in BINARY.items():
    FAMILY.add(
        name,
        lambda arm=arm, other=other: partial(two, arm, other),
        signs((4, 4), (4, 4)),
        WHERE,
        grad=True,
        tags=tags(name),
    )
