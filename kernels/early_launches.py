"""Which launches of a graph may begin before the kernel in front of them ends.

A product of few rows takes the time of reading its weights. Between one kernel's end and the first
loads of the next nothing is read, one to two microseconds; a launch that overlaps (CUDA C++
Programming Guide, "Programmatic Dependent Launch") asks for its weights meanwhile, and waits for
the rest. It may do so where

- no node of the graph writes its weights, which are inputs or constants of the graph: only what was
  launched in this call may still be running, since the first launch of a call waits for all before;
- x is the result of a kernel of ours in the same graph, which is therefore in front, and lets it
  begin. Kernels that are launched as usual, whoever's they are, wait for the end of all in front.

Asked for the node that Inductor compiles at the moment.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import replace

from torch import fx

from fusepass.graph.epilogue import parse
from fusepass.kernels.gemm_tiles import Tile, tiles
from fusepass.kernels.hopper_cuda import Shape
from fusepass.kernels.hopper_cuda_launch import Cut
from fusepass.torch_private import nvrtc
from fusepass.torch_private.lowering import lowered_node


def overlapping(cut: Cut, node: fx.Node | None = None) -> Cut:
    """A cut, told whether its launch begins early and whether it lets the next one do so.

    Args:
        cut: of the node's kernel.
        node: else the one that is compiled.
    """
    node = node or lowered_node()
    if isinstance(cut, Shape) or node is None:
        return cut
    return replace(cut, early=begins_early(node), leads=leads(node))


def leads(node: fx.Node | None = None) -> bool:
    """Whether what reads a node's results, or those of the one that is compiled, begins early."""
    node = node or lowered_node()
    return node is not None and any(map(begins_early, _readers(node)))


def begins_early(node: fx.Node) -> bool:
    """Whether a node is a product whose launch may begin before the kernel in front of it ends."""
    tile = _tile(node)
    if tile is None or tile.cuda is None or isinstance(tile.cuda, Shape):
        return False
    x, weights, *_ = node.args
    assert isinstance(weights, (list, tuple))
    return may_begin_early(x, weights)


def may_begin_early(x: object, weights: Iterable[object]) -> bool:
    """Whether a launch of x times some weights might begin early, if its kernel can.

    Args:
        x: a node of the graph.
        weights: likewise, or parts of others.
    """
    if not _may_lead(_origin(x)) or not all(map(_only_read, weights)):
        return False
    return nvrtc.begins_early()


def saved(tile: Tile) -> float:
    """Microseconds that a kernel takes less where its launch may begin early.

    As much as it gained on others in MLPs on an H100, over what it gains alone: of one row 2.0 to
    2.7 (4096 to 14336) and 1.4 (1024 to 3072), of 16 rows 2.7 (docs/kernels.md).
    """
    return 0.0 if tile.cuda is None or isinstance(tile.cuda, Shape) else 2.0


def _tile(node: fx.Node) -> Tile | None:
    """Of a product's kernel; None of other nodes."""
    if not _calls(node, "gemm_region"):
        return None
    epilogue, name = node.args[3:5]
    return tiles(parse(str(epilogue))).get(str(name))


def _calls(node: fx.Node, name: str) -> bool:
    """Whether it is a call of an operator of ours; modules of operators import this one."""
    return str(node.target) == f"fusepass.{name}.default"


def _may_lead(node: object) -> bool:
    """Whether a node's kernel can let the next launch begin."""
    if not isinstance(node, fx.Node):
        return False
    if _calls(node, "normed_gemms"):
        return True
    tile = _tile(node)
    if tile is None:
        return False
    return tile.plain if tile.cuda is None else not isinstance(tile.cuda, Shape)


def _origin(value: object) -> object:
    """What a tensor is a view or a part of."""
    while isinstance(value, fx.Node) and (value.target is operator.getitem or _is_view(value)):
        value = value.args[0]
    return value


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """Products of a node's results."""
    for user in node.users:
        if user.target is operator.getitem or _is_view(user):
            yield from _readers(user)
        elif _calls(user, "gemm_region") and user.args[0] is node:
            yield user


def _only_read(value: object) -> bool:
    """Whether a tensor is an input or a constant of the graph that nothing in it writes."""
    value = _origin(value)
    if not isinstance(value, fx.Node) or value.op not in ("placeholder", "get_attr"):
        return False
    views = [value]
    while views:
        for user in views.pop().users:
            if user.op == "output":
                continue
            schema = getattr(user.target, "_schema", None)
            if schema is None or schema.is_mutable:
                return False
            if _is_view(user):
                views.append(user)
    return True


def _is_view(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.is_mutable or not schema.returns:
        return False
    return schema.returns[0].alias_info is not None
