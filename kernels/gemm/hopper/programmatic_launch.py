"""Which launches of a graph may begin before the kernel in front of them ends.

A product of few rows takes the time of reading its weights. Between one kernel's end and the first
loads of the next nothing is read, one to two microseconds; a launch that overlaps (CUDA C++
Programming Guide, "Programmatic Dependent Launch") asks for its weights meanwhile, and waits for
the rest. It may do so where

- no node of the graph writes its weights, which are inputs or constants of the graph: only what was
  launched in this call may still be running, since the first launch of a call waits for all before;
- x is the result of a kernel of ours in the same graph, which is therefore in front, and lets it
  begin. Any kernel that is launched as usual waits for the end of all in front;
- no kernel of others in the graph may be launched otherwise: neither of Inductor, which does not
  wait where it sees no need (``triton.enable_pdl``), nor of the user's in Triton.

Asked for the node that Inductor compiles at the moment.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import fx

from fusepass.fusion.kernel_ir.epilogue import parse
from fusepass.graph.dataflow.readers import readers
from fusepass.kernels.gemm.hopper.launch import Cut
from fusepass.kernels.gemm.hopper.tile_source import TileKernel
from fusepass.kernels.gemm.tiles import Tile, ring_of, tiles
from fusepass.torch_private.cuda import nvrtc
from fusepass.torch_private.inductor.lowering import lowered_node, others_overlap


def with_early_launch(cut: Cut, node: fx.Node | None = None) -> Cut:
    """A cut, told whether its launch begins early and whether it lets the next one do so.

    Args:
        cut: of the node's kernel.
        node: else the one that is compiled.
    """
    node = node or lowered_node()
    if isinstance(cut, TileKernel) or node is None:
        return cut
    return replace(cut, early=begins_early(node), leads=lets_next_begin_early(node))


def lets_next_begin_early(node: fx.Node | None = None) -> bool:
    """Whether what reads a node's results, or those of the one that is compiled, begins early."""
    node = node or lowered_node()
    return node is not None and any(map(begins_early, _readers(node)))


def begins_early(node: fx.Node) -> bool:
    """Whether a node is a product whose launch may begin before the kernel in front of it ends.

    One behind a norm could, too, but gains nothing: on an H100 steps of decoding took 0 to 1.3 %
    longer then, with five models.
    """
    tile = _tile(node) if _calls(node, "gemm_region") else None
    if tile is None or tile.cuda is None or isinstance(tile.cuda, TileKernel):
        return False
    x, weights, *_ = node.args
    assert isinstance(weights, (list, tuple))
    return may_begin_early(x, weights)


def may_begin_early(x: object, weights: Sequence[object]) -> bool:
    """Whether a launch of x times some weights might begin early, if its kernel can.

    Args:
        x: a node of the graph.
        weights: likewise, or parts of others.
    """
    if not _may_lead(_origin(x)) or not all(map(_only_read, weights)):
        return False
    if _has_kernels_of_users(x) or others_overlap():
        return False
    return nvrtc.begins_early()


def saved_microseconds(tile: Tile, size: int) -> float:
    """Microseconds that a kernel takes less where its launch may begin early.

    At most half the time of reading the weights, and 2: alone such a kernel took up to 1.4 longer
    than plain loads (4096 to 14336, on an H100), in an MLP 1.2 to 1.3 less. On an H200 a ring took
    0.2 longer than plain loads alone and up to 0.9 less in an MLP (docs/decisions/overlap.md).

    Args:
        tile: of the kernel.
        size: of the weights, in bytes.
    """
    if tile.cuda is None or isinstance(tile.cuda, TileKernel):
        return 0.0
    return min(size / _READ / 2, 2.0)


_READ = 3e6  # bytes in a microsecond


def _has_kernels_of_users(node: object) -> bool:
    """Whether there are kernels in Triton of the user's in a node's graph."""
    nodes = node.graph.nodes if isinstance(node, fx.Node) else ()
    return any("triton_kernel_wrapper" in str(one.target) for one in nodes)


def _tile(node: fx.Node) -> Tile | None:
    """Tile of a product's kernel, or of one behind a norm in CUDA C++; None for other nodes."""
    if _calls(node, "gemm_region"):
        return tiles(parse(str(node.args[3]))).get(str(node.args[4]))
    if not _calls(node, "normed_gemms"):
        return None
    _, first, *_ = str(node.args[3]).split(" ")  # the norm, and epilogues
    found = ring_of(parse(first))
    return found if found is not None and found.name == node.args[4] else None


def _calls(node: fx.Node, name: str) -> bool:
    """Whether it is a call of an operator of ours; modules of operators import this one."""
    return str(node.target) == f"fusepass.{name}.default"


def _may_lead(node: object) -> bool:
    """Whether a node's kernel can let the next launch begin."""
    if not isinstance(node, fx.Node):
        return False
    tile = _tile(node)
    if tile is None:
        # in Triton a norm and one epilogue of all products
        return _calls(node, "normed_gemms") and str(node.args[3]).count(" ") == 1
    return tile.plain if tile.cuda is None else not isinstance(tile.cuda, TileKernel)


def _origin(value: object) -> object:
    """What a tensor is a view or a part of."""
    while isinstance(value, fx.Node) and _is_named(value):
        value = value.args[0]
    return value


def _is_named(node: fx.Node) -> bool:
    """Whether a node is a view or a part of a tensor."""
    return node.target is operator.getitem or _is_view(node)


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """Products of a node's results."""
    for user, read in readers(node, _is_named):
        if _calls(user, "gemm_region") and user.args[0] is read:
            yield user


def _only_read(value: object) -> bool:
    """Whether a tensor is memory of an input or a constant of the graph that nothing in it writes.

    Views that Inductor may have to copy, to reshape them, are none.
    """
    while isinstance(value, fx.Node) and _is_part(value):
        value = value.args[0]
    if not isinstance(value, fx.Node) or value.op not in ("placeholder", "get_attr"):
        return False
    views = [value]
    while views:
        for user in views.pop().users:
            if user.op == "output":
                continue
            if user.target is operator.getitem or _is_view(user):
                views.append(user)
                continue
            schema = getattr(user.target, "_schema", None)
            if schema is None or schema.is_mutable:
                return False
    return True


_PARTS = frozenset(
    """permute t transpose slice select split split_with_sizes unbind unsqueeze squeeze alias
    detach""".split()
)


def _is_part(node: fx.Node) -> bool:
    """Whether a node is a view that is one of its input's memory whatever its strides are."""
    packet = getattr(node.target, "overloadpacket", None)
    return node.target is operator.getitem or getattr(packet, "__name__", "") in _PARTS


def _is_view(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.is_mutable or not schema.returns:
        return False
    return schema.returns[0].alias_info is not None
