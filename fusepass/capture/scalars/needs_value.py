"""Give a number back if a Python call needs its value while the frame is traced.

Whatever left the number unknown is given back: the branch between whose arms it differs, the mask
that counts it, or the call that reads it. The frame starts again and breaks there, as Dynamo does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import torch
from torch import fx

from fusepass.capture.frame_state import Frame
from fusepass.capture.masks.selection_count import selection_of
from fusepass.capture.restarts import restart_without
from fusepass.capture.scalars.arm_scalars import NUMBER, is_choice
from fusepass.graph.dataflow.reached import reached
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.scalars.unbacked_sizes import linear_size, unknown_sizes
from fusepass.torch_private.dynamo.stack import break_graph, node_of, number_node


def is_unknown(frame: Frame, value: Any) -> bool:
    """Whether a tracked value is a number that capture left unknown, or may be one."""
    node = number_node(value)
    if node is not None:
        return bool(unknown_sizes(node.meta.get("example_value")))
    return differs(frame, value)


def left_unknown(frame: Frame, value: Any) -> bool:
    """Whether a tracked value is a number made of one that capture left unknown."""
    node = number_node(value) or node_of(value)
    return node is not None and any(
        n in frame.items or NUMBER in n.meta or _counted(n) in frame.selections
        for n in _made_of(node)
    )


def differs(frame: Frame, value: Any) -> bool:
    """Whether a tracked value is a number in one arm of a branch: of another value in the other."""
    if not any(site.leaves_numbers for site in frame.sites):
        return False
    node = number_node(value) or node_of(value)
    return node is not None and any(NUMBER in n.meta for n in _made_of(node))


def kinds(value: Any) -> set[type]:
    """The Python types that a value may be of which differs between arms, arithmetic left aside."""
    node = number_node(value) or node_of(value)
    numbers = reached([] if node is None else _made_of(node), lambda one: _sides(one, inner=True))
    ends = [side for one in numbers for side in _sides(one, inner=False)]
    return {type(e.meta.get("example_value") if isinstance(e, fx.Node) else e) for e in ends}


def _sides(number: fx.Node, *, inner: bool) -> list[Any]:
    """The values of a number in the two arms: those that differ themselves, or the others."""
    sides = number.args[1:] if NUMBER in number.meta else ()
    return [s for s in sides if (isinstance(s, fx.Node) and NUMBER in s.meta) is inner]


def restart_knowing(frame: Frame, values: list[Any], what: str) -> NoReturn:
    """Start the frame again, these values known."""
    nodes = [number_node(v) or node_of(v) for v in values]
    behind = dict.fromkeys(n for node in nodes if node is not None for n in _made_of(node))
    text = f"a Python number differs between the arms, and {what}"
    sites = [node.meta[NUMBER].site for node in behind if NUMBER in node.meta]
    restart_without(frame, dict.fromkeys(sites, (Reason.PYTHON_VALUE, text)))
    counted = [frame.selections[n] for n in map(_counted, behind) if n in frame.selections]
    why = Reason.SIZE, f"{what}: how many the mask selects"
    restart_without(frame, dict.fromkeys(counted, why))
    read = [frame.items[node] for node in behind if node in frame.items]
    restart_without(frame, dict.fromkeys(read, (Reason.PYTHON_VALUE, what)))
    break_graph("Number that is not known", what)  # none of ours


def _made_of(node: fx.Node) -> list[fx.Node]:
    """A number and those it is computed from, up to what left them unknown."""

    def before(one: fx.Node) -> Iterable[fx.Node]:
        return () if NUMBER in one.meta else filter(_is_number, one.all_input_nodes)

    return list(reached(filter(_is_number, [node]), before))


def _is_number(node: fx.Node) -> bool:
    held = node.meta.get("example_value")
    return isinstance(held, (torch.SymInt, torch.SymFloat, torch.SymBool)) or is_choice(node)


def _counted(node: fx.Node) -> fx.Node | None:
    """The call that selects as many elements as a number says, if it is made of one such count."""
    size = linear_size(node.meta.get("example_value"))
    return None if size is None else selection_of(node.graph, size[0])
