"""A rule with a Triton kernel of your own: RMSNorm as Llama writes it, forward and backward.

    ``h = x.float();  weight * (h * rsqrt(mean(h ** 2) + eps)).to(x.dtype)``
        ->  ``example::rms_norm(x, weight, eps)``

On CUDA each row of ``x`` is read once in the forward, and once more in the backward. With r the
inverse root and g the gradient of the result, row by row:

    grad_x = r * (w g - xhat * mean(w g xhat))    with    xhat = r x
    grad_weight = the sum of g xhat over the rows

On a CPU, or where Triton is missing, the operators compute their reference in plain PyTorch, so the
rule can be written and tested anywhere. ``eps`` is a parameter of the pattern: it binds to whatever
the model has. Run it with ``python examples/custom_kernel_rule.py``.
"""
# ruff: noqa: ANN001, ANN202 - the parameters of a Triton kernel have no Python types

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import fusepass

try:
    import triton
    from triton import language as tl
except ImportError:  # CPU builds of torch come without it
    triton = None

PROGRAMS = 264  # that share the rows in the backward: two for each processor of an H100 or H200

# --- the kernels ----------------------------------------------------------------------------------

if triton is not None:

    @triton.jit
    def _forward_kernel(x, weight, y, inverse, n, eps, block: tl.constexpr):
        """One program per row of length ``n``; ``inverse`` gets the inverse roots, in float32."""
        row = tl.program_id(0).to(tl.int64)  # rows × n may not fit into 32 bits
        column = tl.arange(0, block)
        inside = column < n
        h = tl.load(x + row * n + column, mask=inside, other=0.0).to(tl.float32)
        r = 1 / tl.sqrt(tl.sum(h * h) / n + eps)
        w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
        xhat = (h * r).to(y.dtype.element_ty)  # rounded before the weight, as the pattern does
        out = w * xhat.to(tl.float32)
        tl.store(y + row * n + column, out.to(y.dtype.element_ty), mask=inside)
        tl.store(inverse + row, r)

    @triton.jit
    def _backward_kernel(
        grad, x, weight, inverse, grad_x, partial, rows, n, programs, block: tl.constexpr
    ):
        """Each program takes every ``programs``-th row, and sums up its part of ``grad_weight``."""
        row = tl.program_id(0).to(tl.int64)
        column = tl.arange(0, block)
        inside = column < n
        w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
        total = tl.zeros([block], dtype=tl.float32)
        while row < rows:
            g = tl.load(grad + row * n + column, mask=inside, other=0.0).to(tl.float32)
            h = tl.load(x + row * n + column, mask=inside, other=0.0).to(tl.float32)
            r = tl.load(inverse + row)
            xhat = h * r
            wg = w * g
            back = r * (wg - xhat * (tl.sum(wg * xhat) / n))
            tl.store(grad_x + row * n + column, back.to(grad_x.dtype.element_ty), mask=inside)
            total += g * xhat
            row += programs
        tl.store(partial + tl.program_id(0) * n + column, total, mask=inside)


def launch_forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Forward by Triton; as :func:`rms_norm`."""
    x, n = x.contiguous(), x.shape[-1]
    y, inverse = torch.empty_like(x), x.new_empty(x.shape[:-1], dtype=torch.float32)
    if rows := inverse.numel():
        _forward_kernel[rows,](x, weight, y, inverse, n, eps, block=triton.next_power_of_2(n))
    return y, inverse


def launch_backward(
    grad: Tensor, x: Tensor, weight: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor]:
    """Backward by Triton; as :func:`rms_norm_backward`."""
    grad, x, n = grad.contiguous(), x.contiguous(), x.shape[-1]
    rows = inverse.numel()
    programs = min(PROGRAMS, rows)
    grad_x, partial = torch.empty_like(x), x.new_empty((programs, n), dtype=torch.float32)
    if rows:
        _backward_kernel[programs,](
            *(grad, x, weight, inverse, grad_x, partial, rows, n, programs),
            block=triton.next_power_of_2(n),
        )
    return grad_x, partial.sum(0).to(weight.dtype)


# --- the operators, with their reference ----------------------------------------------------------


@torch.library.custom_op("example::rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """RMSNorm of ``x`` (…, n) with ``weight`` (n).

    Returns:
        The result, shaped like ``x`` and contiguous, and the inverse roots, float32, one a row.
    """
    h = x.float()
    inverse = torch.rsqrt(h.pow(2).mean(-1) + eps)
    return (weight * (h * inverse[..., None]).to(x.dtype)).contiguous(), inverse


@torch.library.custom_op("example::rms_norm_backward", mutates_args=())
def rms_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients for ``x`` and ``weight``, given that of the result and the inverse roots."""
    r = inverse[..., None]
    g, xhat = grad.float(), x.float() * r
    wg = weight.float() * g
    back = r * (wg - xhat * (wg * xhat).mean(-1, keepdim=True))
    rows = tuple(range(x.dim() - 1))
    return back.to(x.dtype).contiguous(), (g * xhat).sum(rows).to(weight.dtype)


