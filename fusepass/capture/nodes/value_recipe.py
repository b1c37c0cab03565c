"""Store how to make an exception or a line of text after the graph has run.

A recipe is the construction as Dynamo traced it, with places where tensors and numbers of the graph
go. It is carried out with Python's own functions on real values, so that the text is
eager's: ``f"{x.max():.3f}"`` becomes ``str.format("{:.3f}", <operand 0>)``.
"""

from __future__ import annotations

import operator
import string
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from fusepass.capture.nodes import emit
from fusepass.capture.refusal import Refusal
from fusepass.graph.ops.op_names import tensor_value
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import deferred_values
from fusepass.torch_private.dynamo.containers import container_items, kind_of
from fusepass.torch_private.dynamo.errors.raising import exception_parts
from fusepass.torch_private.dynamo.phi import PhiVariable, choose, is_phi
from fusepass.torch_private.dynamo.stack import is_any_tensor, number_node, realized
from fusepass.torch_private.fx.graphs import call_target
from fusepass.torch_private.fx.tensor_kinds import why_not_plain

_MOST_STEPS = 2000  # of one message; a text added to itself is followed twice
_MOST_NESTED = 100  # each is a few calls of Python, when it is traced and when it is made
_MOST_CHOICES = 6  # in one another; two to that power of texts


@dataclass(frozen=True)
class KnownValue:
    """A value known when the program was traced."""

    value: Any


@dataclass(frozen=True)
class OperandValue:
    """The tensor or number at a position among the operands of the node."""

    position: int


@dataclass(frozen=True)
class Items:
    """A list of other values."""

    parts: tuple[Recipe, ...]


@dataclass(frozen=True)
class CallValue:
    """What a function or class makes of other values; a text names a method."""

    function: Any
    args: tuple[Recipe, ...]
    kwargs: tuple[tuple[str, Recipe], ...] = ()


# How a tensor is looked at: as itself, in a text or an argument; by ``format``, which shows the
# number of a 0-d tensor; for what it holds; or as an operand of what is computed for the text.
WHOLE, FORMAT, CONTENTS, OPERAND = "whole", "format", "contents", "operand"
_CONTENTS_ONLY = (
    *("item", "tolist", "numpy", int, float, bool, operator.not_),
    *("numel", "size", "dim", len),
)
_AS_THEY_ARE = (str, repr, ascii, "join", tuple, list, dict, operator.mod)
_ONLY_TEXT = (
    *(emit.emit_print, str, repr, ascii, format, str.format, "join", tuple, list, dict),
    *("item", "tolist", int, float, bool),
)
Recipe = KnownValue | OperandValue | Items | CallValue


def evaluate(recipe: Recipe, operands: Sequence[Any]) -> Any:
    """Carry out a recipe."""
    if isinstance(recipe, KnownValue):
        return recipe.value
    if isinstance(recipe, OperandValue):
        return operands[recipe.position]
    if isinstance(recipe, Items):
        return [evaluate(part, operands) for part in recipe.parts]
    args = [evaluate(part, operands) for part in recipe.args]
    kwargs = {name: evaluate(part, operands) for name, part in recipe.kwargs}
    return call_target(recipe.function, args, kwargs)


def parts_of(recipe: Recipe) -> tuple[Recipe, ...]:
    """The recipes that a recipe is directly made of."""
    if isinstance(recipe, CallValue):
        return (*recipe.args, *(value for _, value in recipe.kwargs))
    return recipe.parts if isinstance(recipe, Items) else ()


def calls_in(recipe: Recipe) -> Iterator[CallValue]:
    """All calls of a recipe, outer ones first."""
    if isinstance(recipe, CallValue):
        yield recipe
    for part in parts_of(recipe):
        yield from calls_in(part)


def only_text(recipe: Recipe) -> bool:
    """Whether carrying out a recipe makes nothing but text and numbers of its operands."""
    functions = [call.function for call in calls_in(recipe)]
    return all(isinstance(one, Hashable) and one in _ONLY_TEXT for one in functions)


def operands_printed_alone(recipe: Recipe) -> set[int]:
    """Operands that are printed as they are and not looked at in any other way."""
    if not isinstance(recipe, CallValue) or recipe.function is not emit.emit_print:
        return set()
    alone = {arg.position for arg in recipe.args if isinstance(arg, OperandValue)}
    texts = (arg for arg in recipe.args if not isinstance(arg, OperandValue))
    return alone.difference(*map(_operands, (*texts, *(value for _, value in recipe.kwargs))))


def _operands(recipe: Recipe) -> set[int]:
    if isinstance(recipe, OperandValue):
        return {recipe.position}
    return set().union(*map(_operands, parts_of(recipe)))


