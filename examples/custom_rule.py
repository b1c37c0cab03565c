"""A rule of your own: SwiGLU becomes one operator that keeps less for the backward.

    ``silu(gate) * up``  ->  ``example::swiglu(gate, up)``

Eager keeps three tensors for the backward of the left side: ``gate``, ``up`` and ``silu(gate)``.
The operator on the right has a backward of its own, which computes ``silu(gate)`` again.

The model below knows nothing of the rule: it calls ``nn.SiLU``, multiplies, and is compiled.
Run it with ``python examples/custom_rule.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fusepass

# --- an operator with its own backward: plain torch.library, fusepass plays no part ---------------


@torch.library.custom_op("example::swiglu", mutates_args=())
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) * up`` for two tensors of one shape and dtype."""
    return F.silu(gate) * up


@swiglu.register_fake
def _swiglu_fake(gate: Tensor, up: Tensor) -> Tensor:
    return gate * up  # of the same shape, dtype and strides


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    gate, up = ctx.saved_tensors
    return torch.ops.aten.silu_backward(grad * up, gate), grad * F.silu(gate)


swiglu.register_autograd(_backward, setup_context=_keep)

# --- the rule -------------------------------------------------------------------------------------


def pattern(gate: Tensor, up: Tensor) -> Tensor:
    """What to look for, in ordinary torch code."""
    return F.silu(gate) * up


RULE = fusepass.Rule(
    "example_swiglu", pattern, swiglu, example=(torch.randn(4, 8), torch.randn(4, 8))
)

# --- a model, and what becomes of it --------------------------------------------------------------


class FeedForward(nn.Module):
    """The feed-forward block of Llama: ``down(silu(gate(x)) * up(x))``."""

    def __init__(self, width: int = 64, inner: int = 128) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.activation = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x`` (…, width) to a tensor of the same shape."""
        return self.down(self.activation(self.gate(x)) * self.up(x))


def gradients(call: Callable[..., Tensor], model: nn.Module, x: Tensor) -> list[Tensor]:
    """Gradients of the sum of squares of ``call(x)``, for ``x`` and for ``model``'s parameters."""
    leaf = x.clone().requires_grad_()
    return list(torch.autograd.grad(call(leaf).square().sum(), (leaf, *model.parameters())))


def kept_for_backward(function: Callable[..., Tensor]) -> int:
    """Bytes that ``function`` of two tensors of 32 × 128 numbers keeps for its backward."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function(*(torch.randn(32, 128, requires_grad=True) for _ in range(2)))
    return sum(kept.values())


def run(**options: Any) -> dict[str, Any]:
    """Train one step with and without the rule.

    Args:
        **options: of fusepass, for the compiled model.

    Returns:
        ``report`` and ``difference``, the largest between gradients.
    """
    torch.manual_seed(0)
    model, x = FeedForward(), torch.randn(32, 64)
    compiled = torch.compile(model, backend="fusepass", options=options)
    with fusepass.rules(RULE):  # fusepass.register(RULE) puts it in force for good
        pairs = zip(gradients(compiled, model, x), gradients(model, model, x), strict=True)
        difference = max((a - b).abs().max().item() for a, b in pairs)
    return {"report": fusepass.last_report(compiled), "difference": difference}


def main() -> int:
    """Print what the rule did; 1 if it did not act."""
    found = run()
    print(found["report"])
    print(f"\nlargest difference between gradients: {found['difference']:.1e}")
    before, after = kept_for_backward(pattern), kept_for_backward(swiglu)
    print(f"bytes kept for the backward: {before} by the pattern, {after} by the operator")
    decisions = [d for d in found["report"].decisions if d.rule == RULE.name]
    return 0 if [d.outcome for d in decisions] == ["applied"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
