"""Capture selections by a boolean mask while a frame is traced, then lower them.

``x[mask]`` has a size that only the data know, for which Dynamo breaks the graph. Here it is traced
with a symbol for the size. Once the graph is complete, what was selected is computed for all
elements (capture/masks/lowering.py). A selection for which that cannot be done is given back: the
frame starts again and meets the ordinary graph break there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import fx

from fusepass.capture.bytecode.own_handlers import is_in_subclass
from fusepass.capture.frame_state import Frame, Place, frame_of
from fusepass.capture.masks import masked_store
from fusepass.capture.masks.lowering import lower_selections, sizes_of
from fusepass.capture.masks.mixed_index import select_by_masks, split_index, split_mixed_indices
from fusepass.capture.masks.selection_count import (
    SizeOrigins,
    count_on_device,
    mask_of_count,
    nonzero_source,
    selection_of,
)
from fusepass.capture.restarts import Why, is_kept, keep, restart_without
from fusepass.capture.scalars.scalar import READ_LATE
from fusepass.capture.source_position import here, users_location
from fusepass.graph.dataflow.node_recorder import replay_modes
from fusepass.graph.dataflow.value_numbering import same_value
from fusepass.graph.dataflow.write_history import WriteHistory
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.graph.safety.tensor_kinds import special_tensor_reason
from fusepass.report import log
from fusepass.report.decision import Outcome, Reason
from fusepass.torch_private.dynamo.scalars import unbacked_sizes
from fusepass.torch_private.fx.graphs import fake_mode_of, source_of
from fusepass.torch_private.versions import capture_supported

_PLACES = ("argwhere", "nonzero", "where")
_RESUMED = "torch_dynamo_resume_in_"
_PLACE = "fusepass_selects"  # meta key of a selection: its Place


def on_size(translator: Any, node: fx.Node) -> bool:
    """Whether a call may give a tensor of a size that only the data know."""
    frame = frame_of(translator.output)
    if frame is None or frame.settled or frame.in_message or not _selects(node):
        return False
    if not capture_supported() or is_in_subclass(translator):
        return False
    place = here(translator, "masked")
    if is_kept(frame, place):
        return False
    own = special_tensor_reason(node)
    if own is not None or not frame.options.rule_on("masked"):
        off = Reason.RULE_OFF, "switched off in options"
        keep(frame, place, *(off if own is None else (Reason.UNTRACEABLE, own)))
        return False
    resumed = translator.output.root_tx.f_code.co_name.startswith(_RESUMED)
    if resumed and place.position in log.log_of(frame.compiler).kept:
        return False  # met, and given back, before the graph break
    _count_once(frame, node)
    frame.selections[node] = place
    node.meta[_PLACE] = place
    return True


def _count_once(frame: Frame, node: fx.Node) -> None:
    """Have a selection be of the size of an earlier one, if their masks are equal.

    ``F.mse_loss(x[x > 0], y[x > 0])`` compares the sizes while it is traced.
    """
    mask = mask_of_count(node) or nonzero_source(node)
    if mask is None or not frame.selections:
        return
    history = WriteHistory(node.graph, node)
    now = history.moments[node]
    for earlier in frame.selections:
        other = mask_of_count(earlier) or nonzero_source(earlier)
        if other is None or other is mask or earlier not in history.moments:
            continue
        moments = history.moments[earlier], now
        if same_value(other, mask, history, moments):
            unbacked_sizes.count_as(tensor_value(mask), tensor_value(other))
            return


def _selects(node: fx.Node) -> bool:
    """Whether a call selects by one mask of a shape that fits; else its error is eager's."""
    name, parts = op_name(node), masked_store.gathered(node)
    if parts is None:
        return name in _PLACES
    fits = masked_store.mask_of(tensor_value(parts[0]), parts[1]) is not None
    return fits or (name != "masked_select" and split_index(node) is not None)


