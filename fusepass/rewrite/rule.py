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

from fusepass.graph.dataflow.effects import written_nodes
from fusepass.options import Options
from fusepass.report.decision import Reason

# --- A rule's ``check`` returns this: a rejection, or an acceptance with its reason ---------------


@dataclass(frozen=True)
class _Verdict:
    """What the two have in common."""

    reason_code: Reason | str
    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason_code", Reason(self.reason_code))

    @property
    def code(self) -> Reason:
        """The reason code as a member of the list."""
        return Reason(self.reason_code)


@dataclass(frozen=True)
class Reject(_Verdict):
    """Why a rule does not act at a site.

    Attributes:
        reason_code: member of the closed list of reasons (:class:`fusepass.Reason`), or its value.
        text: one sentence.
        node: the node that stands in the way.
        microseconds: what was timed or estimated, by candidate; for the report.

    Raises:
        ValueError: a reason code that is not on the list.
    """

    node: fx.Node | None = None
    microseconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Accept(_Verdict):
    """Why a rule acts at a site, for checks that have more to say than None.

    Attributes:
        reason_code: member of the closed list of reasons, or its value.
        text: one sentence.
        microseconds: what was timed or estimated, by candidate; for the report.

    Raises:
        ValueError: a reason code that is not on the list.
    """

    microseconds: Mapping[str, float] = field(default_factory=dict)


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


# --- Rules without a pattern ----------------------------------------------------------------------
# They edit the graph itself, for rewrites that no pattern of operations can describe. Lowering a
# branch needs the tags capture left on both arms, an attention mask the values it is made of. What
# can be said as "this computation is that one" is a :class:`fusepass.Rule`.


@dataclass(frozen=True)
class RuleSite:
    """One place in a graph where a graph rule could act.

    Attributes:
        gm: the graph module; ``anchor`` is one of its nodes.
        anchor: the node the rule looks at.
        options: the options in force.
        fake_mode: the mode under which fake tensors of this graph compute, or None.
        nested: whether the graph is the body of a call of another graph, as that of a checkpoint.
        shared: what the rule found out about this graph, for all of its sites.
        notes: what ``check`` found out, for the ``replace`` that follows it.
    """

    gm: fx.GraphModule
    anchor: fx.Node
    options: Options
    fake_mode: Any = None
    nested: bool = False
    shared: dict[str, Any] = field(default_factory=dict, compare=False)
    notes: dict[str, Any] = field(default_factory=dict, compare=False)


def written_before(site: RuleSite, node: fx.Node) -> bool:
    """Whether anything in front of a node writes: what is read there could not be read at it.

    The whole graph is looked through once for all sites: after functionalization writes are few,
    and stand at its end.
    """
    if "first write" not in site.shared:
        writing = (one for one in site.gm.graph.nodes if written_nodes(one))
        site.shared["first write"] = next(writing, None)
    first = site.shared["first write"]
    return first is not None and bool(first < node)


@dataclass(frozen=True)
class GraphRule:
    """A rewrite of FX graphs by a function that looks at one node at a time.

    Attributes:
        name: unique; users switch it off by this name.
        anchor: whether the rule could act at a node.
        check: None or an :class:`Accept` to go on, or a :class:`Reject`.
        replace: rewrites the graph at the anchor; may raise, which undoes the rule for this graph.
        summary: one sentence for the report when the rule was applied.
        settled_by_capture: the decision was taken, and reported, when the graph was captured;
            switching the rule off is then up to capture (the select it lowers cannot stay).
        treatment: what the rule makes of a branch (one settled by capture) or of a host round
            trip, where the report should say so.
        moves: other kernels may lay results out otherwise; where the graph's own results would
            have other strides for it, that is a reason to leave the graph as it is, no fault.
        tries: ``check`` leaves in the graph what it found good on trial, for ``replace``.
        location: file and line where the rule was made.
    """

    name: str
    anchor: Callable[[fx.Node], bool]
    check: Callable[[RuleSite], Reject | Accept | None]
    replace: Callable[[RuleSite], None]
    summary: str = ""
    settled_by_capture: bool = False
    treatment: str = ""
    moves: bool = False
    tries: bool = False
    location: str = field(default="")

    def __post_init__(self) -> None:
        if not self.location:
            caller = sys._getframe(2)
            object.__setattr__(self, "location", f"{caller.f_code.co_filename}:{caller.f_lineno}")
