"""Replace numbers read from tensors in a complete graph, or give them back to Dynamo.

While tracing, each ``tensor.item()`` is an unknown number. Once the graph is complete every use of
it becomes tensor work (capture/scalars/lowering.py), or its call is given back: the frame starts
again, and the call is the graph break that it is in Dynamo.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fusepass.capture.effects.raise_operands import only_in_messages
from fusepass.capture.frame_state import Frame, Place
from fusepass.capture.nodes.events import shows
from fusepass.capture.refusal import fault
from fusepass.capture.restarts import Captured, Why, restart_without
from fusepass.capture.scalars.lowering import KeptScalar, Number, read_in_time, replace_numbers
from fusepass.capture.scalars.scalar import READ_LATE, kind_of
from fusepass.capture.scalars.scalar_predicate import (
    comes_from_items,
    is_read_back,
    those_from_items,
)
from fusepass.graph.dataflow.reached import reached
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.report.decision import Outcome, Reason
from fusepass.torch_private.dynamo.scalars.unbacked_sizes import (
    asked_by_operation,
    asked_symbols,
    gives_unknown_sizes,
    unknown_sizes,
)
from fusepass.torch_private.fx.graphs import fake_mode_of, source_of

FROM_ITEM = "fusepass_from_item"  # meta key of a number read from a tensor, or computed from one
_ON_DEVICE = (
    Reason.ON_DEVICE,
    "the number only takes part in tensor work: it stays on the device",
    "device",
)
_AFTER = (
    Reason.AFTER_GRAPH,
    "the number is needed behind the graph only, and read there",
    "late",
)


def asked_numbers(
    translator: Any, frame: Frame, error: BaseException, others: Why | None = None
) -> dict[Place, Why]:
    """The numbers whose values are asked for while the program is traced.

    Args:
        translator: Dynamo's.
        frame: of capture.
        error: what Dynamo raised because of it, or because of something else.
        others: why it is all numbers where the error does not say which; None if it is none.
    """
    live = [n for n in frame.items if not n._erased]
    named = _asked(translator.output.graph, live, error) if live else []
    if not named:
        return {} if others is None else dict.fromkeys(frame.items.values(), others)
    places = [frame.items[node] for node in named]
    whole = not any(place.dtype and place.dtype.is_floating_point for place in places)
    text = "Python needs its value: for a list, as a key, in a text or in a test"
    code = Reason.PYTHON_VALUE
    taker = _takes_a_number(translator.output.graph, named)
    if taker is not None:
        text = f"{taker} takes a Python number there: no form of it with a tensor is known"
    elif whole and asked_by_operation(error):
        text, code = "it is used as a size, an index or a count", Reason.SIZE
    return dict.fromkeys(places, (code, text))


def reasons(frame: Frame, kept: dict[fx.Node, KeptScalar]) -> dict[Captured, Why]:
    """Give the places where numbers are read, each with the reason and the line of the use."""
    places = [(frame.items[node], why) for node, why in kept.items()]
    return {place: (why.code, why.text + _use(why, place)) for place, why in places}


def settle_items(gm: fx.GraphModule, frame: Frame) -> list[int]:
    """Replace the numbers of a complete graph by tensors; give back those that are needed.

    Returns:
        The positions of outputs that were numbers, and are tensors to be read behind the graph.
    """
    if not frame.items:
        return []
    graph = gm.graph
    fake_mode = fake_mode_of(gm)
    read_in_time(graph, fake_mode)
    for node in reversed(graph.nodes):
        if FROM_ITEM in node.meta and not node.users:
            graph.erase_node(node)
    left = set(graph.nodes)
    from_items = those_from_items(graph) - _dead_tensors(graph)
    # A range check gives nothing, and is no part of a message that nothing shows.
    from_items -= {node for node in from_items if not node.users and kind_of(node) is None}

    def is_number(node: fx.Node) -> bool:  # of what is made below nobody knew
        return node in from_items if node in left else comes_from_items(node)

    def is_message(user: fx.Node) -> bool:
        """Whether a use of a number is the message of an exception, or a line that is written."""
        return only_in_messages(user, is_number) if is_number(user) else shows(user)

    used = [n for n in frame.items if n in left and not only_in_messages(n, is_number)]
    numbers = [Number(node, node.all_input_nodes[0]) for node in used]
    late: list[int] = []
    given_out = _given_out(graph)
    try:
        kept = replace_numbers(graph, numbers, fake_mode, is_message, late)
    except Exception as error:  # noqa: BLE001  # our error costs speed, never the program
        first = frame.items[used[0]]
        kept = dict.fromkeys(used, KeptScalar(*fault(error, first.file, first.line)))
    restart_without(frame, reasons(frame, kept))
    for node in used:
        place = frame.items[node]
        decision = place.decided(Outcome.APPLIED, *(_AFTER if node in given_out else _ON_DEVICE))
        frame.round_trips[place.position] = decision
    return late


def _dead_tensors(graph: fx.Graph) -> set[fx.Node]:
    """Tensors that nothing is made of: a number in them is no number of a message for it."""
    dead: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if tensor_value(node) is not None and not shows(node) and dead.issuperset(node.users):
            dead.add(node)
    return dead


def _asked(graph: fx.Graph, live: list[fx.Node], error: BaseException) -> list[fx.Node]:
    """The numbers that an error is about, or that the call took which failed."""
    symbols = asked_symbols(error)
    computed = reached(live, lambda one: [n for n in one.users if FROM_ITEM in n.meta])
    asked = [n for n in computed if unknown_sizes(n.meta.get("example_value")) & symbols]
    last = next(iter(reversed(graph.nodes)), None)
    if last is None:
        return made_of(asked)
    fails = "example_value" not in last.meta and op_name(last) != "setitem"
    if fails or gives_unknown_sizes(error):
        asked += [n for n in last.all_input_nodes if FROM_ITEM in n.meta]
    return made_of(asked)


_SCALARS = "alpha atol beta eps p rtol value".split()  # arguments that are no size or position


def _takes_a_number(graph: fx.Graph, named: list[fx.Node]) -> str | None:
    """The operation that failed because of an argument of its own that is a number, no size."""
    last = next(iter(reversed(graph.nodes)), None)
    name = op_name(last) if last is not None else None
    if last is None or name is None or "example_value" in last.meta:
        return None
    given = [n for n in last.all_input_nodes if FROM_ITEM in n.meta]
    if not set(made_of(given)) & set(named):
        return None
    scalars = [last.kwargs[key] for key in _SCALARS if key in last.kwargs]
    scalars += last.args[3:4] if name == "pad" else []  # as F.pad calls it: the value
    floating = [isinstance(n.meta.get("example_value"), torch.SymFloat) for n in given]
    return name if all(floating) or all(n in scalars for n in given) else None


def _given_out(graph: fx.Graph) -> set[fx.Node]:
    """The numbers read from tensors of which some number that leaves the graph is made."""
    (output,) = graph.find_nodes(op="output")
    leaving = list(output.all_input_nodes)
    leaving += [source for n in leaving if READ_LATE in n.meta for source in n.all_input_nodes]
    return set(made_of([n for n in leaving if FROM_ITEM in n.meta]))


def reading(compiled: Callable[..., Any], positions: frozenset[int]) -> Callable[..., Any]:
    """A compiled graph of which some outputs are read as numbers."""

    @functools.wraps(compiled)
    def call(*args: Any) -> Any:
        outputs = compiled(*args)
        return [out.item() if i in positions else out for i, out in enumerate(outputs)]

    return call


def made_of(numbers: list[fx.Node]) -> list[fx.Node]:
    """The numbers read from tensors that others are computed from."""

    def before(node: fx.Node) -> list[fx.Node]:
        sources = () if is_read_back(node) else node.all_input_nodes
        return [n for n in sources if FROM_ITEM in n.meta]

    return list(filter(is_read_back, reached(numbers, before)))


def _use(why: KeptScalar, item: Place) -> str:
    """The line of the use, unless the number is read there."""
    if why.user is None:
        return ""
    file, line = source_of(why.user)
    if not line or (file, line) == (item.file, item.line):
        return ""
    shown = f"line {line}" if file == item.file else f"{os.path.basename(file)}:{line}"  # noqa: PTH119
    return f" ({shown})"
