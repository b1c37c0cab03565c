"""Remove data-dependent sizes from a graph: ``x[mask]`` is computed for all elements.

In program order, each selection and each call on one is either computed for all elements
(lowering_state.py, lower_calls.py) or replaced by its equivalent: a reduction or a loss
(lower_reductions.py), or a store. Nodes that only replaced calls used are erased. Where a call can
be neither, its selections stay as they are.

This is done where it costs less than selecting and waiting for the host. The cost model takes half
of the elements to be selected: the fraction is not known. Selecting reads the mask twice, writes
and reads the positions, and copies the elements; the calls that follow then take half as long.

Inside an arm, ``x[mask] += 1`` is traced with a symbol for the size, too. Where it turns out to be
an update of the elements under the mask, nothing of that size is left. Otherwise the branch is
kept.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import fx

from fusepass.capture.masks.lower_calls import lower_call
from fusepass.capture.masks.lower_reductions import NEVER_EMPTY, extremum, loss, lower_reduction
from fusepass.capture.masks.lowering_state import FullTensor, MaskLowering, Selection
from fusepass.capture.masks.masked_store import SETITEM, fake_of, mask_of
from fusepass.capture.masks.selection_count import (
    SizeOrigins,
    counted,
    is_sized_by_data,
    nonzero_source,
    size_check,
)
from fusepass.capture.refusal import Refusal
from fusepass.capture.restarts import Why
from fusepass.graph.cost import roofline
from fusepass.graph.dataflow.effects import is_random, written_nodes
from fusepass.graph.dataflow.memory import elements, memories, memory_of, stored_bytes
from fusepass.graph.dataflow.node_recorder import has_same_metadata, replay_modes
from fusepass.graph.dataflow.value_numbering import same_value
from fusepass.graph.dataflow.write_history import WriteHistory
from fusepass.graph.ops.op_names import display_name, op_name, tensor_value
from fusepass.graph.safety.totality import (
    TOTAL,
    depends_on_data,
    has_internal_overlap,
    partial_reason,
)
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.scalars import unbacked_sizes
from fusepass.torch_private.fx.graphs import known_equal, tree_flatten
from fusepass.torch_private.fx.tracing import quiet_fakes
from fusepass.tune.device.peaks import peaks_of

_FAULTS = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)


class LoweredMasks(NamedTuple):
    """What came of the selections among some nodes.

    Attributes:
        lowered: selections that are no more.
        kept: selections that stay, each with the reason.
        erased: nodes of the program that are no more.
    """

    lowered: list[fx.Node]
    kept: dict[fx.Node, Why]
    erased: frozenset[fx.Node]


def has_data_size(node: fx.Node) -> bool:
    """Whether a node introduces a size that only the data know, or has one."""
    return bool(unbacked_sizes.sizes_bound(node.meta)) or is_sized_by_data(node)


def lower_selections(nodes: list[fx.Node], fake_mode: Any, *, exact: bool = False) -> LoweredMasks:
    """Compute what masks select among ``nodes`` for all elements, where that can be done.

    The list is brought up to date. With ``exact`` the nodes are the arm of a branch, where stores
    must leave the bits of eager, and what nothing uses may be a result; else they are a complete
    graph.
    """
    if not any(map(has_data_size, nodes)):
        return LoweredMasks([], {}, frozenset())
    low = MaskLowering(fake_mode, WriteHistory(nodes[0].graph, nodes[-1]), exact)
    why = _lower_each(low, nodes)
    origins = SizeOrigins(nodes)
    lost = _lost(low, nodes, origins, why)
    _spread(low, nodes, origins, lost)
    for node in reversed(nodes):
        if any(root in lost for root in origins.of(node)):
            low.take_back(node)
            low.replaced.pop(node, None)
    lowered = [root for root in origins.roots if root not in lost]
    kept = {root: lost[root] for root in origins.roots if root in lost}
    return LoweredMasks(lowered, kept, _commit(low, nodes, origins, lost))


def _lower_each(low: MaskLowering, nodes: list[fx.Node]) -> dict[fx.Node, Why]:
    """Make what can be made, in the order of the program; why the rest cannot."""
    why: dict[fx.Node, Why] = {}
    with quiet_fakes(), replay_modes() as follow:
        for node in nodes:
            follow(node)
            try:
                done = _lower(low, node)
            except Refusal as kept:
                why[node] = kept.code, kept.text
                done = False
            except _FAULTS:  # another shape than where it was traced
                done = False
            if not done:
                low.take_back(node)
                keys = set(memories(written_nodes(node)))  # what these hold is not known any more
                low.whole = {n: held for n, held in low.whole.items() if memory_of(n) not in keys}
    return why


def _lower(low: MaskLowering, node: fx.Node) -> bool:
    if not node.op.startswith("call_"):
        return False
    places = nonzero_source(node)
    if places is not None:  # of which only the size may be used, and is replaced
        low.seen[node] = Selection(places, low.history.moments[node], places)
        return True
    if _lower_store(low, node):
        low.replaced[node] = None
        return True
    found: fx.Node | FullTensor | None = (
        lower_reduction(low, node) or extremum(low, node) or loss(low, node)
    )
    if found is None:
        found = low.lower_gather(node) or lower_call(low, node)
    if isinstance(found, fx.Node):
        _check_alike(node, found)
        low.replaced[node] = found
    elif found is not None:
        low.whole[node] = found
        low.seen[node] = found.selection
    return found is not None or node in low.parts


def _lower_store(low: MaskLowering, node: fx.Node) -> bool:
    """Lower ``x[mask] = f(x[mask])`` to ``x.copy_(where(mask, f(x), x))``; False for others."""
    if op_name(node) not in SETITEM or node.args[2] not in low.whole:
        return False
    target, index, source = node.args
    value, whole = tensor_value(target), low.whole[source]  # type: ignore[index]
    found = mask_of(value, index)
    if value is None or found is None or target in low.whole:
        raise Refusal(Reason.SIZE, "what a mask selected is stored where no such mask is")
    mask, front, after = found
    if (front, after) != (whole.front, whole.after):
        raise Refusal(Reason.SIZE, "what a mask selected is broadcast where it is stored")
    kinds = {(v.dtype, v.device) for v in (whole.value, value)}
    if len(kinds) > 1:
        raise Refusal(Reason.SIZE, "what a mask selected is stored in another dtype")
    if low.exact and not whole.exact:
        text = "what a mask selected is stored with other roundings than one by one"
        raise Refusal(Reason.INEXACT, text)
    if has_internal_overlap(target):  # type: ignore[arg-type]
        raise Refusal(Reason.PARTIAL_OP, "a write to a tensor whose elements share memory raises")
    moment = low.history.moments[node]
    before = whole.selection
    if not same_value(before.mask, mask, low.history, (before.moment, moment)):
        raise Refusal(Reason.SIZE, "what one mask selected is stored through another")
    new = whole.node
    if fake_of(mask).dim() > 1:
        new = low.add(node, "reshape_as", new, target)
    trained = value.requires_grad or whole.value.requires_grad
    if trained and torch.is_grad_enabled():
        mask = low.add(node, "clone", mask)  # backward reads it again
    for _ in range(after):
        mask = low.add(node, "unsqueeze", mask, -1)
    chosen = low.add(node, torch.where, mask, new, target)
    sizes = chosen.meta["example_value"].shape
    if len(sizes) != value.dim() or not all(map(known_equal, sizes, value.shape)):
        raise Refusal(Reason.SIZE, "what a mask selected is broadcast where it is stored")
    low.add(node, "copy_", target, chosen)
    return True


def _check_alike(node: fx.Node, made: fx.Node) -> None:
    """Refuse what replaces a call if it is another kind of tensor."""
    a, b = tensor_value(node), tensor_value(made)
    what = f"{op_name(node)} of what a mask selected"
    if a is None or b is None or a.dim() != b.dim():
        raise Refusal(Reason.SIZE, f"{what} has no form of its own")
    if not has_same_metadata(b, a):
        raise Refusal(Reason.SIZE, f"{what} is laid out otherwise")


def _lost(
    low: MaskLowering,
    nodes: list[fx.Node],
    origins: SizeOrigins,
    why: dict[fx.Node, Why],
) -> dict[fx.Node, Why]:
    """Selections that something is left of, with the reason; and those that meet them."""
    lost: dict[fx.Node, Why] = {}
    left = [node for node in nodes if origins.of(node) and node not in low.replaced]
    gone = _dead_nodes(low, left)
    for root in origins.roots:
        if not is_sized_by_data(root):  # what it met had to be of its size, and is of a known one
            lost[root] = Reason.SIZE, "what a mask selected meets a tensor of another size"
    inside = set(nodes)
    for node in left:
        ends = not node.users or not inside.issuperset(node.users)
        if node not in gone and (node not in low.seen or ends):
            for root in origins.of(node):
                lost.setdefault(root, why.get(node) or _remaining_use(node))
    return lost


def _spread(
    low: MaskLowering, nodes: list[fx.Node], origins: SizeOrigins, lost: dict[fx.Node, Why]
) -> None:
    """What meets a selection that stays has to stay, and what costs more than it saves."""
    for group in origins.groups():
        known = next((lost[root] for root in group if root in lost), None) or _too_expensive(
            low, nodes, origins, group
        )
        if known is not None:
            for root in group:
                lost.setdefault(root, known)


def _too_expensive(
    low: MaskLowering, nodes: list[fx.Node], origins: SizeOrigins, group: list[fx.Node]
) -> Why | None:
    met = set(group)
    made = [n for node in nodes if origins.of(node) & met for n in low.made.get(node, [])]
    whole = roofline.microseconds(made)
    selecting = sum(_selection_cost(root, low.seen[root]) for root in group if root in low.seen)
    each = round(whole, 2), round(selecting + whole / 2, 2)
    if each[0] <= each[1]:
        return None
    text = (
        f"for all elements it takes about {each[0]} µs, selected and for half of them {each[1]} µs"
    )
    return Reason.COST, text


def _remaining_use(node: fx.Node) -> Why:
    what = f"is used by {display_name(op_name(node))}"
    if node.op == "output" or not node.users:
        what = "leaves the graph, or the arm of a branch"
    partial = None if node.users else partial_reason(node)
    if partial is not None:  # unused, it is there to fail
        return Reason.SIZE, f"of a size that only the data know, {partial}"
    return Reason.SIZE, f"a tensor whose size only the data know {what}"


def _dead_nodes(low: MaskLowering, left: list[fx.Node]) -> set[fx.Node]:
    """Nodes that nothing needs once the replaced calls are."""
    gone: set[fx.Node] = set()
    for node in reversed(left):
        used = any(user not in gone and user not in low.replaced for user in node.users)
        # A tensor without users may be what an arm leaves; a write in place hands on its operand.
        is_result = tensor_value(node) is not None and not written_nodes(node)
        left_over = low.exact and not node.users and is_result
        if not used and not left_over and (node in low.seen or _can_go(low, node)):
            gone.add(node)
    return gone


def _can_go(low: MaskLowering, node: fx.Node) -> bool:
    """Whether a call that nobody uses does nothing: it may be there to fail."""
    check = size_check(node)
    if check is not None:
        return _holds(low, *check)
    name = op_name(node)
    known = name == "sym_size" or (name is not None and depends_on_data(name))
    if name in TOTAL:
        known = NEVER_EMPTY in node.meta or partial_reason(node) is None
    return known and not written_nodes(node) and not is_random(node)


def _holds(low: MaskLowering, compare: Any, count: Any, bound: Any) -> bool:
    """Whether a check of a size holds whatever the data are."""
    source = counted(count)
    if source is None or source not in low.seen:
        return False
    if compare is operator.ge:
        return bool(bound == 0)
    if compare is operator.le:
        most = low.seen[source].mask.meta["example_value"].numel()
        return known_equal(most <= bound, True)
    other = counted(bound)
    same = other is not None and other in low.seen
    return same and low.same_selection(low.seen[source], low.seen[other])  # type: ignore[index]


def _commit(
    low: MaskLowering, nodes: list[fx.Node], origins: SizeOrigins, lost: dict[fx.Node, Any]
) -> frozenset[fx.Node]:
    """Put the calls made in the place of those they replace; returns what was erased."""
    erased: set[fx.Node] = set()
    for node in reversed(nodes):
        if not origins.of(node) or any(root in lost for root in origins.of(node)):
            continue
        final = low.replaced.get(node)
        if final is not None:
            low.made[node].remove(final)
            node.op, node.target = final.op, final.target
            node.args, node.kwargs = final.args, final.kwargs
            node.graph.erase_node(final)
        else:
            node.graph.erase_node(node)
            erased.add(node)
    made = {n for each in low.made.values() for n in each}
    nodes[:] = [n for node in nodes for n in (*low.made.get(node, []), node) if n not in erased]
    for node in reversed(nodes):  # made for nothing, after all
        if node in made and not node.users and not written_nodes(node):
            node.graph.erase_node(node)
            erased.add(node)
    nodes[:] = [node for node in nodes if node not in erased]
    return frozenset(erased)


_PLACE = 8  # bytes of the place of one selected element along one dimension


def _selection_cost(root: fx.Node, selection: Selection) -> float:
    """What selecting takes, in µs of the device."""
    mask = tensor_value(selection.mask)
    if mask is None:
        return 0.0
    sources = [n for n in root.all_input_nodes if n is not selection.mask]
    values = [value for value in map(tensor_value, sources) if value is not None]
    copied = sum(map(stored_bytes, values))
    places = elements(mask) * mask.dim() * _PLACE
    moved = 2 * stored_bytes(mask) + places + copied  # half of the places and elements, twice
    return roofline.host_round_trip(mask.device) + 1e6 * moved / peaks_of(mask.device).bandwidth


def sizes_of(nodes: Iterable[fx.Node]) -> frozenset[Any]:
    """The unknown sizes that these nodes introduce."""
    return frozenset().union(*(unbacked_sizes.sizes_bound(node.meta) for node in nodes))


def forget_counts(nodes: list[fx.Node]) -> None:
    """Forget the counts of masks made among these nodes: what follows cannot refer to them."""
    sizes = sizes_of(nodes)
    for node in nodes if sizes else ():
        for operand in (node, *node.all_input_nodes):
            value = tensor_value(operand)
            if value is not None:
                unbacked_sizes.forget_count(value, sizes)


def remove_data_sizes(translator: Any, arms: dict[bool, list[fx.Node]]) -> frozenset[fx.Node]:
    """Lower masked updates in both arms, and refuse other uses of unknown sizes there.

    Returns:
        Nodes erased from the graph, which nothing may use any more.
    """
    sizes = sizes_of(chain(*arms.values()))
    erased: frozenset[fx.Node] = frozenset()
    for nodes in arms.values():
        erased |= lower_selections(nodes, translator.fake_mode, exact=True).erased
    for node in chain(*arms.values()) if sizes else ():
        parts = tree_flatten(node.meta.get("example_value"))[0]
        if any(unbacked_sizes.unknown_sizes(part) & sizes for part in parts):
            name = op_name(node) or "an operation"
            text = f"in an arm {name} gives a tensor whose size depends on what a tensor holds"
            raise Refusal(Reason.UNTRACEABLE, text)
    unbacked_sizes.forget_sizes(translator, sizes)
    return erased


def leave_sizes(translator: Any, nodes: list[fx.Node]) -> None:
    """Forget the unknown sizes of nodes that nothing will use any more."""
    sizes = sizes_of(nodes)
    forget_counts(nodes)
    unbacked_sizes.forget_sizes(translator, sizes, [node.meta for node in nodes])
