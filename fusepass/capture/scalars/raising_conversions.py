"""Find unused numbers whose computation may raise in Python.

``n = int(x.max())`` raises for NaN and infinity whether or not ``n`` is used. A number without a
use leaves the graph, and its exception with it; so it may go only where making it cannot raise, by
its operation or by what its operands can be.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusepass.capture.scalars import number_comparison, python_arithmetic
from fusepass.capture.scalars.scalar import ScalarTensor, Unfit, kind_of
from fusepass.capture.scalars.value_range import (
    ANY_FLOAT,
    BOOL,
    Range,
    exactly,
    is_int64,
    read_from,
)
from fusepass.graph.dataflow.node_recorder import NodeRecorder
from fusepass.graph.dataflow.reached import reached
from fusepass.graph.dataflow.write_history import WriteHistory
from fusepass.graph.ops.op_names import tensor_value

_ANY_INT = Range(-math.inf, math.inf)
_NEVER = frozenset(number_comparison.MIRRORED) | {
    operator.and_,
    operator.or_,
    operator.xor,
    operator.not_,
    operator.neg,
    operator.pos,
    operator.abs,
    abs,
    "__neg__",
    "__pos__",
    "__abs__",
    torch.sym_not,
    torch.sym_min,
    torch.sym_max,
    torch.sym_ite,
}
_SUMS = (operator.add, operator.sub, operator.mul)
_QUOTIENTS = (operator.truediv, operator.floordiv, operator.mod)
_QUESTIONS = (math.isnan, math.isinf, math.isfinite, torch.sym_float)
_ROUNDS = (round, "__round__")


def that_may_raise(
    unused: Collection[fx.Node],
    is_read: Callable[[fx.Node], bool],
    counted: Callable[[fx.Node], Range | None],
) -> dict[fx.Node, str]:
    """Those of some numbers which Python may fail to make, each with the reason.

    Args:
        unused: numbers of one graph.
        is_read: whether a number is read from a tensor, its first argument.
        counted: what a number can be that says how many elements a mask selects; None for others.
    """
    known = _with_operands(unused, is_read)
    if not known:
        return {}
    graph = known[0].graph
    history = WriteHistory(graph, next(iter(reversed(graph.nodes))))
    trial = _Trial(history, NodeRecorder(graph, None), {})
    found = {}
    for node in known:
        if is_read(node):
            trial.read(node)
            continue
        count = counted(node)
        if count is not None:
            trial.hold(node, count, node)
            continue
        why = trial.made(node)
        if why is not None and node in unused:
            found[node] = why
    return found


def _with_operands(
    unused: Collection[fx.Node], is_read: Callable[[fx.Node], bool]
) -> list[fx.Node]:
    """Numbers and what they are computed from, in the order of the graph; none if all are read."""
    made_of = reached(
        [node for node in unused if not is_read(node)],
        lambda node: () if is_read(node) or not _is_made(node) else node.all_input_nodes,
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
        kind, value = kind_of(node), tensor_value(source)
        assert kind is not None
        device = torch.device("cpu") if value is None else value.device
        self.held[node] = ScalarTensor(
            node, kind, found, (node,), device, lambda _: None, self.recorder
        )

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
