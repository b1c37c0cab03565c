"""A fault of Inductor's: what is wrong, and which public reports say so."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import fx

from fusepass.graph.ops.op_names import tensor_value
from fusepass.report.decision import Decision, Outcome, Reason, Station
from fusepass.torch_private.versions import torch_version


@dataclass(frozen=True)
class Fault:
    """One kind of silent wrong result.

    Attributes:
        name: of the rule in the report.
        reports: numbers of issues of pytorch/pytorch.
        effect: what Inductor gets wrong, as the report says it.
        operators: whose calls may have it.
        applies: whether a call has its pattern.
        formula: writes a call as eager computes it.
        fixed_in: the first version of torch that has it right, None if none is known.
    """

    name: str
    reports: tuple[int, ...]
    effect: str
    operators: tuple[Any, ...] = ()
    applies: Callable[[fx.Node], bool] = bool
    formula: Callable[[Any], fx.Node] | None = None
    fixed_in: tuple[int, int] | None = None

    @property
    def is_here(self) -> bool:
        """Whether the torch that is installed has it."""
        return self.fixed_in is None or torch_version() < self.fixed_in

    @property
    def message(self) -> str:
        """What is wrong, with the reports to read."""
        reports = ", ".join(f"#{number}" for number in self.reports)
        return f"{self.effect} (pytorch {reports})" if reports else self.effect

    def decision(self, how: str, station: Station) -> Decision:
        """The line of the report for a graph that was steered round the fault."""
        reason = f"{how}: Inductor {self.message}"
        return Decision(station, self.name, Outcome.APPLIED, Reason.INDUCTOR_FAULT, reason)


def steered(
    faults: Iterable[Fault], graph: fx.Graph, how: str, act: Callable[[Fault, fx.Node], object]
) -> list[Decision]:
    """Act on each call of an ATen graph that has the pattern of a fault; what was decided."""
    found = []
    for fault in faults:
        calls = [
            node
            for operator in fault.operators
            for node in graph.find_nodes(op="call_function", target=operator)
            if fault.is_here and fault.applies(node)
        ]
        for node in calls:
            act(fault, node)
        if calls:
            found.append(fault.decision(how, Station.AFTER))
    return found


def is_on_cpu(node: object) -> bool:
    """Whether a node stands for a tensor on the CPU."""
    value = tensor_value(node)
    return value is not None and value.device.type == "cpu"


def argument(node: fx.Node, place: int, default: object = None) -> object:
    """An argument of a call as its operator's schema has it, given by position or by name."""
    if len(node.args) > place:
        return node.args[place]
    schema = getattr(node.target, "_schema", None)
    name = schema.arguments[place].name if schema is not None else ""
    return node.kwargs.get(name, default)
