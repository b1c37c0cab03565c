"""How a region of one or two products grows.

It grows in the order of the graph: a call joins if it works element by element, has an epilogue's
operation, and reads nothing but the region and what does not depend on it. Reshapes that keep the
last dimension are looked through. So the region is the largest there is, and convex. What is
computed element by element, and read by such computations only, is pulled in: the derivative of an
activation, of half-precision values that the forward saved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from fusepass.fusion import extern_calls
from fusepass.fusion.aten_to_epilogue import FLOATS, VIEWS, NoRegion, calls_of, widened
from fusepass.fusion.gemm.norm import row_scale
from fusepass.fusion.gemm.outputs import MAX_REDUCED, finish_region
from fusepass.fusion.gemm.region import (
    GemmRegion,
    OperandSlice,
    RegionGrowth,
    Value,
    is_gemm,
    operands_of,
    reduction_of,
    scales_of,
)
from fusepass.fusion.kernel_ir.epilogue import Epilogue, EpilogueOperand
from fusepass.fusion.kernel_ir.epilogue import is_constant as is_number
from fusepass.graph.dataflow.reached import reached
from fusepass.graph.ops.op_names import argument, op_name, tensor_value
from fusepass.torch_private.fx.graphs import known_equal

_MAX_OPERANDS = 4
_MAX_DEPTH = 24  # calls in a row that are pulled in


def grow_region(
    gemms: Sequence[fx.Node],
    halves: tuple[fx.Node, ...],
    *,
    alone: bool = False,
    reductions: bool = False,
    scales: bool = False,
) -> GemmRegion:
    """The largest region of some products.

    If a product is taken apart, ``halves`` are the nodes that hold its halves. With ``alone`` the
    region has nothing but the products and their biases; with ``reductions`` and ``scales`` also
    reductions of its values and the scale of a norm in front.

    Raises:
        NoRegion: there is none.
    """
    x = operands_of(gemms[0])[1]
    columns = gemms[0].meta["val"].shape[-1]
    width = columns // 2 if halves else columns
    of_x = x.meta["val"]
    rows = math.prod(gemms[0].meta["val"].shape[:-1])
    growth = RegionGrowth(rows, width, of_x.device, of_x.dtype)
    inside: list[fx.Node] = []
    parts: list[OperandSlice] = []
    products: list[tuple[fx.Node, fx.Node, Value, OperandSlice | None]] = []
    scaled = row_scale(x) if scales and of_x.dim() == 2 else None
    if scaled is not None:
        x, growth.spared = scaled.source, scaled.spared
        shape = (growth.m, 1) if len(scaled.column.meta["val"].shape) != 2 else None
        growth.operands.append(
            (OperandSlice(scaled.column), EpilogueOperand("column", "float32"), shape)
        )
    for gemm in gemms:
        bias, _, weight = operands_of(gemm)
        for root, part in _roots(gemm, halves, width):
            value: Value = ("product", len(parts))
            parts.append(part(weight))
            products.append((root, gemm, value, None if bias is None else part(bias)))
    if scaled is not None:  # first of all, see Epilogue.unscaled
        growth.steps += [("mul", (value, ("operand", 0))) for _, _, value, _ in products]
    for number, (root, gemm, value, held) in enumerate(products):
        shape = *gemm.meta["val"].shape[:-1], width
        start: Value = value if scaled is None else ("step", number)
        growth.known[root] = _add_bias(growth, start, held, shape, *scales_of(gemm))
    inside += _between(gemms[0], halves) if halves else gemms
    full = any(operand.kind == "full" for _, operand, _ in growth.operands)
    free = 0 if full else len(growth.steps)  # a bias per column is no work for cuBLAS either
    if not alone:
        inside += _join_nodes(growth, gemms[0], inside, reductions)
    if len(growth.steps) == free and not alone and not growth.reduced:
        raise NoRegion("nothing pointwise follows")
    region = finish_region(growth, x, tuple(parts), inside)
    if len(gemms) == 2 and not {0, 1} <= _products_used(region.epilogue):
        raise NoRegion("only one of the products is used")
    return region


def _join_nodes(
    growth: RegionGrowth, gemm: fx.Node, inside: Sequence[fx.Node], reductions: bool
) -> list[fx.Node]:
    """The nodes behind a product that join what is ``inside``; what depends on them is tainted."""
    found: list[fx.Node] = []
    for node in _after(gemm):
        if node in growth.known or node in inside:
            continue
        inputs = node.all_input_nodes
        if reductions and _try_join_reduction(growth, node):
            found.append(node)
        elif any(one in growth.tainted or one in growth.reduced for one in inputs):
            growth.tainted.add(node)
        elif _try_join(growth, node):
            found.append(node)
        elif any(one in growth.known for one in inputs):
            growth.tainted.add(node)
    return found


def _roots(
    gemm: fx.Node, halves: tuple[fx.Node, ...], width: int
) -> list[tuple[fx.Node, Callable[[fx.Node], OperandSlice]]]:
    """The nodes that hold products, and which columns of the operands of ``gemm`` they are of."""
    if not halves:
        return [(gemm, OperandSlice)]
    step = halves[0].meta["val"].stride(-1)
    start = 1 if step == 2 else width
    return [
        (half, partial(OperandSlice, start=start * i, width=width, step=step))
        for i, half in enumerate(halves)
    ]


def _products_used(epilogue: Epilogue) -> set[int]:
    """The products that what is computed last depends on."""
    first = epilogue.products + len(epilogue.operands)

    def before(value: int) -> list[int]:
        args = epilogue.steps[value - first].args if value >= first else ()
        return [int(arg[1:]) for arg in args if isinstance(arg, str)]

    last = [int(output.value[1:]) for output in epilogue.stored[:1] or epilogue.reduced]
    return {*reached(last, before)}


def _after(node: fx.Node) -> Iterator[fx.Node]:
    following = node.next
    while following.op != "output":
        yield following
        following = following.next


def _between(gemm: fx.Node, halves: tuple[fx.Node, ...]) -> list[fx.Node]:
    """The product of a pair that is packed, and what takes it apart: from the halves back to it."""
    found: set[fx.Node] = {gemm}
    for half in halves:
        node: Any = half
        while node not in found:
            found.add(node)
            node = node.args[0]
    return list(found)


def _add_bias(
    growth: RegionGrowth,
    value: Value,
    bias: OperandSlice | None,
    shape: tuple[Any, ...],
    alpha: float,
    beta: float,
) -> Value:
    """``alpha`` times a product and ``beta`` times its bias; one of 0 times counts as none."""

    def step(op: str, *args: Any) -> Value:
        growth.steps.append((op, args))
        return "step", len(growth.steps) - 1

    if alpha != 1:
        value = step("mul", value, float(alpha))
    if bias is None or beta == 0:
        return value
    whole = bias.node.meta["val"]
    if bias.width is not None and (not whole.dim() or whole.shape[-1] != 2 * bias.width):
        raise NoRegion("its bias is not one number per column")
    fake = bias.value
    kind = _kind(fake, shape)
    if kind is None:
        raise NoRegion("its bias is no row, column or matrix")
    growth.operands.append((bias, EpilogueOperand(kind[0], _dtype(fake)), kind[1]))
    added: Value = "operand", len(growth.operands) - 1
    return step("add", value, added if beta == 1 else step("mul", added, float(beta)))


def _try_join(growth: RegionGrowth, node: fx.Node) -> bool:
    """Take a call into the region, if it fits."""
    inputs = [one for one in node.all_input_nodes if tensor_value(one) is not None]
    if node.op != "call_function" or not any(one in growth.known for one in inputs):
        return False
    if op_name(node) in VIEWS:
        source: Any = node.args[0]
        if source in growth.known and keeps_rows(node, source):
            growth.known[node] = growth.known[source]
            return True
        return False
    value = tensor_value(node)
    if calls_of(node) is None or value is None or not _is_result(growth, value):
        return False
    mark = growth.mark()
    try:
        growth.known[node] = _emit_call(growth, node)
    except NoRegion:
        growth.roll_back(mark)
        return False
    return True


def _try_join_reduction(growth: RegionGrowth, node: fx.Node) -> bool:
    """Take a reduction into the region, if it is one of a value of it."""
    found = reduction_of(node)
    if found is None:
        return False
    source: Any = node.args[0]
    whole = source.meta["val"]
    if source not in growth.known or not _is_result(growth, whole):
        return False
    reduced = growth.known[source], found
    kinds = {*growth.reduced.values(), reduced}
    if len(kinds) > MAX_REDUCED or reduced[0][0] == "operand":
        return False
    growth.reduced[node] = reduced
    return True


def _emit_call(growth: RegionGrowth, node: fx.Node) -> Value:
    """Write a call down in the epilogue's operations.

    Raises:
        NoRegion: it has no place there.
    """
    shape = tuple(node.meta["val"].shape)

    def emit(op: str, *args: Any) -> Value:
        growth.steps.append((op, tuple(_argument(growth, arg, shape) for arg in args)))
        return "step", len(growth.steps) - 1

    made = calls_of(node)(emit, node)  # type: ignore[misc]
    return _argument(growth, made, shape) if isinstance(made, fx.Node) else made  # type: ignore[no-any-return]


def _argument(growth: RegionGrowth, one: Any, shape: tuple[Any, ...]) -> Any:
    """What an operation is given: a value of the region, a number, or an operand."""
    if not isinstance(one, fx.Node):
        return one
    if one in growth.known:
        return growth.known[one]
    if one in growth.pulled:
        return growth.pulled[one]
    constant = _constant(one)
    if constant is not None:
        return constant
    if _is_elementwise_operand(growth, one) or _half_of(growth, one) is not None:
        mark = growth.mark()
        try:
            growth.pulled[one] = _pull_in(growth, one, shape)
        except NoRegion:
            growth.roll_back(mark)
        else:
            return growth.pulled[one]
    fake = tensor_value(one)
    wide = fake is not None and fake.dtype is torch.float32
    if growth.depth and wide and growth.dtype is not torch.float32:
        raise NoRegion("it is single precision")
    for i, (known, *_) in enumerate(growth.operands):
        if known == OperandSlice(one):
            return "operand", i
    if fake is not None and fake.device != growth.device:
        raise NoRegion(f"{one} is not on the device of the product")  # a number on the CPU may be
    kind = None if fake is None else _kind(fake, shape)
    if fake is None or kind is None or len(growth.operands) >= _MAX_OPERANDS:
        raise NoRegion(f"{one} is neither a row, a column nor a matrix")
    growth.operands.append((OperandSlice(one), EpilogueOperand(kind[0], _dtype(fake)), kind[1]))
    return "operand", len(growth.operands) - 1


def _pull_in(growth: RegionGrowth, node: fx.Node, shape: tuple[Any, ...]) -> Value:
    """The value of a node that is computed in the region though it does not depend on it.

    Raises:
        NoRegion: it cannot be, or it is single precision beside products of half precision: what
            the kernel's functions are exact to is meant for what was rounded.
    """
    if growth.depth >= _MAX_DEPTH:
        raise NoRegion("much is computed for it")
    growth.depth += 1
    try:
        half = _half_of(growth, node)
        if half is None and op_name(node) not in VIEWS:
            return _emit_call(growth, node)
        source: Any = half or node.args[0]
        value: Value = _argument(growth, source, shape if half else tuple(source.meta["val"].shape))
        return value
    finally:
        growth.depth -= 1


def _is_elementwise_operand(growth: RegionGrowth, node: fx.Node) -> bool:
    """Whether a full operand is computed element by element, and only for such computations.

    A derivative of what the forward saved is: computed in the region it needs not be stored first.
    """
    value = tensor_value(node)
    if node.op != "call_function" or value is None or not _is_result(growth, value):
        return False

    def by_element(one: fx.Node) -> bool:
        if op_name(one) in VIEWS:
            return keeps_rows(one, one.args[0])  # type: ignore[arg-type]
        return calls_of(one) is not None

    return by_element(node) and all(map(by_element, node.users))


def _half_of(growth: RegionGrowth, node: fx.Node) -> fx.Node | None:
    """What a node is a copy of in single precision: the kernel reads halves as such anyway."""
    source = widened(node)
    if source is None or node.meta["val"].dtype is not torch.float32:
        return None
    return source if source.meta["val"].dtype is growth.dtype is not torch.float32 else None


def _is_result(growth: RegionGrowth, value: Tensor) -> bool:
    """Whether a value has one element for each of the product's, in its order."""
    known = known_equal
    rows = math.prod(value.shape[:-1])
    return value.dim() >= 1 and known(value.shape[-1], growth.n) and known(rows, growth.m)


