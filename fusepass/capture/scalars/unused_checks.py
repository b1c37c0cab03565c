"""Find numbers and selections that the program does not use, but whose making may raise.

``n = int(x.max())`` raises for NaN and infinity whether or not ``n`` is used, and so does
``1 / len(x[mask])``. Dynamo takes a number without a use out of a complete graph, and its exception
with it. So such a number may go only where making it cannot raise, by its operation or by what its
operands can be. That is found out before Dynamo takes numbers out.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusepass.capture.frame_state import Frame, frame_of
from fusepass.capture.masks.selection_count import range_of_count, selection_of
from fusepass.capture.nodes.events import is_message_only, shows
from fusepass.capture.refusal import fault
from fusepass.capture.restarts import Captured, Why, restart_without
from fusepass.capture.scalars import python_arithmetic
from fusepass.capture.scalars.deferred_items import FROM_ITEM, made_of, reasons
from fusepass.capture.scalars.lowering import KeptScalar, held_number
from fusepass.capture.scalars.scalar import (
    ANY_FLOAT,
    BOOL,
    Range,
    ScalarTensor,
    Unfit,
    exactly,
    is_int64,
    kind_of,
    read_from,
)
from fusepass.capture.scalars.scalar_predicate import CANNOT_RAISE, is_read_back
from fusepass.graph.dataflow.node_recorder import NodeRecorder
from fusepass.graph.dataflow.reached import reached
from fusepass.graph.dataflow.write_history import WriteHistory
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.scalars.unbacked_sizes import unknown_sizes

_ANY_INT = Range(-math.inf, math.inf)
_NEVER = {
    *python_arithmetic.MIRRORED,
    *python_arithmetic.SIGNS,
    *(operator.and_, operator.or_, operator.xor, operator.not_),
    *(torch.sym_not, torch.sym_min, torch.sym_max, torch.sym_ite),
}
_SUMS = (operator.add, operator.sub, operator.mul)
_QUOTIENTS = (operator.truediv, operator.floordiv, operator.mod)
_QUESTIONS = (math.isnan, math.isinf, math.isfinite, torch.sym_float)
_ROUNDS = (round, "__round__")


def keep_raising(output_graph: Any) -> None:
    """Start the frame again if a number is not used of which Python may fail to make another."""
    frame = frame_of(output_graph)
    if frame is None or not (frame.items or frame.selections):
        return
    unused = _unused(output_graph.graph)
    try:
        found = that_may_raise(unused)
    except Exception as error:  # noqa: BLE001  # our error costs speed, never the program
        first = next(iter((frame.items | frame.selections).values()))
        kept = dict.fromkeys(unused, KeptScalar(*fault(error, first.file, first.line)))
    else:
        text = "what is made of it may raise, though nothing uses that: "
        kept = {
            node: KeptScalar(Reason.PARTIAL_OP, text + why, node) for node, why in found.items()
        }
    restart_without(frame, _behind(frame, kept))


def _behind(frame: Frame, kept: dict[fx.Node, KeptScalar]) -> dict[Captured, Why]:
    """The reads and counts that some numbers are made of, which the program then makes itself."""
    items: dict[fx.Node, KeptScalar] = {}
    counts: dict[Captured, Why] = {}
    for node, why in kept.items():
        for item in made_of([node]) if FROM_ITEM in node.meta else ():
            if item in frame.items:
                items.setdefault(item, why)
        for symbol in unknown_sizes(node.meta.get("example_value")):
            root = selection_of(node.graph, symbol)
            if root in frame.selections:
                counts.setdefault(frame.selections[root], (why.code, why.text))
    return reasons(frame, items) | counts


def _unused(graph: fx.Graph) -> list[fx.Node]:
    """Numbers of which nothing is made that stays in the graph.

    What only a message shows is made when that is due, and not where the program makes it. What was
    traced for a message alone the program makes there, too.
    """
    found: dict[fx.Node, None] = {}
    for node in reversed(graph.nodes):
        if not _is_open(node) or is_message_only(node):
            continue
        if all(user in found or shows(user) for user in node.users):
            found[node] = None
    return [node for node in found if CANNOT_RAISE not in node.meta]


def _is_open(node: fx.Node) -> bool:
    """Whether a node is a number that is not known while the program is traced."""
    value = node.meta.get("example_value")
    number = node.op != "placeholder" and kind_of(value) is not None
    return FROM_ITEM in node.meta or (number and bool(unknown_sizes(value)))


def that_may_raise(unused: Collection[fx.Node]) -> dict[fx.Node, str]:
    """Find the numbers that Python may fail to make, each with the reason."""
    known = _with_operands(unused)
    if not known:
        return {}
    graph = known[0].graph
    history = WriteHistory(graph, next(iter(reversed(graph.nodes))))
    trial = _Trial(history, NodeRecorder(graph, None), {})
    found = {}
    for node in known:
        if is_read_back(node):
            trial.read(node)
            continue
        count = range_of_count(node)
        if count is not None:
            trial.hold(node, count, node)
            continue
        why = trial.made(node)
        if why is not None and node in unused:
            found[node] = why
    return found


def _with_operands(unused: Collection[fx.Node]) -> list[fx.Node]:
    """Numbers and what they are computed from, in the order of the graph; none if all are read."""
    made_of = reached(
        [node for node in unused if not is_read_back(node)],
        lambda node: () if is_read_back(node) or not _is_made(node) else node.all_input_nodes,
    )
    return sorted(filter(_is_made, made_of))


def _is_made(node: fx.Node) -> bool:
    """Whether a node is a number that the graph is not given."""
    return kind_of(node) is not None and node.op != "placeholder"


@dataclass
class _Trial:
    """Numbers looked at as if they were to be computed on the device; nothing is recorded.

    Attributes:
        history: of the graph.
        recorder: of the graph.
        held: what was looked at.
    """

    history: WriteHistory
    recorder: NodeRecorder
    held: dict[fx.Node, ScalarTensor]

    def read(self, node: fx.Node) -> None:
        """A number that a tensor holds: reading it does not raise."""
        source: Any = node.args[0]
        moment = self.history.moments[node]
        self.hold(node, read_from(source, lambda n: self.history.holds_value(n, moment)), source)

    def made(self, node: fx.Node) -> str | None:
        """Why making a number of others may raise, or None."""
        try:
            self.held[node] = python_arithmetic.held(node, self.held, self.recorder)
        except Unfit as unfit:  # which may be for another reason than that it raises
            why = unfit.text
        except OverflowError:  # of a known integer that is no float
            why = "an integer it is combined with is no float"
        else:
            return None
        found = {"bool": BOOL, "int": _ANY_INT}.get(str(kind_of(node)), ANY_FLOAT)
        self.hold(node, found, node)
        return None if self._never_raises(node) else why

    def hold(self, node: fx.Node, found: Range, source: fx.Node) -> None:
        """Note what a number can be, and a tensor of the device it is on."""
        self.held[node] = held_number(node, found, source, lambda _: None, self.recorder)

    def _never_raises(self, node: fx.Node) -> bool:
        target: Any = node.target
        if node.kwargs or not all(kind_of(arg) is not None for arg in node.args):
            return False
        if target in _NEVER:
            return True
        floating = [kind_of(arg) == "float" for arg in node.args]
        ranges = [self._range(arg) for arg in node.args]
        # What has more bits than a double holds is no float, which raises where it must be one.
        plain = all(f or is_int64(r) for f, r in zip(floating, ranges, strict=True))
        if target in _SUMS:
            return plain or not any(floating)
        if target in _QUOTIENTS:
            whole = target is not operator.truediv and not any(floating)
            return ranges[1].excludes_zero() and (plain or whole)
        if target in _QUESTIONS:
            return plain
        if target is operator.pow:
            exponent: Any = node.args[1]
            return not any(floating) and isinstance(exponent, int) and exponent >= 0
        if target in _ROUNDS and len(node.args) == 2:
            digits: Any = node.args[1]
            return isinstance(digits, int) and digits >= 0
        return False

    def _range(self, value: Any) -> Range:
        if isinstance(value, fx.Node):
            if value in self.held:
                return self.held[value].range
            return ANY_FLOAT if kind_of(value) == "float" else _ANY_INT
        return Range(value, value) if isinstance(value, int) else exactly(value)