def settle_masks(gm: fx.GraphModule, frame: Frame, output_graph: Any) -> list[int]:
    """Take the sizes that only the data know out of a complete graph, or start the frame again.

    Returns:
        The positions of outputs that were such sizes, and are tensors to be read behind the graph.
    """
    frame.settled = True
    late: list[int] = []
    fake_mode = fake_mode_of(gm)
    if fake_mode is None or not frame.options.rule_on("masked"):
        return late
    nodes = list(gm.graph.nodes)
    select_by_masks(nodes, (_PLACE,))
    split_mixed_indices(nodes, fake_mode)
    _settle_selections(nodes, frame, output_graph, fake_mode, late)
    with replay_modes() as follow:
        for node in nodes:
            follow(node)
            if masked_store.is_masked_store(node):
                why = masked_store.why_kept(node, exact=False)
                _record_store(node, frame, why)
                if why is None:
                    masked_store.lower_store(node, fake_mode)
            elif masked_store.counts_masks(node):
                _record_store(node, frame, "it is no store through one mask: y[mask] = v is one")
    return late


def _settle_selections(
    nodes: list[fx.Node], frame: Frame, output_graph: Any, fake_mode: Any, late: list[int]
) -> None:
    sizes = sizes_of(nodes)
    if not sizes:
        return
    graph = nodes[0].graph
    counted = _counted(graph)
    needed = count_on_device(graph, fake_mode, late)
    nodes[:] = graph.nodes
    result = lower_selections(nodes, fake_mode)
    for root in result.kept.keys() & needed.keys():
        result.kept[root] = needed[root].code, needed[root].text
    lost = [(root.meta.get(_PLACE), why) for root, why in result.kept.items()]
    restart_without(frame, {place: why for place, why in lost if place is not None})
    for root in result.lowered:
        place = root.meta.get(_PLACE) or _place_of(root)
        text = "what the mask selects is computed for all elements: nothing waits for its size"
        if place in frame.empties.values():
            text += "; whether it selects anything is asked once, after the graph"
        code, treatment = Reason.ON_DEVICE, "device"
        if root in counted:
            text = "how many the mask selects is needed behind the graph only, and read there"
            code, treatment = Reason.AFTER_GRAPH, "late"
        frame.round_trips[place.position] = place.decided(Outcome.APPLIED, code, text, treatment)
    unbacked_sizes.forget_sizes(output_graph.root_tx, sizes - sizes_of(graph.nodes))


def _counted(graph: fx.Graph) -> frozenset[fx.Node]:
    """Selections, a size of which leaves the graph, or a number made of it."""
    nodes = list(graph.nodes)
    origins = SizeOrigins(nodes)
    leaving = [n for n in nodes[-1].all_input_nodes if tensor_value(n) is None]
    made = [n for n in nodes[-1].all_input_nodes if READ_LATE in n.meta]
    leaving += [source for n in made for source in n.all_input_nodes]
    return frozenset().union(*map(origins.of, leaving))


def _record_store(node: fx.Node, frame: Frame, why: str | None) -> None:
    """Put on record that a store through masks counts nothing, or why it stays as it is."""
    place = _place_of(node)
    text = "stored where the mask holds, element by element: nothing is counted"
    decision = place.decided(Outcome.APPLIED, Reason.ON_DEVICE, text, "device")
    if why is not None:
        decision = place.decided(Outcome.REJECTED, Reason.SIZE, why, "keep")
    frame.round_trips[place.position] = decision


def _place_of(node: fx.Node) -> Place:
    """The place of a selection that Dynamo captured by itself, as with ``fullgraph=True``."""
    file, line = source_of(node)
    return Place("masked", (None, 0), (file, line, node.name), file, line)


def asked_selections(translator: Any, frame: Frame, error: BaseException) -> dict[Place, Why]:
    """Find the selections whose counts Dynamo asked for while tracing when it raised an error."""
    symbols = unbacked_sizes.asked_symbols(error) if frame.selections else ()
    graph = translator.output.graph
    asked = {selection_of(graph, symbol) for symbol in symbols}
    file, line = users_location(translator)
    text = f"Python asks how many the mask selects ({Path(file).name}:{line})"
    if unbacked_sizes.asked_by_operation(error):
        text = "how many the mask selects is used as a size, an index or a count"
    places = [place for root, place in frame.selections.items() if root in asked]
    return dict.fromkeys(places, (Reason.SIZE, text))
