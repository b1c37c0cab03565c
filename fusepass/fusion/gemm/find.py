"""A GEMM, or a gated pair of GEMMs, with the pointwise work around it, found in an ATen graph.

A pair has one ``x``: two GEMMs that meet behind pointwise calls, or two halves of one product.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from fusepass.fusion.aten_to_epilogue import VIEWS, NoRegion, calls_of
from fusepass.fusion.gemm.gemm import is_gemm, operands_of
from fusepass.fusion.gemm.grow import grow_region, keeps_rows, without_views
from fusepass.fusion.gemm.region import GemmRegion, OperandSlice
from fusepass.graph.ops.op_names import op_name, tensor_value

__all__ = ["GemmRegion", "NoRegion", "OperandSlice", "is_gemm", "region_at"]


def region_at(
    gemm: fx.Node,
    *,
    pairs: bool,
    alone: bool = False,
    reductions: bool = False,
    scales: bool = False,
) -> GemmRegion:
    """The region of a GEMM.

    Args:
        gemm: one of :func:`is_gemm`.
        pairs: look for a gated pair of which ``gemm`` is the first product; else for one product.
        alone: take the product (and its bias) only, whatever is behind it.
        reductions: take reductions of its values as well.
        scales: take the scale of a norm in front of it as well.

    Raises:
        NoRegion: there is none.
    """
    halves = _halves(gemm)
    reductions = reductions and gemm.meta["val"].dim() == 2
    if pairs and halves:
        return grow_region([gemm], halves, reductions=reductions, scales=scales)
    if alone:
        return grow_region([gemm], (), alone=True)
    if halves:
        raise NoRegion("its result is taken apart")
    if not pairs:
        return grow_region([gemm], (), reductions=reductions, scales=scales)
    partner = _partner(gemm)
    if partner is None:
        raise NoRegion("no other product of the same operand meets it")
    both = [node for node in gemm.graph.nodes if node in (gemm, partner)]  # in their order
    return grow_region(both, (), reductions=reductions, scales=scales)


def _halves(gemm: fx.Node) -> tuple[fx.Node, ...]:
    """The two halves of a packed product, or its even and odd columns, if it is used only so."""
    users = list(gemm.users)
    while len(users) == 1 and _keeps_columns(users[0], gemm):
        users = list(users[0].users)
    if len(users) == 1 and op_name(users[0]) in ("split", "split_with_sizes", "chunk", "unbind"):
        users = sorted(users[0].users, key=lambda one: one.args[1])  # type: ignore[arg-type,return-value]
    elif not (len(users) == 2 and all(op_name(u) in ("slice", "select") for u in users)):
        return ()
    whole = gemm.meta["val"].shape[-1]
    values = [value for value in map(tensor_value, users) if value is not None and value.dim()]
    if len(values) != 2 or len(users) != 2 or not isinstance(whole, int):
        return ()
    if any(value.shape[-1] * 2 != whole for value in values):
        return ()
    offsets = [value.storage_offset() for value in values]
    order = sorted(range(2), key=offsets.__getitem__)
    steps = {value.stride(-1) for value in values}
    apart = offsets[order[1]] - offsets[order[0]]
    side_by_side, alternating = (whole // 2, {1}), (1, {2})
    return tuple(users[i] for i in order) if (apart, steps) in (side_by_side, alternating) else ()


def _keeps_columns(view: fx.Node, gemm: fx.Node) -> bool:
    """Whether a reshape leaves the columns of a product as they are, or makes two of each two."""
    value, whole = tensor_value(view), gemm.meta["val"].shape[-1]
    if op_name(view) not in VIEWS or value is None:
        return False
    pairs = value.dim() > 1 and value.shape[-1] == 2 and value.shape[-2] * 2 == whole
    return bool(pairs and value.is_contiguous()) or keeps_rows(view, gemm)


def _partner(gemm: fx.Node) -> fx.Node | None:
    """The other product of a gated pair: of the same x, met behind pointwise calls."""
    mine = operands_of(gemm)
    found: list[fx.Node] = []
    seen = {gemm}
    todo = [gemm]
    while todo and len(seen) < 64:
        for user in todo.pop(0).users:
            if user in seen or user.op != "call_function" or tensor_value(user) is None:
                continue
            if op_name(user) not in VIEWS and calls_of(user) is None:
                continue
            seen.add(user)
            todo.append(user)
            found += [one for one in map(_gemm_before, user.all_input_nodes) if one is not None]
    for other in found:
        theirs = operands_of(other)
        same = _base(theirs[1]) == _base(mine[1]) and other is not gemm
        if (
            same
            and _have_same_layout(mine[2], theirs[2])
            and other.meta["val"].dtype == gemm.meta["val"].dtype
        ):
            return other
    return None


def _gemm_before(node: fx.Node) -> fx.Node | None:
    """The GEMM of which a value is computed by calls of one operand, or which it is."""
    while node.op == "call_function":
        if is_gemm(node):
            return node
        inputs = [one for one in node.all_input_nodes if tensor_value(one) is not None]
        plain = op_name(node) in VIEWS or calls_of(node) is not None
        if not plain or len(set(inputs)) != 1:
            return None
        node = inputs[0]
    return None


def _have_same_layout(one: fx.Node, other: fx.Node) -> bool:
    a, b = one.meta["val"], other.meta["val"]
    return bool(a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype)


def _base(node: fx.Node) -> tuple[fx.Node, tuple[Any, ...]]:
    """What a matrix is a reshape of, and its shape: equal for equal values."""
    return without_views(node), tuple(node.meta["val"].shape)