class ValueWriter:
    """Writes recipes for tracked values and collects the graph nodes they need.

    Args:
        reason: of the refusal where a value cannot be kept for later.

    Attributes:
        nodes: the operands, in order, one for each way in which a node is looked at.
        looks: how each is looked at.
        begun_before: positions of what is in texts that were put together before the message.
    """

    def __init__(self, reason: Reason = Reason.RAISES) -> None:
        self.reason = reason
        self.nodes: list[fx.Node] = []
        self.looks: list[str] = []
        self.begun_before: set[int] = set()
        self._in_older_text = False
        self._choices = 0  # that stand in one another
        self._steps = self._depth = 0

    @property
    def shows_whole(self) -> set[int]:
        """Positions of tensors of which more is looked at than what they hold."""
        return {i for i, look in enumerate(self.looks) if look in (WHOLE, OPERAND)}

    @property
    def shows_grad(self) -> set[int]:
        """Positions of tensors whose text shows ``requires_grad`` or ``grad_fn``."""
        values = {i: tensor_value(self.nodes[i]) for i in self.shows_whole}
        return {i for i, value in values.items() if value is not None and value.requires_grad}

    def exception(self, raised: Any) -> Recipe:
        """The recipe of what a ``raise`` statement was given; refused if it was not made here."""
        parts = exception_parts(raised)
        if parts is None:
            raise Refusal(self.reason, "the exception was not made where it is used")
        return self.call(*parts)

    def _choice(self, phi: PhiVariable, look: str) -> Recipe:
        """Write the recipe of a value that is one of two, which may hold others."""
        if self._choices >= _MOST_CHOICES:
            raise Refusal(self.reason, "the message shows a value that many branches decide")
        self._choices += 1
        tested = self._tensor(phi.held, CONTENTS)
        sides = [self.value(one, look) for one in (phi.taken, phi.other)]
        self._choices -= 1
        return CallValue(choose, (tested, *sides))

    def value(self, tracked: Any, look: str = WHOLE) -> Recipe:
        """Write the recipe of one tracked value with a look; refuse what cannot be kept."""
        tracked = realized(tracked)
        constant, known = deferred_values.constant_or_class(tracked)
        if constant:
            return KnownValue(known)
        if is_any_tensor(tracked):
            return self._tensor(tracked, look)
        number = number_node(tracked)
        if number is not None:
            return OperandValue(self.position(number, CONTENTS))
        if is_phi(tracked):
            return self._choice(tracked, look)
        late = deferred_values.late_parts(tracked)
        if late is not None:
            outer = self._in_older_text
            self._in_older_text = outer or not deferred_values.is_of_this_message(tracked)
            try:
                return self.call(*late, look=look)
            finally:
                self._in_older_text = outer
        held = container_items(tracked)
        if held is None:
            kind = kind_of(tracked)
            raise Refusal(self.reason, f"the message needs a value that cannot be kept: {kind}")
        if look == FORMAT:
            look = WHOLE
        if held[0] is dict:
            pairs = (Items(tuple(self.value(v, look) for v in pair)) for pair in held[1])
            return CallValue(dict, (Items(tuple(pairs)),))
        items = Items(tuple(self.value(item, look) for item in held[1]))
        return items if held[0] is list else CallValue(held[0], (items,))

    def call(
        self, function: Any, args: Sequence[Any], kwargs: dict[str, Any], *, look: str = WHOLE
    ) -> Recipe:
        """Write the recipe of a call, or of a method named by a text, whose result has a look."""
        looks: dict[Any, str] = {}
        look = _look_at_arguments(function, look)
        if function is str.format and look == FORMAT:
            looks = _looks_of_fields(deferred_values.constant_or_class(args[0])[1])
        self._steps += 1
        self._depth += 1
        if self._steps > _MOST_STEPS or self._depth > _MOST_NESTED:
            raise Refusal(self.reason, "the message is put together in too many steps")
        made = CallValue(
            function,
            tuple(self.value(arg, looks.get(i, look)) for i, arg in enumerate(args)),
            tuple((name, self.value(arg, looks.get(name, look))) for name, arg in kwargs.items()),
        )
        self._depth -= 1
        return made

    def _tensor(self, tracked: Any, look: str) -> Recipe:
        why = why_not_plain(tracked)
        if why is not None:
            raise Refusal(self.reason, f"the message needs a tensor that {why}")
        node = tracked.as_proxy().node
        value = tensor_value(node)
        if look == FORMAT:
            look = CONTENTS if value is not None and value.dim() == 0 else WHOLE
        return OperandValue(self.position(node, look))

    def position(self, node: fx.Node, look: str) -> int:
        """Where a node is among the operands; it is added if nothing looks at it like that yet."""
        held = list(zip(self.nodes, self.looks, strict=True))
        if (node, look) not in held:
            self.nodes.append(node)
            self.looks.append(look)
        position = held.index((node, look)) if (node, look) in held else len(held)
        if self._in_older_text:
            self.begun_before.add(position)
        return position


def _look_at_arguments(function: Any, look: str) -> str:
    if look == CONTENTS or function in _CONTENTS_ONLY:
        return CONTENTS
    if function in (format, str.format):
        return FORMAT
    own_class = isinstance(function, type) and function is not complex
    return WHOLE if own_class or function in _AS_THEY_ARE else OPERAND


def _looks_of_fields(text: str) -> dict[Any, str]:
    """Arguments of ``str.format`` that are shown whole: converted first, or looked into."""
    looks: dict[Any, str] = {}
    count = 0
    for _, name, _, conversion in string.Formatter().parse(text):
        if name is None:
            continue
        field = name or str(count)
        count += not name
        if conversion or not field.isalnum():
            first = field.partition(".")[0].partition("[")[0]
            looks[int(first) + 1 if first.isdigit() else first] = WHOLE
    return looks
