"""Remove data-dependent sizes from a graph: ``x[mask]`` is computed for all elements.

In program order, each selection and each call on one is either computed for all elements
(lowering_state.py, lower_calls.py) or replaced by its equivalent: a reduction (lower_reductions.py,
lower_losses.py) or a store (lower_stores.py). Nodes that only replaced calls used are erased. Where
a call can be neither, its selections stay as they are.

This is done where it costs less than selecting and waiting for the host. The cost model takes half
of the elements to be selected: the fraction is not known. Selecting reads the mask twice, writes
and reads the positions, and copies the elements; the calls that follow then take half as long.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from fusepass.capture.masks.count_lowering import nonzero_source
from fusepass.capture.masks.lower_calls import lower_call
from fusepass.capture.masks.lower_losses import loss
from fusepass.capture.masks.lower_reductions import NEVER_EMPTY, extremum, lower_reduction
from fusepass.capture.masks.lower_stores import lower_masked_store
from fusepass.capture.masks.lowering_state import (
    FullTensor,
    KeptSelection,
    MaskLowering,
    Selection,
    lower_gather,
    same_selection,
)
from fusepass.capture.masks.size_origins import SizeOrigins, counted, is_sized_by_data, size_check
from fusepass.graph.cost import roofline
from fusepass.graph.dataflow.effects import is_random, written_nodes
from fusepass.graph.dataflow.memory import elements, memories, memory_of, stored_bytes
from fusepass.graph.dataflow.node_recorder import replay_modes
from fusepass.graph.dataflow.write_history import WriteHistory
from fusepass.graph.ops.op_names import display_name, op_name, tensor_value
from fusepass.graph.safety.totality import TOTAL, depends_on_data, partial_reason
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.scalars.unbacked_sizes import sizes_bound
from fusepass.torch_private.fx.graphs import known_equal
from fusepass.torch_private.fx.tracing import quiet_fakes
from fusepass.tune.device.peaks import peaks_of

_FAULTS = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)

Why = tuple[Reason, str]


@dataclass
class LoweredMasks:
    """What came of the selections among some nodes.

    Attributes:
        lowered: selections that are no more.
        kept: selections that stay, each with the reason.
        erased: nodes of the program that are no more.
    """

    lowered: list[fx.Node] = field(default_factory=list)
    kept: dict[fx.Node, Why] = field(default_factory=dict)
    erased: frozenset[fx.Node] = frozenset()


def lower_selections(nodes: list[fx.Node], fake_mode: Any, *, exact: bool = False) -> LoweredMasks:
    """Compute what masks select among ``nodes`` for all elements, where that can be done.

    Args:
        nodes: consecutive in their graph; the list is brought up to date.
        fake_mode: the mode the fake values belong to.
        exact: whether they are the arm of a branch, where stores must leave the bits of eager,
            and what nothing uses may be a result; otherwise they are a complete graph.
    """
    if not any(sizes_bound(node.meta) or is_sized_by_data(node) for node in nodes):
        return LoweredMasks()
    low = MaskLowering(fake_mode, WriteHistory(nodes[0].graph, nodes[-1]), exact)
    why = _lower_each(low, nodes)
    origins = SizeOrigins(nodes)
    lost = _lost(low, nodes, origins, why)
    _spread(low, nodes, origins, lost)
    result = LoweredMasks(kept={root: lost[root] for root in origins.roots if root in lost})
    result.lowered = [root for root in origins.roots if root not in lost]
    for node in reversed(nodes):
        if any(root in lost for root in origins.of(node)):
            low.take_back(node)
            low.replaced.pop(node, None)
    result.erased = _commit(low, nodes, origins, lost)
    return result


def _lower_each(low: MaskLowering, nodes: list[fx.Node]) -> dict[fx.Node, Why]:
    """Make what can be made, in the order of the program; why the rest cannot."""
    why: dict[fx.Node, Why] = {}
    with quiet_fakes(), replay_modes() as follow:
        for node in nodes:
            follow(node)
            try:
                done = _lower(low, node)
            except KeptSelection as kept:
                why[node] = kept.code, kept.text
                done = False
            except _FAULTS:  # another shape than where it was traced
                done = False
            if not done:
                low.take_back(node)
                _forget_written(low, node)
    return why


def _lower(low: MaskLowering, node: fx.Node) -> bool:
    if not node.op.startswith("call_"):
        return False
    places = nonzero_source(node)
    if places is not None:  # of which only the size may be used, and is replaced
        low.seen[node] = Selection(places, low.history.moments[node], places)
        return True
    if lower_masked_store(low, node):
        low.replaced[node] = None
        return True
    found: fx.Node | FullTensor | None = (
        lower_reduction(low, node) or extremum(low, node) or loss(low, node)
    )
    if found is None:
        found = lower_gather(low, node) or lower_call(low, node)
    if isinstance(found, fx.Node):
        _check_alike(node, found)
        low.replaced[node] = found
    elif found is not None:
        low.whole[node] = found
        low.seen[node] = found.selection
    return found is not None or node in low.parts


def _check_alike(node: fx.Node, made: fx.Node) -> None:
    """Hold what replaces a call against it.

    Raises:
        KeptSelection: it is another kind of tensor.
    """
    a, b = tensor_value(node), tensor_value(made)
    if a is None or b is None or a.dim() != b.dim():
        raise KeptSelection(
            Reason.SIZE, f"{op_name(node)} of what a mask selected has no form of its own"
        )
    sizes = zip((*a.shape, *a.stride()), (*b.shape, *b.stride()), strict=True)
    kinds = [(v.dtype, v.device, v.requires_grad) for v in (a, b)]
    if kinds[0] != kinds[1] or not all(known_equal(x, y) for x, y in sizes):
        raise KeptSelection(
            Reason.SIZE, f"{op_name(node)} of what a mask selected is laid out otherwise"
        )


def _forget_written(low: MaskLowering, node: fx.Node) -> None:
    """What a call writes that is not computed for all elements is not known any more."""
    keys = set(memories(written_nodes(node)))
    for held in [n for n in low.whole if memory_of(n) in keys]:
        del low.whole[held]


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
    found = estimates(made, {root: low.seen[root] for root in group if root in low.seen})
    if found["whole"] <= found["selected"]:
        return None
    text = (
        f"for all elements it takes about {found['whole']} µs, selected and for half of them "
        f"{found['selected']} µs"
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
    return same and same_selection(low, low.seen[source], low.seen[other])  # type: ignore[index]


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


def estimates(made: Sequence[fx.Node], roots: dict[fx.Node, Selection]) -> dict[str, float]:
    """What either way would take, in µs of the device.

    Args:
        made: the calls that compute for all elements, in the order of their graph.
        roots: the selections of the program, and what selects.
    """
    whole = roofline.microseconds(made)
    selecting = sum(_selection_cost(root, selection) for root, selection in roots.items())
    return {"whole": round(whole, 2), "selected": round(selecting + whole / 2, 2)}


def _selection_cost(root: fx.Node, selection: Selection) -> float:
    mask = tensor_value(selection.mask)
    if mask is None:
        return 0.0
    sources = [n for n in root.all_input_nodes if n is not selection.mask]
    values = [value for value in map(tensor_value, sources) if value is not None]
    copied = sum(map(stored_bytes, values))
    places = elements(mask) * mask.dim() * _PLACE
    moved = 2 * stored_bytes(mask) + places + copied  # half of the places and elements, twice
    return roofline.host_round_trip(mask.device) + 1e6 * moved / peaks_of(mask.device).bandwidth
