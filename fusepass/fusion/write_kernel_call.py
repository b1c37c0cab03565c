"""Writes the call of one kernel in the place of a region of an ATen graph."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from fusepass.fusion.aten_to_epilogue import NoRegion
from fusepass.fusion.gemm.region import GemmRegion, OperandSlice
from fusepass.graph.dataflow.memory import memory_of
from fusepass.graph.dataflow.reached import reached
from fusepass.rewrite.apply.snapshot import insert_call
from fusepass.rewrite.rule import RuleSite

Fused = Callable[..., tuple[Any, ...]]
_REDUCING = {"sum": torch.ops.aten.sum.dim_IntList, "max": torch.ops.aten.amax.default}
_CLONE = torch.ops.aten.clone.default
_CONVERT = torch.ops.prims.convert_element_type.default


def operands_of(region: GemmRegion) -> Iterator[tuple[OperandSlice, tuple[Any, ...] | None]]:
    """What a region reads besides, and the shape each is read in; None for its own."""
    return zip(region.operands, region.shapes, strict=True)


def x_of(region: GemmRegion) -> Tensor:
    """The operand of the products as the kernel reads it."""
    value: Tensor = region.x.meta["val"]
    return value.reshape(-1, value.shape[-1]) if region.scaled and value.dim() != 2 else value


def reshaped(value: Tensor, shape: tuple[Any, ...] | None) -> Tensor:
    """A fake operand in the shape it is read in."""
    return value if shape is None else value.reshape(shape)


def sizes_of(region: GemmRegion) -> dict[fx.Node, list[Any]]:
    """The sizes of operands and outputs that have to be reshaped, as arguments of a call.

    Raises:
        NoRegion: one is symbolic, and no node in front of the kernel holds it.
    """
    wanted = {part.node: shape for part, shape in operands_of(region) if shape is not None}
    for output, nodes in zip(region.epilogue.outputs, region.outputs, strict=True):
        shapes = {node: tuple(node.meta["val"].shape) for node in nodes}
        dims = 1 if output.over else 2
        wanted |= {node: shape for node, shape in shapes.items() if len(shape) != dims}
    held: dict[Any, fx.Node] = {}
    if any(not isinstance(size, int) for shape in wanted.values() for size in shape):
        for node in region.before.graph.nodes:
            if node is region.before:
                break
            value = node.meta.get("val")
            if node in region.moved or node in region.nodes:
                continue  # it will stand behind the kernel, or nowhere
            if isinstance(value, torch.SymInt):
                held.setdefault(value.node.expr, node)
    return {node: _sized(shape, held) for node, shape in wanted.items()}


def _sized(shape: tuple[Any, ...], held: Mapping[Any, fx.Node]) -> list[Any]:
    symbolic = [size for size in shape if not isinstance(size, int)]
    if len(symbolic) == 1 and 0 not in shape:
        return [size if isinstance(size, int) else -1 for size in shape]
    missing = [size for size in symbolic if size.node.expr not in held]
    if missing:
        raise NoRegion(f"no node of the graph holds its size {missing[0]}")
    return [size if isinstance(size, int) else held[size.node.expr] for size in shape]


def _replace_output(
    region: GemmRegion,
    position: int,
    item: fx.Node,
    call: Callable[..., fx.Node],
    shaped: Mapping[fx.Node, list[Any]],
) -> None:
    """Let all that reads an output of a region read ``item``, the kernel's, in its layout."""
    output = region.epilogue.outputs[position]
    if output.over:
        item = call(_REDUCING[output.by], item, [0])
    copies: dict[Any, fx.Node] = {}  # of it, by the memory that the program has for each
    for node in region.outputs[position]:
        made = item
        if _is_output(node):
            memory = memory_of(node)
            if memory not in copies:
                copies[memory] = call(_CLONE, item) if copies else item
            made = copies[memory]
        if output.over and node.meta["val"].dtype is not torch.float32:
            made = call(_CONVERT, made, node.meta["val"].dtype)
        if node in shaped:
            made = call(torch.ops.aten.reshape.default, made, shaped[node])
        node.replace_all_uses_with(made, delete_user_cb=lambda user: user not in region.nodes)


def _is_output(node: fx.Node) -> bool:
    """Whether the graph hands out a node, or a view of it."""
    memory = memory_of(node)
    same = reached([node], lambda one: [user for user in one.users if memory_of(user) == memory])
    return any(user.op == "output" for one in same for user in one.users)


def write_call(site: RuleSite, fused: Fused) -> None:
    """Write the call that computes a region, and let all read its outputs.

    The site's notes hold the ``region``, its ``sizes`` (of :func:`sizes_of`) and the ``tile``;
    ``fused`` gives the operator and its arguments.
    """
    region: GemmRegion = site.notes["region"]
    shaped: dict[fx.Node, list[Any]] = site.notes["sizes"]
    graph = site.gm.graph
    call = partial(insert_call, graph, region.nodes[0])

    def part_of(part: OperandSlice) -> fx.Node:
        if part.width is None:
            return part.node
        last = part.node.meta["val"].dim() - 1
        where = last, part.start, part.stop, part.step
        return call(torch.ops.aten.slice.Tensor, part.node, *where)

    with graph.inserting_before(region.before):
        weights = [part_of(part) for part in region.weights]
        operands = [
            call(torch.ops.aten.reshape.default, part_of(part), shaped[part.node])
            if part.node in shaped
            else part_of(part)
            for part in region.operands
        ]
        text, tile = region.epilogue.text(), site.notes["tile"]
        x = region.x
        if x_of(region) is not x.meta["val"]:
            x = call(torch.ops.aten.reshape.default, x, [-1, x.meta["val"].shape[-1]])
        results = call(*fused(x, weights, operands, text, tile))
        for position in range(len(region.outputs)):
            _replace_output(
                region, position, call(operator.getitem, results, position), call, shaped
            )
    for node in region.moved:
        region.before.prepend(node)
    for node in (*reversed(region.nodes), *reversed(region.pulled)):
        if not node.users:
            graph.erase_node(node)
