"""Products of one operand in an ATen graph, as one launch could compute them.

They are siblings: ``x @ w0``, ``x @ w1``, … Computing all of them where the first one stood needs
their weights and biases there. These are inputs of the graph, or views and casts of such, which can
be made earlier.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from torch import Tensor, fx

from fusepass.fusion.aten_to_epilogue import NoRegion
from fusepass.fusion.extern_calls import any_feeds_generated_code
from fusepass.fusion.gemm.grow import region_at
from fusepass.fusion.gemm.region import GemmRegion, is_gemm, operands_of
from fusepass.graph.dataflow.reached import reached
from fusepass.graph.ops.op_names import op_name
from fusepass.torch_private.fx.graphs import known_equal, size_hint

_MADE_EARLIER = frozenset(
    """view reshape _unsafe_view permute transpose t squeeze unsqueeze expand slice select alias
    detach split split_with_sizes unbind getitem convert_element_type""".split()
)
_COPIES = frozenset({"convert_element_type"})
_FARTHEST = 8  # calls that are made earlier for one product


@dataclass(frozen=True)
class SiblingGemms:
    """Products of one x that can all be computed where the first one stands.

    Attributes:
        regions: each a product with its bias, in the order of the graph.
        earlier: what they need that stands behind the first product, in the order of the graph.
    """

    regions: tuple[GemmRegion, ...]
    earlier: tuple[fx.Node, ...]

    @property
    def x(self) -> Tensor:
        """The fake operand of all."""
        value: Tensor = self.regions[0].x.meta["val"]
        return value

    @property
    def weights(self) -> list[Tensor]:
        """The fake weights."""
        return [one.weights[0].value for one in self.regions]


def siblings_of(
    first: fx.Node, most: int, most_bytes: int, takes: Callable[[GemmRegion], bool]
) -> SiblingGemms | None:
    """The products that could be computed together with one that stands in front of them.

    At most ``most_bytes`` of results and cast weights are made earlier than they were.

    Returns:
        At least two products; None where there are no others.
    """
    same = _equal_views(operands_of(first)[1])
    behind = {node for one in same for node in one.users if first < node}
    regions: list[GemmRegion] = []
    earlier: set[fx.Node] = set()
    held = 0
    for node in (first, *sorted(node for node in behind if _is_product_of(node, same, first))):
        region = _unfused_gemm(node)
        read = () if region is None else (*region.weights, *region.operands)
        needed = _nodes_after(first, (part.node for part in read))
        if region is None or needed is None or not takes(region):
            if node is first:
                return None
            continue
        made = {one for one in needed - earlier if op_name(one) in _COPIES}
        more = sum(map(_bytes, {node} | made if regions else made))
        if held + more > most_bytes or (regions and not _have_same_strides(region, regions[0])):
            continue
        regions.append(region)
        earlier |= needed
        held += more
        if len(regions) == most:
            break
    return SiblingGemms(tuple(regions), tuple(sorted(earlier))) if len(regions) > 1 else None


def _equal_views(x: fx.Node) -> list[fx.Node]:
    """The nodes that are x by the same views and casts of the same tensor: each layer has its own.

    Autocast casts one tensor for each layer, and each layer makes a matrix of it.
    """
    steps: list[fx.Node] = []
    source = x
    while op_name(source) in _MADE_EARLIER and source.args:
        inner = source.args[0]
        if not isinstance(inner, fx.Node):
            break
        steps.append(source)
        source = inner
    found = [source]
    for step in reversed(steps):
        found = [user for one in found for user in one.users if _is_step(user, one, step)]
    return found


def _is_step(node: fx.Node, of: fx.Node, step: fx.Node) -> bool:
    """Whether a call does with one node what another call does with another node."""
    given = node.target, node.args[1:], node.kwargs
    return given == (step.target, step.args[1:], step.kwargs) and node.args[:1] == (of,)


def _is_product_of(node: fx.Node, same: Collection[fx.Node], first: fx.Node) -> bool:
    """Whether a node multiplies one of some nodes by a matrix, into the same dtype."""
    if not is_gemm(node) or operands_of(node)[1] not in same:
        return False
    value: Tensor = node.meta["val"]
    return value.dim() == 2 and value.dtype is first.meta["val"].dtype


def _unfused_gemm(node: fx.Node) -> GemmRegion | None:
    """A product with its bias where nothing that follows is better computed with it; else None."""
    try:
        longer = region_at(node, pairs=False)
    except NoRegion:
        pass
    else:
        if not any_feeds_generated_code(longer.outputs, longer.nodes):
            return None
    try:
        region = region_at(node, pairs=False, alone=True)
    except NoRegion:
        return None
    whole = all(part.width is None for part in (*region.weights, *region.operands))
    as_they_lie = not any(shape is not None for shape in region.shapes)
    nothing_else = region.nodes == (node,) and not region.pulled
    return region if whole and as_they_lie and nothing_else else None


def _have_same_strides(one: GemmRegion, other: GemmRegion) -> bool:
    """Whether their weights have the same strides, with which one kernel reads all."""
    both = (region.weights[0].value.stride() for region in (one, other))
    return all(map(known_equal, *both))


def _nodes_after(first: fx.Node, wanted: Iterable[fx.Node]) -> set[fx.Node] | None:
    """What of some nodes, and of what they are made of, stands behind ``first``.

    None if some of it cannot be made earlier.
    """

    def before(node: fx.Node) -> list[fx.Node]:
        return [one for one in node.all_input_nodes if not one < first]

    found: set[fx.Node] = set()
    for node in reached((one for one in wanted if not one < first), before):
        held = node.op == "get_attr"
        if not held and (op_name(node) not in _MADE_EARLIER or len(found) == _FARTHEST):
            return None
        found.add(node)
    return found


def _bytes(node: fx.Node) -> int:
    value: Tensor = node.meta["val"]
    sizes = (size_hint(size) or 0 for size in value.shape)
    return math.prod(sizes) * value.dtype.itemsize
