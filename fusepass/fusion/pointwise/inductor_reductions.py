"""Reductions in an ATen graph: how much of what, what is computed before, what reads the result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, fx

from fusepass.graph.dataflow.reached import reached
from fusepass.graph.ops.op_names import op_name
from fusepass.graph.terms.rowwise import is_pointwise
from fusepass.torch_private.inductor.reductions import reduction_of

# By name: one of them torch makes only when it is first used.
VARIANCES = frozenset({"aten.var.correction", "aten.var_mean.correction"})
REDUCTIONS = VARIANCES | {
    *("aten.sum.default", "aten.sum.dim_IntList", "aten.mean.default", "aten.mean.dim"),
    *("aten.amax.default", "aten.amin.default", "aten.max.default", "aten.min.default"),
    *("aten.prod.default", "aten.prod.dim_int"),
    *("aten.any.default", "aten.any.dim", "aten.any.dims"),
    "prims.prepare_softmax_online.default",
}
_VIEWS = frozenset(
    "view reshape _unsafe_view unsqueeze squeeze permute transpose t expand alias detach".split()
)
# A few instructions for each element; those that torch has no tag for count as operands.
_CHEAP = frozenset(
    "abs add sub mul neg relu maximum minimum where eq ne lt le gt ge isinf isnan logical_not "
    "logical_or logical_and bitwise_or bitwise_and bitwise_not".split()
)
_CASTS = frozenset("cast convert_element_type _to_copy to".split())
_FEW_CALLS = 4


def is_reduction(node: Any) -> bool:
    """Whether a call reduces a tensor, in a way that Inductor may take apart."""
    return node.op == "call_function" and str(reduction_of(node.target)) in REDUCTIONS


def value_of(node: Any) -> Any:
    """A call's value, or the first of several; all results of a reduction have its size."""
    value = node.meta.get("val")
    return value[0] if isinstance(value, (list, tuple)) and value else value


def count_of(node: Any) -> int:
    """Numbers of a tensor; -1 where they are not known, or it is none."""
    value = value_of(node)
    if not isinstance(value, Tensor) or not all(isinstance(size, int) for size in value.shape):
        return -1
    return value.numel()


def is_inner(node: fx.Node) -> bool:
    """Whether numbers of one result lie side by side."""
    x = value_of(node.args[0])
    return any(x.stride(dim) == 1 and x.shape[dim] > 1 for dim in _dims(node))


def _dims(node: fx.Node) -> frozenset[int]:
    """What a call reduces over, counted from the front."""
    rank = value_of(node.args[0]).dim()
    given: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    return frozenset(
        dim % rank for dim in ([given] if isinstance(given, int) else given or range(rank))
    )


def is_combined_with_input(node: fx.Node) -> bool:
    """Whether what comes of a result meets what was reduced, or as much, which then waits."""
    whole = count_of(node.args[0])

    def calls(one: fx.Node) -> list[fx.Node]:
        return [user for user in one.users if user.op == "call_function"]

    return any(count_of(user) >= whole for user in reached(calls(node), calls))


def has_cheap_prologue(node: fx.Node) -> bool:
    """Whether what is reduced is one tensor, but for a few cheap pointwise calls."""
    operands = calls = 0
    for one in _pointwise_sources(node.args[0]):
        name = op_name(one)
        if name in _VIEWS or name in _CASTS:
            continue
        is_square = name == "pow" and len(one.args) == 2 and bool(one.args[1] == 2)
        if name in _CHEAP or is_square:
            calls += 1
        elif name is not None and is_pointwise(name):
            return False
        else:
            operands += 1
    return operands <= 1 and calls <= _FEW_CALLS


def reads_a_reduction(node: fx.Node) -> bool:
    """Whether what is reduced to one comes of a reduction of as much, whose kernel can go on."""
    return any(count_of(one) != 1 for one in _reductions_before(node))


def follows_reduction(node: fx.Node) -> bool:
    """Whether it reduces what is made with a reduction over the same dimensions of as much.

    As a sum of exponentials does the maximum that they are taken from.
    """
    return any(_dims(one) == _dims(node) for one in _reductions_before(node))


def _reductions_before(node: fx.Node) -> Iterator[fx.Node]:
    """Reductions of as much as a call reduces, of which what it reduces is computed."""
    whole = count_of(node.args[0])

    def before(one: Any) -> list[Any]:
        sources = one.all_input_nodes if one.op == "call_function" else ()
        return [source for source in sources if 0 <= count_of(source) <= whole]

    start: list[Any] = [node.args[0]]
    for one in reached(start, before):
        if is_reduction(one) and count_of(one.args[0]) == whole:
            yield one


def _pointwise_sources(node: Any) -> Iterator[fx.Node]:
    """A node and those of its size that it is computed from, up to calls that are not pointwise."""
    whole = count_of(node)

    def before(one: fx.Node) -> list[fx.Node]:
        name = op_name(one) or ""
        if one.op != "call_function" or not (name in _VIEWS | _CASTS or is_pointwise(name)):
            return []
        return [n for n in one.all_input_nodes if count_of(n) in (whole, -1)]  # constants have none

    return reached([node], before)
