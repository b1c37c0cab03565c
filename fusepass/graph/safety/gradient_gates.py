"""Gating: no gradient, and so no NaN, reaches an operand through the arm that was not taken.

``where(p, x, x.detach())`` is ``x`` whatever ``p`` is, but its backward passes the gradient on
only where ``p`` holds. Selecting after the arm is not enough: the gradient into the untaken arm is
zero there, and zero times an infinite derivative is NaN. Each *use* of an operand is gated on its
own, so that gradients are summed in the order eager sums them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fusepass.graph.dataflow.memory import is_nonempty
from fusepass.graph.ops.op_names import argument, op_name, tensor_value
from fusepass.torch_private.fx.graphs import call_target, known_equal


def gated_uses(nodes: list[fx.Node]) -> list[tuple[fx.Node, fx.Node]]:
    """``(user, operand)`` for each differentiable operand that enters the arm from outside."""
    inside = set(nodes)
    uses = []
    for user in nodes:
        if not _has_gradient(user):
            continue
        for operand in user.all_input_nodes:
            value = tensor_value(operand)
            if operand not in inside and value is not None and value.requires_grad:
                uses.append((user, operand))
    return uses


def changes_output_strides(
    arms: dict[bool, list[fx.Node]], outputs: list[fx.Node], fake_mode: Any
) -> bool:
    """Whether gated operands, being dense copies, would change the strides an arm leaves.

    Decided by running the arms again on fake tensors with the strides a gate would give.
    """
    for nodes in arms.values():
        operands = {operand for _, operand in gated_uses(nodes)}
        values = {operand: tensor_value(operand) for operand in operands}
        copies = {
            operand: _copy(value, fake_mode)
            for operand, value in values.items()
            if value is not None
        }
        if all(_same_strides(values[op], copies[op]) for op in copies):
            continue
        try:
            again = repropagate(nodes, copies, fake_mode)
        except (RuntimeError, TypeError, ValueError):
            return True  # a view that is legal on the operand itself is not on its copy
        for output in outputs:
            if output in again and not _same_strides(tensor_value(output), again[output]):
                return True
    return False


def repropagate(
    nodes: list[fx.Node], inputs: dict[fx.Node, Any], fake_mode: Any
) -> dict[fx.Node, Any]:
    """Run call nodes again on fake tensors, some operands replaced."""
    env: dict[fx.Node, Any] = dict(inputs)

    def value(node: fx.Node) -> Any:
        return env[node] if node in env else node.meta.get("example_value")

    with fake_mode, torch.no_grad():
        for node in nodes:
            if node.op not in ("call_function", "call_method"):
                continue
            args, kwargs = fx.map_arg((node.args, node.kwargs), value)
            env[node] = call_target(node.target, args, kwargs)
    return env


def _copy(value: torch.Tensor, fake_mode: Any) -> torch.Tensor:
    with fake_mode, torch.no_grad():
        return torch.empty_like(value)


def _same_strides(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return a is b
    return all(known_equal(x, y) for x, y in zip(a.stride(), b.stride(), strict=True))


def _has_gradient(node: fx.Node) -> bool:
    value = node.meta.get("example_value")
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return any(isinstance(part, torch.Tensor) and part.requires_grad for part in parts)


# --- Whether a zero gradient stays zero on its way back through a call ----------------------------

# Operations whose backward maps a zero gradient to exactly zero whatever the inputs are: it
# selects, copies, sums or negates, and never multiplies by a value of the forward (0 · inf is NaN).
ZERO_SAFE_BACKWARD = frozenset(
    """ add sub neg clamp clamp_max clamp_min masked_fill where relu relu6 hardtanh sum cumsum cat
    stack chunk split split_with_sizes unbind getitem __getitem__ select narrow view view_as
    reshape reshape_as flatten unflatten squeeze unsqueeze permute transpose t T mT movedim expand
    expand_as broadcast_to contiguous clone detach flip roll repeat tile tril triu diagonal to
    float half bfloat16 double type type_as rsub nan_to_num zeros_like ones_like full_like alias
    pad threshold """.split()
)
_SCALED = frozenset({"mul", "div", "mean"})


def zero_safe(node: fx.Node) -> bool:
    """Whether a zero gradient into this call gives zero gradients out of it for every input."""
    value = tensor_value(node)
    if value is not None and not value.requires_grad:
        return True
    name = op_name(node)
    if name in _SCALED and name != "mean":
        other = argument(node, 1, "other")
        left = tensor_value(argument(node, 0, "input")) is not None
        finite = isinstance(other, (int, float)) and _is_finite_factor(other, value)
        return left and finite and node.kwargs.get("rounding_mode") is None
    if name == "mean":
        return value is not None and is_nonempty(node.args[0]) if node.args else False
    return name in ZERO_SAFE_BACKWARD


def _is_finite_factor(factor: float, value: torch.Tensor | None) -> bool:
    """Whether a number neither overflows nor vanishes in the dtype of a product."""
    if value is None or not value.is_floating_point():
        return False
    held = abs(torch.tensor(float(factor), dtype=torch.float64).to(value.dtype).item())
    return 0 < held < float("inf")
