"""A rule that edits the graph itself, for rewrites that no pattern of operations can describe.

Lowering a branch needs the tags capture left on both arms, an attention mask the values it is made
of. What can be said as "this computation is that one" is a :class:`fusepass.Rule`.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from fusepass.graph.dataflow.effects import written_nodes
from fusepass.options import Options
from fusepass.rewrite.reject import Accept, Reject


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
        sources: further functions or modules whose source decides what the rule does.
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
    sources: tuple[Any, ...] = ()
    location: str = field(default="")

    def __post_init__(self) -> None:
        if not self.location:
            caller = sys._getframe(2)
            object.__setattr__(self, "location", f"{caller.f_code.co_filename}:{caller.f_lineno}")

    def source_hash(self) -> str:
        """Hash of the code that decides what this rule does; part of Inductor's cache keys.

        Whole modules are hashed, so a changed helper or constant changes it as well.

        Raises:
            OSError, TypeError: the source of a function cannot be found.
        """
        digest = hashlib.sha256(self.name.encode())
        for part in (self.anchor, self.check, self.replace, *self.sources):
            module = part if inspect.ismodule(part) else sys.modules.get(part.__module__)
            digest.update(_source(module or part).encode())
            digest.update(getattr(part, "__qualname__", "").encode())
        return digest.hexdigest()


@functools.cache
def _source(part: Any) -> str:
    """Source of a module or function, read once: every compile asks for it."""
    return inspect.getsource(part)
