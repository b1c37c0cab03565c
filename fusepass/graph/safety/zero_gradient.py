"""Whether a zero gradient stays zero on its way back through a call."""

from __future__ import annotations

import torch
from torch import fx

from fusepass.graph.dataflow.fake_sizes import is_nonempty
from fusepass.graph.ops.op_names import argument, op_name, tensor_value

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
