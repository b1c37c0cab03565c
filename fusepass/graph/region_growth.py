"""A region of one or two products while it grows, and what comes of it.

It grows in the order of the graph: a call joins if it works element by element, has an epilogue's
operation, and reads nothing but the region and what does not depend on it. Reshapes that keep the
last dimension are looked through. So the region is the largest there is, and convex.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from fusepass import torch_private
from fusepass.graph.canonical import argument, op_name, tensor_value
from fusepass.graph.epilogue import Argument, Epilogue, Operand, Output, Step
from fusepass.graph.epilogue import is_constant as is_number
from fusepass.graph.epilogue_of_aten import FLOATS, NoRegion, calls_of

VIEWS = frozenset("view reshape _unsafe_view".split())
_MOST_OPERANDS, _MOST_OUTPUTS = 4, 3


@dataclass(frozen=True)
class Part:
    """A weight of a region: all of ``node`` (K, N), or ``width`` of its columns from ``start``."""

    node: fx.Node
    start: int = 0
    width: int | None = None


@dataclass
class Region:
    """What one kernel could compute.

    Attributes:
        x: the (M, K) operand.
        weights: one, or two of a pair.
        operands: nodes read besides, in the epilogue's order.
        shapes: for each operand, what it is to be reshaped to; None if it stays.
        epilogue: of the products.
        outputs: for each of the epilogue's outputs, the nodes that hold it.
        nodes: everything the kernel takes the place of, in the order of the graph.
        before: where the kernel goes: in front of this node, which reads an output or follows
            the region.
    """

    x: fx.Node
    weights: tuple[Part, ...]
    operands: tuple[fx.Node, ...]
    shapes: tuple[tuple[Any, ...] | None, ...]
    epilogue: Epilogue
    outputs: tuple[tuple[fx.Node, ...], ...]
    nodes: tuple[fx.Node, ...]
    before: fx.Node


@dataclass
class _Growth:
    """A region while it grows. Values are tuples: ``("product", 0)``, ``("step", 3)``."""

    m: Any
    n: Any
    known: dict[fx.Node, tuple[str, int]] = field(default_factory=dict)
    operands: list[tuple[fx.Node, Operand, tuple[Any, ...] | None]] = field(default_factory=list)
    steps: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    tainted: set[fx.Node] = field(default_factory=set)


def grown(gemms: Sequence[fx.Node], halves: tuple[fx.Node, ...], *, alone: bool = False) -> Region:
    """The largest region of some products.

    Args:
        gemms: one, or two of the same x.
        halves: of one product, the nodes that hold its halves; empty where it is taken whole.
        alone: take nothing but the products and their biases.

    Raises:
        NoRegion: there is none.
    """
    x = operands_of(gemms[0])[1]
    columns = gemms[0].meta["val"].shape[1]
    width = columns // 2 if halves else columns
    growth = _Growth(x.meta["val"].shape[0], width)
    inside: list[fx.Node] = []
    parts: list[Part] = []
    for i, gemm in enumerate(gemms):
        bias, _, own = operands_of(gemm)
        roots = halves or (gemm,)
        for j, root in enumerate(roots):
            value = ("product", i + j)
            if bias is not None:
                if halves:
                    raise NoRegion("a packed pair with a bias")
                value = _biased(growth, value, bias)
            growth.known[root] = value
        parts += [Part(own, j * width, width) for j in range(2)] if halves else [Part(own)]
    inside += _between(gemms[0], halves) if halves else gemms
    for node in () if alone else _after(gemms[0]):
        if node in growth.known or node in inside:
            continue
        if _joins(growth, node):
            inside.append(node)
        elif any(one in growth.known or one in growth.tainted for one in node.all_input_nodes):
            growth.tainted.add(node)
    if not growth.steps and not alone:
        raise NoRegion("nothing element-wise follows")
    region = _finished(growth, x, tuple(parts), inside)
    if len(gemms) == 2 and not {0, 1} <= _products_read(region.epilogue):
        raise NoRegion("only one of the products is used")
    return region


def _products_read(epilogue: Epilogue) -> set[int]:
    """The products that the last output depends on."""
    first = epilogue.products + len(epilogue.operands)
    seen: set[int] = set()
    todo = [int(epilogue.outputs[0].value[1:])]
    while todo:
        value = todo.pop()
        if value in seen:
            continue
        seen.add(value)
        if value >= first:
            args = epilogue.steps[value - first].args
            todo += [int(arg[1:]) for arg in args if isinstance(arg, str)]
    return seen


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


def _biased(growth: _Growth, value: tuple[str, int], bias: fx.Node) -> tuple[str, int]:
    fake = bias.meta["val"]
    kind = _kind(fake, (growth.m, growth.n))
    if kind is None:
        raise NoRegion("its bias is no row, column or matrix")
    growth.operands.append((bias, Operand(kind[0], _dtype(fake)), kind[1]))
    growth.steps.append(("add", (value, ("operand", len(growth.operands) - 1))))
    return "step", len(growth.steps) - 1


def _joins(growth: _Growth, node: fx.Node) -> bool:
    """Take a call into the region, if it fits."""
    inputs = [one for one in node.all_input_nodes if tensor_value(one) is not None]
    if node.op != "call_function" or not any(one in growth.known for one in inputs):
        return False
    if any(one in growth.tainted for one in node.all_input_nodes):
        return False
    if op_name(node) in VIEWS:
        source: Any = node.args[0]
        if source in growth.known and keeps_rows(node, source):
            growth.known[node] = growth.known[source]
            return True
        return False
    calls = calls_of(node)
    value = tensor_value(node)
    if calls is None or value is None or not _is_result(growth, value):
        return False
    held = len(growth.operands), len(growth.steps)

    def given(one: Any) -> Any:
        if not isinstance(one, fx.Node):
            return one
        if one in growth.known:
            return growth.known[one]
        constant = _constant(one)
        if constant is not None:
            return constant
        for i, (known, *_) in enumerate(growth.operands):
            if known is one:
                return "operand", i
        fake = tensor_value(one)
        kind = None if fake is None else _kind(fake, tuple(value.shape))
        if fake is None or kind is None or len(growth.operands) >= _MOST_OPERANDS:
            raise NoRegion(f"{one} is neither a row, a column nor a matrix")
        growth.operands.append((one, Operand(kind[0], _dtype(fake)), kind[1]))
        return "operand", len(growth.operands) - 1

    def emit(op: str, *args: Any) -> Any:
        growth.steps.append((op, tuple(given(arg) for arg in args)))
        return "step", len(growth.steps) - 1

    try:
        made = calls(emit, node)
        growth.known[node] = given(made) if isinstance(made, fx.Node) else made
    except NoRegion:
        del growth.operands[held[0] :], growth.steps[held[1] :]
        return False
    return True


def _is_result(growth: _Growth, value: Tensor) -> bool:
    """Whether a value has one element for each of the product's, in its order."""
    known = torch_private.known_equal
    rows = math.prod(value.shape[:-1])
    return value.dim() >= 1 and known(value.shape[-1], growth.n) and known(rows, growth.m)


