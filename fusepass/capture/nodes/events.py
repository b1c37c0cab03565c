"""Define the nodes of events: a captured raise (*sink*), and a call that writes (*line*).

``sink(bad, *operands)`` stands where the ``raise`` stood: when the 0-d bool ``bad`` holds, nothing
after it would have happened. ``line(when, *operands)`` stands where a call prints, logs or warns;
``when`` are the outcomes of tests under which it is reached. What is raised or written is a recipe
beside the node (value_recipe.py). Both leave the graph before that is compiled, with the nodes that
only their text needs, and happen in code around it (effects/runtime.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusepass.capture.nodes.tensor_repr import Look, LookChoice
from fusepass.capture.nodes.value_recipe import Recipe

EVENT = "fusepass_event"  # meta key on the node of an event: its Sink or Line
MESSAGE = "fusepass_message"  # meta key of nodes recorded for a message only: the site


@dataclass(frozen=True)
class Modes:
    """Grad mode and autocast at a place in the program.

    Attributes:
        grad: whether autograd is on.
        autocast: (device type, whether it is on, dtype), for each kind of device there is.
    """

    grad: bool
    autocast: tuple[tuple[str, bool, Any], ...]

    @classmethod
    def now(cls) -> Modes:
        """The modes in force."""
        kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
        get, is_on = torch.get_autocast_dtype, torch.is_autocast_enabled
        return cls(torch.is_grad_enabled(), tuple((k, is_on(k), get(k)) for k in kinds))

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Inside, these modes are in force."""
        with contextlib.ExitStack() as modes:
            modes.enter_context(torch.set_grad_enabled(self.grad))
            for kind, on, dtype in self.autocast:
                if on or torch.is_autocast_enabled(kind):
                    modes.enter_context(torch.autocast(kind, dtype=dtype, enabled=on))
            yield


@dataclass(frozen=True, kw_only=True)
class Sink:
    """What is raised at a sink.

    Attributes:
        site: number of the site, unique in its graph.
        recipe: makes the exception from the operands of the node.
        stack: (file, function, line) of the user's frames, outermost first.
        modes: at the site.
        random_calls: how often Python's generator was drawn from before the site.
        without_context: ``raise … from None``.
        shows_grad: operands whose ``requires_grad`` or ``grad_fn`` the text would show.
        shows_whole: operands whose text is shown, not only their number.
    """

    site: int
    recipe: Recipe
    stack: tuple[tuple[str, str, int], ...]
    modes: Modes
    random_calls: int
    without_context: bool = False
    shows_grad: frozenset[int] = frozenset()
    shows_whole: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Line:
    """What is written at a line node.

    Attributes:
        place: where the call is in the code traced, to leave it to Dynamo next time.
        recipe: writes the line, made of the operands of the node.
        looks: for operands that are shown as tensors, how; None where that is not known.
        on_device: operands of what is computed for the text with more than a number as result.
        begun_before: operands of texts that were put together before the call.
        modes: at the call.
        listener: code of the program that hears the line and could look around, or None.
        wanted: says whether the line is written at all (asked once per call); None if it always is.
    """

    place: Any
    recipe: Recipe
    looks: dict[int, Look | LookChoice | None]
    on_device: frozenset[int]
    begun_before: frozenset[int]
    modes: Modes
    listener: str | None = None
    wanted: Callable[[], bool] | None = None


def sink(bad: Any, *operands: Any) -> None:
    """Where ``bad`` holds, the program ends here with an exception made of ``operands``."""


def line(when: tuple[tuple[Any, bool], ...], *operands: Any) -> None:
    """Where every test in ``when`` came out as given, the program writes a line here."""


for _function in (sink, line):
    _function.fusepass_pure = True  # type: ignore[union-attr]
    fx.node.has_side_effect(_function)  # no user, yet it must stay


def record_event(translator: Any, test: Any, operands: Iterable[Any], event: Sink | Line) -> None:
    """Put the node of an event into the graph being traced; test and operands are proxies."""
    target = sink if isinstance(event, Sink) else line
    proxy = translator.output.create_proxy("call_function", target, (test, *operands), {})
    proxy.node.meta |= {"example_value": None, EVENT: event}


def is_sink(node: fx.Node) -> bool:
    """Whether a node is a sink."""
    return node.target is sink and EVENT in node.meta


def is_line(node: fx.Node) -> bool:
    """Whether a node is a line."""
    return node.target is line and EVENT in node.meta


def is_event(node: fx.Node) -> bool:
    """Whether a node is a sink or a line."""
    return is_sink(node) or is_line(node)


def is_message_only(node: fx.Node) -> bool:
    """Whether a node was recorded while a message was traced."""
    return MESSAGE in node.meta


def operands_of(event: fx.Node) -> tuple[Any, ...]:
    """What an event makes its message of, where its recipe looks for it.

    Numbers among them were nodes while the frame was traced: floats that come in and that no
    tensor needs, which torch takes as constants in the end.
    """
    return event.args[1:]


def nodes_of(event: fx.Node) -> list[fx.Node]:
    """The operands that are not known numbers."""
    return [operand for operand in operands_of(event) if isinstance(operand, fx.Node)]


def is_rare(event: fx.Node) -> bool:
    """Whether a message is not due in every call."""
    return is_sink(event) or bool(event.args[0])


def shows(user: fx.Node) -> bool:
    """Whether a node is an event, or only there for the message of one."""
    return is_event(user) or is_message_only(user)
