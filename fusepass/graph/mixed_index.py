"""``y[0, mask]`` as ``y[0][mask]``: integers and slices of an index first, its mask afterwards.

That is what torch does with such an index. What is left has only the mask and whole dimensions,
which is the form in which masked stores and updates are recognised.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import fx

from fusepass.graph.canonical import op_name, tensor_value
from fusepass.graph.masked_store import add_call, is_mask, is_whole

_INDEXING = ("getitem", "__getitem__", "setitem", "__setitem__")


def split_mixed_indices(nodes: list[fx.Node], fake_mode: Any) -> None:
    """Split the mixed indices among ``nodes`` (consecutive in their graph), list included."""
    for node in list(nodes):
        found = split_index(node) if op_name(node) in _INDEXING else None
        if found is None:
            continue
        made: list[fx.Node] = []
        with node.graph.inserting_before(node):
            view = add_call(made, node, fake_mode, operator.getitem, (node.args[0], found[0]))
        node.args = (view, found[1], *node.args[2:])
        at = nodes.index(node)
        nodes[at:at] = made


def split_index(node: fx.Node) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """The index without its mask, and the mask's index into what that gives; None if not mixed."""
    index = node.args[1]
    if tensor_value(node.args[0]) is None or not isinstance(index, (tuple, list)):
        return None
    if sum(map(is_mask, index)) != 1 or not all(is_mask(p) or _is_basic(p) for p in index):
        return None
    if all(is_mask(part) or part is Ellipsis or is_whole(part) for part in index):
        return None
    basic: list[Any] = []
    rest: list[Any] = []
    for part in index:
        if is_mask(part):
            basic += [slice(None)] * part.meta["example_value"].dim()  # type: ignore[union-attr]
            rest.append(part)
        else:
            basic.append(part)
            rest += [] if isinstance(part, int) else [part if part is Ellipsis else slice(None)]
    return tuple(basic), tuple(rest)


def _is_basic(part: Any) -> bool:
    if isinstance(part, slice):
        return all(
            end is None or isinstance(end, int) for end in (part.start, part.stop, part.step)
        )
    return part is Ellipsis or (isinstance(part, int) and not isinstance(part, bool))
