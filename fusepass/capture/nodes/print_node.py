"""Define the node for a call that prints, logs or warns.

``line(when, *operands)`` stands where the call stood; ``when`` are the outcomes of tests under
which it is reached. What is written is a recipe beside the node (value_recipe.py). The node leaves
the graph before that is compiled, and the line is written by code around it (runtime.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import fx

from fusepass.capture.nodes.tensor_repr import Look, LookChoice
from fusepass.capture.nodes.value_recipe import Recipe

LINE = "fusepass_line"  # meta key on a line node: its Line


def always() -> bool:
    """The condition of a line that is always written."""
    return True


@dataclass(frozen=True)
class Line:
    """What is written at a line node.

    Attributes:
        place: where the call is in the code traced, to leave it to Dynamo next time.
        position: where it is in the source, for the report.
        recipe: writes the line, made of the operands of the node.
        looks: for operands that are shown as tensors, how; None where that is not known.
        on_device: operands of what is computed for the text with more than a number as result.
        begun_before: operands of texts that were put together before the call.
        grad_enabled: grad mode at the call.
        autocast: (device type, whether it is on, dtype) of autocast at the call.
        file, line: of the call.
        listener: code of the program that hears the line and could look around, or None.
        wanted: whether the line is written at all (asked once per call).
    """

    place: Any
    position: tuple[Any, ...]
    recipe: Recipe
    looks: dict[int, Look | LookChoice | None]
    on_device: frozenset[int]
    begun_before: frozenset[int]
    grad_enabled: bool
    autocast: tuple[tuple[str, bool, Any], ...]
    file: str
    line: int
    listener: str | None = None
    wanted: Callable[[], bool] = always


def line(when: tuple[tuple[Any, bool], ...], *operands: Any) -> None:
    """Where every test in ``when`` came out as given, the program writes a line here."""


line.fusepass_pure = True  # type: ignore[attr-defined]
fx.node.has_side_effect(line)  # no user, yet it must stay


def is_line(node: fx.Node) -> bool:
    """Whether a node is a line."""
    return node.target is line and LINE in node.meta


def is_line_inside(node: fx.Node, predicate: fx.Node) -> bool:
    """Whether a node is a line in an arm of the branch that tests ``predicate``."""
    tests: Any = node.args[0] if is_line(node) else ()
    return any(test is predicate for test, _ in tests)
