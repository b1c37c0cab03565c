"""A rule: a computation to look for, what to put in its place, and an example of its inputs.

Everything is a plain function. Nothing is carried from ``check`` to ``replacement``: what the
replacement needs to know, it is given, or can see in the tensors it is given.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import fx

from fusepass.options import Options
from fusepass.rewrite.reject import Accept, Reject

Place = Literal["before", "after"]


@dataclass(frozen=True)
class Match:
    """A rule's pattern found in a graph, as ``check`` sees it.

    ``match["x"]`` is what the parameter ``x`` of the pattern stands for here: a fake tensor (shape,
    dtype, device, strides, ``requires_grad``; sizes may be symbolic) or a bound scalar.

    Attributes:
        values: parameter name to fake tensor or scalar.
        nodes: the operations of the graph that the replacement would stand for.
        outputs: fake tensors of what the pattern returns, in its order.
        output_nodes: the nodes that compute them.
        options: the options in force.
        training: before autograd whether a backward of it will follow, after autograd whether this
            graph is a backward.
        place: which graph this is: before or after autograd.
    """

    values: Mapping[str, Any]
    nodes: tuple[fx.Node, ...]
    outputs: tuple[Any, ...]
    output_nodes: tuple[fx.Node, ...]
    options: Options
    training: bool
    place: Place

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


@dataclass(frozen=True, eq=False)
class Rule:
    """A computation and what may stand in its place.

    Args:
        name: unique; users switch the rule off by it (``options={"rules": {name: False}}``).
        pattern: ordinary torch code. Traced once with symbolic sizes, so no size is baked in;
            constants written in it must be equal in the graph.
        replacement: takes what the pattern takes and returns what it returns. Run at each match on
            fake tensors, so it may look at shapes, dtypes and scalars.
        example: inputs of the pattern, or a function that makes them. Tensors are variables; other
            values (int, float, bool, str) are scalars that bind to what the graph has.
        check: looks at a :class:`Match`; None to go on, or a :class:`Reject`. An :class:`Accept`
            goes on too, and puts its reason into the report.
        place: ``"before"`` autograd, where operations are what the user wrote and the replacement
            must be differentiable; or ``"after"``, on the forward and backward graphs of ATen
            operations, after Inductor's decompositions.
        priority: rules with a higher one choose first; among equals the larger saving wins.
        devices: device types the replacement is for (``("cuda",)``); empty for any. A rule costs
            no time on graphs that have no tensor on one of them.
    """

    name: str
    pattern: Callable[..., Any]
    replacement: Callable[..., Any]
    example: tuple[Any, ...] | Callable[[], tuple[Any, ...]]
    check: Callable[[Match], Reject | Accept | None] | None = None
    place: Place = "before"
    priority: int = 0
    devices: tuple[str, ...] = ()
    location: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.location:
            caller = sys._getframe(2)
            object.__setattr__(self, "location", f"{caller.f_code.co_filename}:{caller.f_lineno}")

    def inputs(self) -> tuple[Any, ...]:
        """The example inputs."""
        return tuple(self.example() if callable(self.example) else self.example)
