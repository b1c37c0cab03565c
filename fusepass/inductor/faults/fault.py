"""A fault of Inductor's: what is wrong, and which public reports say so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from fusepass.report.decision import Decision, Outcome, Reason, Station
from fusepass.torch_private.versions import torch_version


@dataclass(frozen=True)
class Fault:
    """One kind of silent wrong result.

    Attributes:
        name: of the rule in the report.
        reports: numbers of issues of pytorch/pytorch.
        wrong: what Inductor gets wrong, as the report says it.
        mended: the first version of torch that has it right, None if none is known.
    """

    name: str
    reports: tuple[int, ...]
    effect: str
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


def value_of(node: object) -> Tensor | None:
    """The tensor that a node of an ATen graph stands for."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, Tensor) else None


def argument(node: fx.Node, place: int, default: object = None) -> object:
    """An argument of a call as its operator's schema has it, given by position or by name."""
    if len(node.args) > place:
        return node.args[place]
    schema = getattr(node.target, "_schema", None)
    name = schema.arguments[place].name if schema is not None else ""
    return node.kwargs.get(name, default)


def faulty_calls(
    fault: Fault, operators: Sequence[Any], met: Callable[[fx.Node], bool], graph: fx.Graph
) -> list[fx.Node]:
    """The calls of some operators in an ATen graph that have a fault's pattern; none if mended."""
    if not fault.is_here:
        return []
    return [
        node
        for operator in operators
        for node in graph.find_nodes(op="call_function", target=operator)
        if met(node)
    ]
