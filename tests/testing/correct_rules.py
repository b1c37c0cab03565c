"""Rules that are right, for which a check must find nothing."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fusepass import Rule

torch.manual_seed(0)
X, W = torch.randn(4, 8), torch.randn(8)


@torch.library.custom_op("fusepass_kit_tests::gated", mutates_args=())
def gated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.silu(x) * y


@gated.register_fake
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.silu(x) * y


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, grad):
    x, y = ctx.saved_tensors
    s = torch.sigmoid(x)
    for_x = grad * y * (s * (1 + x * (1 - s)))
    for_y = grad * x * s
    return for_x.sum_to_size(x.shape), for_y.sum_to_size(y.shape)


gated.register_autograd(_backward, setup_context=_keep)


def two_results(x):
    total = x.sum(-1)
    return total, total / x.shape[-1]


RULES = {
    rule.name: rule
    for rule in (
        Rule(
            "silu",
            pattern=lambda x: x * torch.sigmoid(x),
            replacement=lambda x: F.silu(x),
            example=(X,),
        ),
        Rule(
            "rms_norm",  # a bound scalar
            pattern=lambda x, w, eps: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w,
            replacement=lambda x, w, eps: F.rms_norm(x, (x.shape[-1],), None, eps) * w,
            example=(X, W, 1e-5),
        ),
        Rule(
            "linear",
            pattern=lambda x, w, b: x @ w.t() + b,
            replacement=lambda x, w, b: F.linear(x, w, b),
            example=(X, torch.randn(16, 8), torch.randn(16)),
        ),
        Rule(
            "sum_and_mean",  # two results
            pattern=lambda x: (x.sum(-1), x.mean(-1)),
            replacement=two_results,
            example=(X,),
        ),
        Rule(
            "softmax",  # a bound axis
            pattern=lambda x, dim: torch.exp(torch.log_softmax(x, dim)),
            replacement=lambda x, dim: torch.softmax(x, dim),
            example=(X, -1),
        ),
        Rule(
            "clamp",  # two bound scalars
            pattern=lambda x, low, high: x.clamp(min=low).clamp(max=high),
            replacement=lambda x, low, high: x.clamp(low, high),
            example=(X, -0.5, 1.5),
        ),
        Rule(
            "gated",  # an operator with a backward of its own
            pattern=lambda x, y: F.silu(x) * y,
            replacement=lambda x, y: torch.ops.fusepass_kit_tests.gated(x, y),
            example=(X, torch.randn(4, 8)),
        ),
        Rule(
            "addmm",  # after autograd
            pattern=lambda x, w, b: torch.mm(x, w) + b,
            replacement=lambda x, w, b: torch.addmm(b, x, w),
            example=(X, torch.randn(8, 16), torch.randn(16)),
            place="after",
        ),
    )
}
