"""The borders of a grown region: what it hands out, and where its kernel goes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import fx

from fusepass.fusion.aten_to_epilogue import CASTS, FLOATS, NoRegion
from fusepass.fusion.extern_calls import VIEWS
from fusepass.fusion.gemm.region import GemmRegion, OperandSlice, Reduction, RegionGrowth, Value
from fusepass.fusion.kernel_ir.epilogue import Argument, Epilogue, EpilogueStep, Output
from fusepass.graph.dataflow.effects import is_random, written_nodes
from fusepass.graph.dataflow.readers import readers
from fusepass.graph.ops.op_names import op_name

_ALIASES = VIEWS | frozenset("slice select as_strided expand t transpose diagonal unfold".split())
_MAX_OUTPUTS = 3
MAX_REDUCED = 2


def finish_region(
    growth: RegionGrowth, x: fx.Node, parts: tuple[OperandSlice, ...], inside: list[fx.Node]
) -> GemmRegion:
    """The region that has grown.

    Raises:
        NoRegion: no kernel can take their place.
    """
    order = {node: place for place, node in enumerate(x.graph.nodes)}
    inside = sorted(inside, key=order.__getitem__)
    copies = _wider_copies(growth, inside)
    growth.tainted |= copies
    inside = [node for node in inside if node not in copies]
    outputs, reduced = _outputs(growth, inside), _reduced_outputs(growth)
    if not outputs and not reduced:
        raise NoRegion("nothing of it is used")
    needed = [x, *(part.node for part in parts), *(part.node for part, *_ in growth.operands)]
    if any(node in inside or node in growth.tainted for node in needed):
        raise NoRegion("a product is made of another one")
    # Right behind the last of it: what is further behind may write what it reads.
    before = inside[-1].next
    between = list(_until(inside[0], before))
    pulled = sorted((*growth.pulled, *growth.spared), key=order.__getitem__)
    first = min((*inside, *pulled), key=order.__getitem__)
    if any(written_nodes(node) for node in _until(first, before)):
        raise NoRegion("something is written between its parts")
    moved = tuple(node for node in between if node in growth.tainted)
    if any(map(is_random, moved)):
        raise NoRegion("what draws random numbers would have to move")
    return GemmRegion(
        x,
        bool(growth.spared),
        parts,
        tuple(part for part, *_ in growth.operands),
        tuple(shape for *_, shape in growth.operands),
        _epilogue(growth, len(parts), [one for one, _ in outputs], [one for one, _ in reduced]),
        tuple(tuple(nodes) for _, nodes in (*outputs, *reduced)),
        tuple(inside),
        tuple(pulled),
        moved,
        before,
    )


def _epilogue(
    growth: RegionGrowth,
    products: int,
    outputs: Iterable[tuple[Value, str]],
    reduced: Iterable[tuple[Value, Reduction]],
) -> Epilogue:
    """What has grown, with its values numbered: products first, then operands, then steps."""
    starts = {"product": 0, "operand": products, "step": products + len(growth.operands)}

    def number(arg: Any) -> Argument:
        if not isinstance(arg, tuple):
            return arg if isinstance(arg, bool) else float(arg)
        return f"%{starts[arg[0]] + arg[1]}"

    return Epilogue(
        products,
        tuple(operand for _, operand, _ in growth.operands),
        tuple(EpilogueStep(op, tuple(map(number, args))) for op, args in growth.steps),
        (
            *(Output(str(number(value)), dtype) for value, dtype in outputs),
            *(Output(str(number(value)), "float32", how.over, how.by) for value, how in reduced),
        ),
    )


def _wider_copies(growth: RegionGrowth, inside: list[fx.Node]) -> set[fx.Node]:
    """Single-precision copies of rounded values that are read outside.

    They are made of the rounded values there, of which they must be equal copies: the gradient of a
    maximum looks for its elements among them.
    """
    taken = set(inside)
    return {
        node
        for node in inside
        if op_name(node) in CASTS
        and node.meta["val"].dtype is torch.float32
        and node.args[0] in growth.known
        and node.args[0].meta["val"].dtype in FLOATS[1:]  # type: ignore[union-attr]
        and any(user not in taken for user in node.users)
    }


def _outputs(
    growth: RegionGrowth, inside: list[fx.Node]
) -> list[tuple[tuple[Value, str], list[fx.Node]]]:
    """Values that are read outside, each with its dtype and nodes; the last computed first."""
    taken = set(inside)
    stored: dict[tuple[Value, str], list[fx.Node]] = {}
    for node in inside:
        if node in growth.reduced or all(user in taken for user in node.users):
            continue
        if node not in growth.known:
            raise NoRegion("the packed product is used as a whole")
        if _is_user_visible(node, taken) and not node.meta["val"].is_contiguous():
            raise NoRegion("a part of the packed product is a result, whose strides are seen")
        dtype = str(node.meta["val"].dtype).removeprefix("torch.")
        stored.setdefault((growth.known[node], dtype), []).append(node)
    ordered = sorted(stored.items(), key=lambda one: _rank(one[0][0]), reverse=True)
    if len(ordered) > _MAX_OUTPUTS:
        raise NoRegion(f"{len(ordered)} values of it are used")
    if any(value[0] == "operand" or dtype == "bool" for (value, dtype), _ in ordered):
        raise NoRegion("what it hands out is no product's")
    return ordered


def _is_user_visible(node: fx.Node, taken: set[fx.Node]) -> bool:
    """Whether a value, or a view of it, is a result that the user sees.

    Which results are no others' than the backward's, Inductor writes down at the output.
    """
    for user, read in readers(node, lambda user: user not in taken and op_name(user) in _ALIASES):
        if user.op == "output":
            results = list(user.args[0]) if isinstance(user.args[0], (tuple, list)) else [read]
            seen = user.meta.get("user_visible_output_idxs", range(len(results)))
            if any(results[i] is read for i in seen):
                return True
    return False


def _reduced_outputs(growth: RegionGrowth) -> list[tuple[tuple[Value, Reduction], list[fx.Node]]]:
    """Values that are reduced, each with how and the nodes that do it."""
    found: dict[tuple[Value, Reduction], list[fx.Node]] = {}
    for node, (value, how) in growth.reduced.items():
        found.setdefault((value, how), []).append(node)
    return list(found.items())


def _until(node: fx.Node, end: fx.Node) -> Iterator[fx.Node]:
    while node is not end:
        yield node
        node = node.next


def _rank(value: Value) -> tuple[int, int]:
    return ("product", "operand", "step").index(value[0]), value[1]
