"""What Inductor generates a kernel for, and what it calls as it is."""

from __future__ import annotations

from collections.abc import Collection

from torch import fx

from fusepass import torch_private
from fusepass.graph.canonical import op_name

_VIEWS = frozenset(
    """view reshape _unsafe_view permute transpose t squeeze unsqueeze expand slice select alias
    as_strided split split_with_sizes unbind getitem detach""".split()
)
_OPAQUE = frozenset(
    "mm addmm bmm baddbmm convolution _scaled_mm _addmm_activation sort topk cumsum".split()
)


def feeds_generated_code(node: fx.Node, besides: Collection[fx.Node] = ()) -> bool:
    """Whether Inductor generates the kernel of something that reads a node, through views or not.

    It then computes the node inside that kernel: reading the pre-activation costs what reading the
    activation would.

    Args:
        node: of an ATen graph.
        besides: calls that do not count, because what computes the node takes them in.
    """
    for user in node.users:
        if user.op != "call_function" or user in besides:
            continue
        name = op_name(user)
        if name in _VIEWS:
            if feeds_generated_code(user, besides):
                return True
            continue
        registered = torch_private.operator_name(user.target)
        if registered is None or registered[0] not in ("aten", "prims") or name is None:
            continue  # somebody's operator: called as it is
        if name not in _OPAQUE and not name.startswith("_scaled_dot_product"):
            return True
    return False
