"""Calls of an ATen graph that Inductor does not fuse: library calls, and our kernels."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence

from torch import fx

from fusepass.graph.dataflow.reached import reached
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


# --- Which calls Inductor generates a kernel for, and which it calls as they are ------------------

_VIEWS = frozenset(
    """view reshape _unsafe_view permute transpose t squeeze unsqueeze expand slice select alias
    as_strided split split_with_sizes unbind getitem detach""".split()
)
_OPAQUE = frozenset(
    "mm addmm bmm baddbmm convolution _scaled_mm _addmm_activation sort topk cumsum".split()
)


def feeds_generated_code(
    node: fx.Node, ignored: Collection[fx.Node] = (), alike: Sequence[fx.Node] = ()
) -> bool:
    """Whether Inductor computes a node inside the kernel that it generates for a reader of it.

    Readers through views count, too. It then costs nothing there: reading the pre-activation costs
    what reading the activation would. A reader that needs the result of a call that reads the node
    as well (the residual of the next block, behind its convolutions) is another kernel in any case.
    Calls in ``ignored`` do not count, because what computes the node takes them in. Nodes in
    ``alike`` have the same value.
    """
    generated: list[fx.Node] = []
    called: list[fx.Node] = []
    for one in (node, *alike):
        for found, more in zip((generated, called), _readers(one, ignored), strict=True):
            found.extend(more)
    if not generated or not called:
        return bool(generated)
    behind = {*reached((user for node in called for user in node.users), lambda node: node.users)}
    return any(one not in behind for one in generated)


def any_feeds_generated_code(
    results: Iterable[Sequence[fx.Node]], ignored: Collection[fx.Node]
) -> bool:
    """Whether that is so for one of several results, each of which some nodes hold."""
    return any(feeds_generated_code(nodes[0], ignored, nodes[1:]) for nodes in results if nodes)


def is_computed_by_generated_code(node: fx.Node) -> bool:
    """Whether Inductor generates the kernel that makes a node, where it is no view."""
    node = without_views(node)
    return node.op == "call_function" and not _is_called(node)


def without_views(node: fx.Node, views: Container[str | None] = _VIEWS) -> fx.Node:
    """What made the numbers of a node, where views only show them otherwise."""
    while op_name(node) in views and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _is_called(node: fx.Node) -> bool:
    """Whether Inductor calls a function as it is."""
    name, registered = op_name(node), operator_name(node.target)
    ours = registered is None or registered[0] not in ("aten", "prims") or name is None
    return ours or name in _OPAQUE or str(name).startswith("_scaled_dot_product")


def _readers(node: fx.Node, besides: Collection[fx.Node]) -> tuple[list[fx.Node], list[fx.Node]]:
    """Those that Inductor generates, and those it calls as they are."""
    generated: list[fx.Node] = []
    called: list[fx.Node] = []

    def is_view(node: fx.Node) -> bool:
        return node.op == "call_function" and node not in besides and op_name(node) in _VIEWS

    for user, _ in readers(node, is_view):
        if user.op == "call_function" and user not in besides and not is_view(user):
            (called if _is_called(user) else generated).append(user)
    return generated, called
