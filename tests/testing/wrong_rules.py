"""Rules that somebody could well write, each wrong in one respect; a check must fail for each.

Most agree with their pattern on their own example: that is how they got written.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fusepass import Rule

torch.manual_seed(0)
X, Y, W = torch.randn(4, 8), torch.randn(4, 8), torch.randn(8)
SQUARE = torch.randn(8, 8)


def op(name):
    """An operator as a user registers a kernel, without a backward unless one is added."""
    return torch.library.custom_op(f"fusepass_kit_tests::{name}", mutates_args=())


@op("wrong_backward")
def wrong_backward(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


@wrong_backward.register_fake
def _(x):
    return torch.empty_like(x)


wrong_backward.register_autograd(
    lambda ctx, grad: (
        grad * torch.sigmoid(ctx.saved_tensors[0])
    ),  # the derivative of sigmoid is missing
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


@op("in_memory_order")
def in_memory_order(x: torch.Tensor) -> torch.Tensor:
    flat = x.as_strided((x.numel(),), (1,))  # what a kernel with a bare pointer sees
    return torch.exp(flat.reshape(x.shape))


@in_memory_order.register_fake
def _(x):
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


in_memory_order.register_autograd(
    lambda ctx, grad: grad * ctx.saved_tensors[0],
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
)


@op("scaled_by_first")
def scaled_by_first(x: torch.Tensor) -> torch.Tensor:
    x.reshape(-1)[0].item()  # a launch over no elements fails as well
    return x + x


@scaled_by_first.register_fake
def _(x):
    return torch.empty_like(x)


scaled_by_first.register_autograd(lambda ctx, grad: grad * 2)


@op("in_single")
def in_single(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.hypot(x.float(), y.float()).to(torch.promote_types(x.dtype, y.dtype))


@in_single.register_fake
def _(x, y):
    return torch.hypot(x, y)


def _hypot_backward(ctx, grad):
    x, y, out = ctx.saved_tensors
    return (grad * x / out).sum_to_size(x.shape), (grad * y / out).sum_to_size(y.shape)


in_single.register_autograd(
    _hypot_backward,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs, output),
)


@op("overwrites")
def overwrites(x: torch.Tensor) -> torch.Tensor:
    return x.detach().abs_().clone()  # in place on the operand, and not declared


@overwrites.register_fake
def _(x):
    return torch.empty_like(x)


overwrites.register_autograd(
    lambda ctx, grad: grad * ctx.saved_tensors[0].sign(),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0].clone()),
)


def low_precision_norm(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def one_for_both(x):
    y = torch.relu(x)
    return y, y


RULES = {
    rule.name: rule
    for rule in (
        Rule("tanh for erf", lambda x: F.gelu(x), lambda x: F.gelu(x, approximate="tanh"), (X,)),
        Rule(
            "bias dropped",
            lambda x, w, b: torch.relu(F.linear(x, w, b)),
            lambda x, w, b: torch.relu(F.linear(x, w)),
            (X, SQUARE, torch.zeros(8)),
        ),
        Rule(
            "dim baked in",
            lambda x, dim: torch.softmax(x, dim),
            lambda x, dim: torch.softmax(x, -1),
            (X, -1),
        ),
        Rule(
            "eps baked in",
            lambda x, w, eps: F.rms_norm(x, (x.shape[-1],), w, eps),
            lambda x, w, eps: F.rms_norm(x, (x.shape[-1],), w, 1e-5),
            (X, W, 1e-5),
        ),
        Rule(
            "scale baked in",
            lambda q, k, scale: torch.softmax(q @ k.mT * scale, -1),
            lambda q, k, scale: torch.softmax(q @ k.mT / 8, -1),
            (torch.randn(2, 3, 64), torch.randn(2, 3, 64), 0.125),
        ),
        Rule(
            "size baked in",
            lambda x: x.mean(-1),
            lambda x: x.sum(-1) / 8,
            (X,),
        ),
        Rule(
            "upcast left out",
            lambda x: (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(
                x.dtype
            ),
            low_precision_norm,
            (X.bfloat16(),),
        ),
        Rule(
            "double computed in single",
            lambda x, y: torch.hypot(x, y),
            lambda x, y: torch.ops.fusepass_kit_tests.in_single(x, y),
            (X, Y),
        ),
        Rule(
            "result shared",
            lambda x: (torch.relu(x), x.clamp(min=0)),
            one_for_both,
            (X,),
        ),
        Rule(
            "wrong backward",
            lambda x: F.silu(x),
            lambda x: torch.ops.fusepass_kit_tests.wrong_backward(x),
            (X,),
        ),
        Rule(
            "memory order assumed",
            lambda x: torch.exp(x),
            lambda x: torch.ops.fusepass_kit_tests.in_memory_order(x),
            (X,),
        ),
        Rule("operand handed back", lambda x: x * 1, lambda x: x, (X,)),
        Rule(
            "nothing to launch on",
            lambda x: x + x,
            lambda x: torch.ops.fusepass_kit_tests.scaled_by_first(x),
            (X,),
        ),
        Rule(
            "mean of nothing",
            lambda x: x.mean(0),
            lambda x: x.sum(0) / max(x.shape[0], 1),
            (X,),
        ),
        Rule(
            "one element",
            lambda x: torch.std(x, -1),
            lambda x: torch.sqrt(
                (x - x.mean(-1, keepdim=True)).pow(2).sum(-1) / max(x.shape[-1] - 1, 1)
            ),
            (X,),
        ),
        Rule("infinity times zero", lambda x: torch.relu(x), lambda x: x * (x > 0), (X,)),
        Rule(
            "NaN lost",
            lambda x: torch.relu(x),
            lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
            (X,),
        ),
        Rule("weight transposed", lambda x, w: x @ w, lambda x, w: F.linear(x, w), (X, SQUARE)),
        Rule(
            "gradient dropped",
            lambda x, g: x * torch.sigmoid(g),
            lambda x, g: x * torch.sigmoid(g.detach()),
            (X, Y),
        ),
        Rule(
            "gradient dropped in part",
            lambda x: x * torch.sigmoid(x),
            lambda x: x * torch.sigmoid(x.detach()),
            (X,),
        ),
        Rule(
            "operand overwritten",
            lambda x: torch.abs(x),
            lambda x: torch.ops.fusepass_kit_tests.overwrites(x),
            (X,),
        ),
        Rule("in place on the operand", lambda x: x + 1, lambda x: x.add_(1), (X,)),
        Rule(
            "overflow",
            lambda x: torch.softmax(x, -1),
            lambda x: torch.exp(x) / torch.exp(x).sum(-1, keepdim=True),
            (X,),
        ),
        Rule(
            "operands exchanged",
            lambda x, y: torch.tanh(x - y),
            lambda x, y: torch.tanh(y - x),
            (X, Y),
        ),
        Rule(
            "alpha ignored",
            lambda x, y, alpha: torch.add(x, y, alpha=alpha),
            lambda x, y, alpha: x + y,
            (X, Y, 1.0),
        ),
        Rule(
            "keepdim forgotten",
            lambda x: x / x.abs().sum(-1, keepdim=True),
            lambda x: x / x.abs().sum(-1),
            (SQUARE,),
        ),
        Rule(
            "biased variance",
            lambda x: torch.var(x, -1),
            lambda x: (x - x.mean(-1, keepdim=True)).pow(2).mean(-1),
            (X,),
        ),
        Rule("gradient at zero", lambda x: torch.abs(x), lambda x: torch.sqrt(x * x), (X,)),
        Rule(
            "all masked",
            lambda x, mask: torch.softmax(x.masked_fill(mask, float("-inf")), -1),
            lambda x, mask: torch.softmax(x.masked_fill(mask, -1e4), -1),
            (X, torch.rand(4, 8) > 0.7),
        ),
    )
}