def keeps_rows(view: fx.Node, source: fx.Node) -> bool:
    """Whether a reshape leaves the last dimension as it is."""
    a, b = tensor_value(view), tensor_value(source)
    if a is None or b is None or not a.dim() or not b.dim():
        return False
    return known_equal(a.shape[-1], b.shape[-1]) and a.is_contiguous()


without_views = partial(extern_calls.without_views, views=VIEWS)


def _constant(node: fx.Node) -> float | bool | None:
    """The number that a tensor holds which the graph makes of one."""
    if op_name(node) in ("full", "scalar_tensor"):
        number = argument(node, 1 if op_name(node) == "full" else 0, "fill_value")
        dtype = node.meta["val"].dtype
        if not is_number(number) or dtype not in (*FLOATS, torch.bool):
            return None  # an integer tensor cuts the fraction off
        return bool(number) if dtype is torch.bool else float(number)
    return None


def _kind(fake: Tensor, shape: tuple[Any, ...]) -> tuple[str, tuple[Any, ...] | None] | None:
    """What kind of operand a tensor is beside results of a shape, and the shape it is read in."""
    known = known_equal
    if fake.dtype not in (*FLOATS, torch.bool) or not fake.is_contiguous():
        return None
    sizes = tuple(fake.shape)
    if all(known(size, 1) for size in sizes):
        return "scalar", () if sizes else None
    if known(sizes[-1], shape[-1]) and all(known(size, 1) for size in sizes[:-1]):
        return "row", (sizes[-1],) if len(sizes) > 1 else None
    if len(sizes) != len(shape) or not all(map(known, sizes[:-1], shape[:-1])):
        return None
    rows = math.prod(sizes[:-1])
    if known(sizes[-1], 1):
        return "column", (rows, 1) if len(sizes) != 2 else None
    if known(sizes[-1], shape[-1]):
        return "full", (rows, sizes[-1]) if len(sizes) != 2 else None
    return None


def _dtype(fake: Tensor) -> str:
    return str(fake.dtype).removeprefix("torch.")


# --- A GEMM, or a gated pair of GEMMs, and where its region begins --------------------------------
# A pair has one ``x``: two GEMMs that meet behind pointwise calls, or two halves of one product.

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

    With ``pairs`` it is that of a gated pair of which ``gemm`` is the first product; the rest is as
    for :func:`grow_region`.

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
