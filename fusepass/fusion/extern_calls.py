"""Calls of an ATen graph that Inductor does not fuse: library calls, and our kernels."""

from __future__ import annotations

from torch import fx

from fusepass.graph.dataflow.readers import readers
from fusepass.graph.ops.op_names import op_name
from fusepass.torch_private.fx.graphs import operator_name

LIBRARY_CALLS = frozenset("mm addmm bmm baddbmm convolution cudnn_convolution_relu".split())
_OURS = frozenset(
    """conv_region conv_relu depthwise gemm_region linear_activation normed_gemms pool
    sibling_gemms""".split()
)
VIEWS = frozenset("view reshape _unsafe_view unsqueeze squeeze permute detach alias".split())


def stays_inside(node: fx.Node) -> bool:
    """Whether nothing but such calls reads a result, directly or through views.

    Their results are memory of their own: nothing holds this one when they are done.
    """
    return bool(node.users) and all(
        bool(user.users) if is_view(user) else is_library_call(user)
        for user, _ in readers(node, is_view)
    )


def is_view(node: fx.Node) -> bool:
    """Whether a node shows the numbers of another one."""
    return op_name(node) in VIEWS


def is_library_call(node: fx.Node) -> bool:
    """Whether a node is such a call."""
    namespace, name = operator_name(node.target) or ("", "")
    if namespace == "fusepass":
        return name in _OURS
    return node.op == "call_function" and op_name(node) in LIBRARY_CALLS
