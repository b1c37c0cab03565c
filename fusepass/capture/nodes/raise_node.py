"""Define the node for a captured raise.

``sink(bad, *operands)`` stands where the ``raise`` stood: when the 0-d bool ``bad`` holds, nothing
after it would have happened. What the exception is made of is a recipe beside the node; the nodes
only its message needs are tagged, and leave the graph before it is compiled (sink_outputs.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx

from fusepass.capture.nodes.value_recipe import Recipe

SINK = "fusepass_sink"  # meta key on a sink node: its Sink
MESSAGE = "fusepass_message"  # meta key of nodes recorded for a message only: the site


@dataclass(frozen=True)
class Sink:
    """What is raised at a sink.

    Attributes:
        site: number of the site, unique in its graph.
        recipe: makes the exception from the operands of the node.
        stack: (file, function, line) of the user's frames, outermost first.
        without_context: ``raise … from None``.
        shows_grad: operands whose ``requires_grad`` or ``grad_fn`` the text would show.
        shows_whole: operands whose text is shown, not only their number.
        grad_enabled: grad mode at the site.
        autocast: (device type, whether it is on, dtype) of autocast at the site.
        random_calls: how often Python's generator was drawn from before the site.
        file, line: where the branch is in the user's program.
    """

    site: int
    recipe: Recipe
    stack: tuple[tuple[str, str, int], ...]
    without_context: bool
    shows_grad: frozenset[int]
    shows_whole: frozenset[int]
    grad_enabled: bool
    autocast: tuple[tuple[str, bool, Any], ...]
    random_calls: int
    file: str
    line: int


def sink(bad: Any, *operands: Any) -> None:
    """Where ``bad`` holds, the program ends here with an exception made of ``operands``."""


sink.fusepass_pure = True  # type: ignore[attr-defined]
fx.node.has_side_effect(sink)  # no user, yet it must stay


def is_sink(node: fx.Node) -> bool:
    """Whether a node is a sink."""
    return node.target is sink and SINK in node.meta


def is_message_only(node: fx.Node) -> bool:
    """Whether a node was recorded while a message was traced."""
    return MESSAGE in node.meta
