"""``x[mask] = f(x[mask])`` as ``x.copy_(where(mask, f(x), x))``: an update of no unknown size.

What a mask selects has a size that only the data know, so no selection could be made of an arm that
contains it. Computed element by element it can be computed for all elements as well, and stored
where the mask holds. The result is the same to the last bit where each element of ``f`` is an exact
function of elements of its operands, correctly rounded: then it does not matter where in a vector
an element lies.

Gradients: elements outside the mask get none, so that NaN cannot come from what eager does not
compute. ``where(mask, x, x.detach())`` is ``x`` and passes gradients on inside the mask only.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from fusepass import torch_private
from fusepass.graph.canonical import IN_PLACE_OPERATORS, op_name, tensor_value
from fusepass.graph.effects import is_state_change, written_nodes
from fusepass.graph.history import History
from fusepass.graph.masked_store import add_call, mask_of
from fusepass.graph.memory import memories, memory_of
from fusepass.graph.same_value import same_value

# Correctly rounded, or a choice: exp, say, rounds otherwise at the end of a vector on some CPUs.
_EXACT = frozenset(
    """
    __radd__ __rmul__ __rsub__ __rtruediv__ abs add bfloat16 bitwise_and bitwise_not bitwise_or
    bitwise_xor bool ceil clamp clamp_max clamp_min clone copysign div double eq float floor ge gt
    half int isfinite isinf isnan le logical_and logical_not logical_or logical_xor long lt maximum
    minimum mul nan_to_num ne neg reciprocal relu round rsub sgn sign sqrt square sub to trunc where
    """.split()
)
_KEYWORDS = frozenset("dtype input max min nan neginf other posinf".split())


@dataclass(frozen=True)
class _Whole:
    """A selected tensor computed for all elements.

    Attributes:
        node: the computation.
        mask: what selects from it.
        moment: when it was selected.
        place: the dimensions in front of the mask and behind it.
    """

    node: fx.Node
    mask: fx.Node
    moment: int
    place: tuple[int, int]


@dataclass
class _Update:
    """The updates of one arm, lowered in program order."""

    nodes: list[fx.Node]
    fake_mode: Any
    history: History
    whole: dict[fx.Node, _Whole] = field(default_factory=dict)
    made: dict[fx.Node, list[fx.Node]] = field(default_factory=dict)
    stores: list[fx.Node] = field(default_factory=list)


def lower_masked_updates(nodes: list[fx.Node], fake_mode: Any) -> frozenset[fx.Node]:
    """Replace masked updates among ``nodes`` (consecutive in their graph), list included.

    Returns:
        The nodes that were erased: selections that fed nothing but stores.
    """
    if any(map(is_state_change, nodes)) or not any(map(_is_selected, nodes)):
        return frozenset()
    update = _Update(nodes, fake_mode, History(nodes[0].graph, nodes[-1]))
    with torch_private.quiet_fakes():
        for node in nodes:
            try:
                done = _lower(update, node)
            except (RuntimeError, TypeError, ValueError):  # another shape than where it was traced
                _take_back(update, node)
                done = False
            if not done:
                _forget_written(update, node)
    return _finish(update)


def _lower(update: _Update, node: fx.Node) -> bool:
    if _is_selected(node):
        whole = _gathered(update, node) or _computed(update, node)
        if whole is not None:
            update.whole[node] = whole
        return whole is not None
    if op_name(node) in ("setitem", "__setitem__"):
        _store(update, node)
    return False


def _forget_written(update: _Update, node: fx.Node) -> None:
    """What a call writes that is not computed for all elements is not known any more."""
    keys = set(memories(written_nodes(node)))
    for held in [n for n in update.whole if memory_of(n) in keys]:
        del update.whole[held]


def _is_selected(node: fx.Node) -> bool:
    value = tensor_value(node)
    return value is not None and torch_private.has_unbacked_size(value)


def _gathered(update: _Update, node: fx.Node) -> _Whole | None:
    """``x[mask]``: a copy of x, as x may be written before it is used."""
    if op_name(node) not in ("getitem", "__getitem__"):
        return None
    source, index = node.args
    value = tensor_value(source)
    found = mask_of(value, index) if value is not None else None
    if value is None or found is None or torch_private.has_unbacked_size(value):
        return None
    mask, shape, after = found
    dims = _dims(mask)
    if dims == 0 or value.dtype.is_complex:
        return None
    if not (value.requires_grad and torch.is_grad_enabled()):
        copy = _add(update, node, "clone", (source,))
    else:
        held = _add(update, node, "detach", (source,))
        chosen = _broadcast(update, node, mask, shape, trained=True)
        copy = _add(update, node, torch.where, (chosen, source, held))
    moment = update.history.moments[node]
    return _Whole(copy, mask, moment, (value.dim() - dims - after, after))


def _computed(update: _Update, node: fx.Node) -> _Whole | None:
    """An exact function, element by element, of what was selected by one mask."""
    name = str(op_name(node))
    in_place = name.endswith("_") and not name.endswith("__")
    parts = [update.whole[n] for n in node.all_input_nodes if n in update.whole]
    if not parts or not _is_exact(name.removesuffix("_") if in_place else name, node):
        return None
    first = parts[0]
    leaves = torch_private.tree_flatten((node.args, node.kwargs))[0]
    if set(node.kwargs) - _KEYWORDS or not all(_fits(update, arg, first) for arg in leaves):
        return None
    if in_place and node.args[0] not in update.whole:
        return None
    args = fx.map_arg(node.args, lambda n: update.whole[n].node if n in update.whole else n)
    kwargs = fx.map_arg(node.kwargs, lambda n: update.whole[n].node if n in update.whole else n)
    made = _add(update, node, _out_of_place(node) if in_place else node.target, args, kwargs)
    value, traced = made.meta["example_value"], tensor_value(node)
    operands = [tensor_value(operand) for operand in node.all_input_nodes]
    if traced is None or value.dim() != _dims(first.mask) + sum(first.place):
        return None
    if in_place and value.dtype != traced.dtype:  # what is written in place keeps its dtype
        made = _add(update, node, "to", (made, traced.dtype))
        value = made.meta["example_value"]
    if (value.dtype, value.device) != (traced.dtype, traced.device):
        return None
    if (
        not _is_inexact(traced)
        and traced.dtype is not torch.bool
        and any(map(_is_inexact, operands))
    ):
        return None  # a number too large for an integer becomes any
    whole = replace(first, node=made)
    if in_place:
        same = [n for n in update.whole if memory_of(n) == memory_of(node)]
        update.whole.update(dict.fromkeys(same, whole))
    return whole


def _is_inexact(value: torch.Tensor | None) -> bool:
    return value is not None and value.dtype.is_floating_point


def _is_exact(name: str, node: fx.Node) -> bool:
    return name in _EXACT or (name == "pow" and node.args[1:] == (2,) and not node.kwargs)


def _fits(update: _Update, arg: Any, first: _Whole) -> bool:
    """Whether an operand is the same for all elements, or selected like the others."""
    if not isinstance(arg, fx.Node):
        return arg is None or isinstance(arg, (bool, int, float, torch.dtype))
    if arg in update.whole:
        whole = update.whole[arg]
        return whole.place == first.place and _same_mask(update, whole, first.mask, first.moment)
    value = tensor_value(arg)
    if value is None:
        return not torch_private.unknown_sizes(arg.meta.get("example_value"))
    if value.requires_grad and torch.is_grad_enabled():
        return False  # its gradient is a sum over what was selected, in another order
    return value.dim() <= first.place[1] and not torch_private.has_unbacked_size(value)


def _out_of_place(node: fx.Node) -> Any:
    if node.target in IN_PLACE_OPERATORS:
        return getattr(operator, str(node.target.__name__)[1:])  # type: ignore[union-attr]
    if node.op == "call_method":
        return str(node.target)[:-1]
    return getattr(torch, str(node.target.__name__)[:-1])  # type: ignore[union-attr]


def _store(update: _Update, node: fx.Node) -> None:
    target, index, source = node.args
    value = tensor_value(target)
    whole = update.whole.get(source)  # type: ignore[arg-type]
    found = mask_of(value, index) if value is not None and whole is not None else None
    if value is None or whole is None or found is None:
        return
    mask, shape, after = found
    what = whole.node.meta["example_value"]
    alike = (what.dtype, what.device) == (value.dtype, value.device)
    place = (value.dim() - _dims(mask) - after, after)
    moment = update.history.moments[node]
    if not alike or place != whole.place or not _same_mask(update, whole, mask, moment):
        return
    trained = torch.is_grad_enabled() and (value.requires_grad or what.requires_grad)
    chosen = _broadcast(update, node, mask, shape, trained=trained)
    chosen = _add(update, node, torch.where, (chosen, whole.node, target))
    result = chosen.meta["example_value"]
    if result.dim() != value.dim() or not all(
        torch_private.known_equal(a, b) for a, b in zip(result.shape, value.shape, strict=True)
    ):
        return
    _add(update, node, "copy_", (target, chosen))
    update.stores.append(node)


def _broadcast(
    update: _Update, node: fx.Node, mask: fx.Node, shape: list[Any], *, trained: bool
) -> fx.Node:
    """The mask in front of a choice by it; the backward of that reads it again."""
    held = _add(update, node, "clone", (mask,)) if trained else mask
    return held if len(shape) == _dims(mask) else _add(update, node, "reshape", (held, shape))


def _same_mask(update: _Update, whole: _Whole, mask: fx.Node, moment: int) -> bool:
    """Whether what selected held at that time what a mask holds at a moment."""
    return same_value(whole.mask, mask, update.history, (whole.moment, moment))


def _dims(mask: fx.Node) -> int:
    return mask.meta["example_value"].dim()  # type: ignore[no-any-return]


def _add(update: _Update, before: fx.Node, target: Any, args: Any, kwargs: Any = None) -> fx.Node:
    with before.graph.inserting_before(before):
        made = update.made.setdefault(before, [])
        return add_call(made, before, update.fake_mode, target, args, kwargs)


def _take_back(update: _Update, node: fx.Node) -> None:
    for made in reversed(update.made.pop(node, [])):
        made.graph.erase_node(made)


def _finish(update: _Update) -> frozenset[fx.Node]:
    """Erase what the stores were made of, and what was made for no store."""
    fed = set(update.stores)
    selected: set[int] = set()
    erased: set[fx.Node] = set()
    for node in reversed(update.nodes):
        if not selected.isdisjoint(memories(written_nodes(node))):
            fed.add(node)  # in place, its result not looked at
        if node in fed:
            fed.update(node.all_input_nodes)
            selected.update(memories(n for n in node.all_input_nodes if n in update.whole))
        replaced = node in update.stores or (node in fed and node in update.whole)
        if replaced and not node.users:
            node.graph.erase_node(node)
            erased.add(node)
    update.nodes[:] = [
        n for node in update.nodes for n in (*update.made.get(node, []), node) if n not in erased
    ]
    made = {n for nodes in update.made.values() for n in nodes}
    for node in reversed(update.nodes):
        if node in made and not node.users and not written_nodes(node):
            node.graph.erase_node(node)
            made.discard(node)
            erased.add(node)
    update.nodes[:] = [n for n in update.nodes if n not in erased]
    return frozenset(erased)