def keeps_rows(view: fx.Node, source: fx.Node) -> bool:
    """Whether a reshape leaves the last dimension as it is."""
    a, b = tensor_value(view), tensor_value(source)
    if a is None or b is None or not a.dim() or not b.dim():
        return False
    return torch_private.known_equal(a.shape[-1], b.shape[-1]) and a.is_contiguous()


def _constant(node: fx.Node) -> float | bool | None:
    """The number that a tensor holds which the graph makes of one."""
    if op_name(node) in ("full", "scalar_tensor"):
        number = argument(node, 1 if op_name(node) == "full" else 0, "fill_value")
        return number if is_number(number) else None
    return None


def _kind(fake: Tensor, shape: tuple[Any, ...]) -> tuple[str, tuple[Any, ...] | None] | None:
    """What kind of operand a tensor is beside results of a shape, and the shape it is read in."""
    known = torch_private.known_equal
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


def _finished(
    growth: _Growth, x: fx.Node, parts: tuple[Part, ...], inside: list[fx.Node]
) -> Region:
    taken = set(inside)
    stored: dict[tuple[tuple[str, int], str], list[fx.Node]] = {}
    for node in inside:
        if node not in growth.known:
            if any(user not in taken for user in node.users):
                raise NoRegion("the packed product is used as a whole")
        elif any(user not in taken for user in node.users):
            stored.setdefault((growth.known[node], _dtype(node.meta["val"])), []).append(node)
    ordered = sorted(stored.items(), key=lambda one: _rank(one[0][0]), reverse=True)
    if not ordered or len(ordered) > _MOST_OUTPUTS:
        raise NoRegion(f"{len(ordered)} values of it are used")
    if any(value[0] == "operand" or dtype == "bool" for (value, dtype), _ in ordered):
        raise NoRegion("what it hands out is no product's")
    products, operands = len(parts), len(growth.operands)

    def number(arg: Any) -> Argument:
        if not isinstance(arg, tuple):
            return arg if isinstance(arg, bool) else float(arg)
        kind, index = arg
        start = {"product": 0, "operand": products, "step": products + operands}[kind]
        return f"%{start + index}"

    epilogue = Epilogue(
        products,
        tuple(operand for _, operand, _ in growth.operands),
        tuple(Step(op, tuple(map(number, args))) for op, args in growth.steps),
        tuple(Output(str(number(value)), dtype) for (value, dtype), _ in ordered),
    )
    needed = [x, *(part.node for part in parts), *(node for node, *_ in growth.operands)]
    if any(node in taken for node in needed):
        raise NoRegion("a product is made of another one")
    order = {node: place for place, node in enumerate(x.graph.nodes)}
    inside = sorted(inside, key=order.__getitem__)
    readers = [user for node in inside for user in node.users if user not in taken]
    # No later than the last of it: what is behind may write what it reads.
    before = min([*readers, inside[-1].next], key=order.__getitem__)
    if any(order[node] >= order[before] for node in needed):
        raise NoRegion("an operand comes later than what reads the result")
    if any(_writes(node) for node in _until(inside[0], before)):
        raise NoRegion("something is written between its parts")
    return Region(
        x,
        parts,
        tuple(node for node, *_ in growth.operands),
        tuple(shape for *_, shape in growth.operands),
        epilogue,
        tuple(tuple(nodes) for _, nodes in ordered),
        tuple(inside),
        before,
    )


def _until(node: fx.Node, end: fx.Node) -> Iterator[fx.Node]:
    while node is not end:
        yield node
        node = node.next


def _writes(node: fx.Node) -> bool:
    """Whether a call changes a tensor it is given."""
    return node.op == "call_function" and torch_private.schema_mutates(node.target) is True


def _rank(value: tuple[str, int]) -> tuple[int, int]:
    return ("product", "operand", "step").index(value[0]), value[1]


def operands_of(gemm: fx.Node) -> tuple[fx.Node | None, fx.Node, fx.Node]:
    """Bias, x and weight of a GEMM."""
    args: Any = gemm.args
    return args if len(args) == 3 else (None, *args)