@rms_norm.register_fake
def _rms_norm_fake(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape[:-1], dtype=torch.float32)


@rms_norm_backward.register_fake
def _rms_norm_backward_fake(
    grad: Tensor, x: Tensor, weight: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), torch.empty_like(weight)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:2], output[1])


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None]:
    return (*rms_norm_backward(grad, *ctx.saved_tensors), None)


rms_norm.register_autograd(_backward, setup_context=_keep)
if triton is not None:
    rms_norm.register_kernel("cuda", launch_forward)
    rms_norm_backward.register_kernel("cuda", launch_backward)

# --- the rule -------------------------------------------------------------------------------------


def pattern(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """What transformers' ``LlamaRMSNorm`` computes."""
    h = x.to(torch.float32)
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    return weight * h.to(x.dtype)


def replacement(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The first result of the operator; the second is for its backward alone."""
    return rms_norm(x, weight, eps)[0]


def check(match: fusepass.Match) -> fusepass.Reject | None:
    """A row must fit into one program's registers, and be stored in one piece."""
    if match["x"].shape[-1] > 16384:
        return fusepass.Reject(fusepass.Reason.COST, "rows of more than 16384 numbers spill")
    if not match["x"].is_contiguous():
        return fusepass.Reject(fusepass.Reason.STRIDE_MISMATCH, "x would have to be copied")
    return None


RULE = fusepass.Rule(
    "example_rms_norm",
    pattern,
    replacement,
    example=(torch.randn(4, 8), torch.ones(8), 1e-6),
    check=check,
)

# --- a model, and what becomes of it --------------------------------------------------------------


class RMSNorm(nn.Module):
    """As transformers' ``LlamaRMSNorm``."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the rows of ``x`` (…, width)."""
        dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        return self.weight * x.to(dtype)


def gradients(call: Callable[..., Tensor], model: nn.Module, x: Tensor) -> list[Tensor]:
    """Result of ``call(x)``, and gradients of its sum of squares for ``x`` and the parameters."""
    leaf = x.clone().requires_grad_()
    y = call(leaf)
    grads = torch.autograd.grad(y.float().square().sum(), (leaf, *model.parameters()))
    return [y.detach(), *grads]


def run(device: str = "cpu", dtype: torch.dtype = torch.float32, **options: Any) -> dict[str, Any]:
    """Train one step of a norm and a linear layer with and without the rule.

    Args:
        device: ``cpu`` or ``cuda``.
        dtype: of model and input.
        **options: of fusepass, for the compiled model.

    Returns:
        ``report`` and ``errors``: the largest differences from eager, relative to eager's largest
        number, for the result and each gradient.
    """
    torch.manual_seed(0)
    model = nn.Sequential(RMSNorm(256), nn.Linear(256, 64)).to(device, dtype)
    x = torch.randn(8, 32, 256, device=device, dtype=dtype)
    compiled = torch.compile(model, backend="fusepass", options=options)
    with fusepass.rules(RULE):
        ours, eager = gradients(compiled, model, x), gradients(model, model, x)
    errors = [
        ((a - b).abs().max() / b.abs().max()).item() for a, b in zip(ours, eager, strict=True)
    ]
    return {"report": fusepass.last_report(compiled), "errors": errors}


def main() -> int:
    """Run on CUDA where there is one, else on CPU; 1 if the rule did not act."""
    device = "cuda" if torch.cuda.is_available() and triton is not None else "cpu"
    found = run(device)
    print(found["report"])
    print(f"\non {device}, largest relative difference from eager: {max(found['errors']):.1e}")
    decisions = [d for d in found["report"].decisions if d.rule == RULE.name]
    return 0 if [d.outcome for d in decisions] == ["applied"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
