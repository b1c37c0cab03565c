"""Run a compiled graph, then print, log, warn and raise in the program's order.

The graph hands out a number, 0 or which exception is due, flags for lines that are not always
written, and what lines show. All of it is copied to the host at once: the one time per call that
the host waits. Then the lines in front of the exception are written, and the exception is raised.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from fusepass.capture.effects.output_slots import NEAR, Message, OutputSlot, Values
from fusepass.capture.effects.raise_runtime import Exit, raise_from
from fusepass.capture.nodes.print_node import Line, always
from fusepass.capture.nodes.tensor_repr import Look, LookChoice, look_of, text_or_tensor, with_look
from fusepass.capture.nodes.value_recipe import evaluate, only_text, operands_printed_alone

_AT_ONCE = 1 << 20  # bytes: of larger tensors a text shows the edges, which are read one by one


@dataclass(frozen=True)
class _Writes:
    """How a line is written.

    Attributes:
        in_modes: whether grad mode or autocast could show.
        alone: operands of which nothing but their text is looked at.
        in_others: other operands that are shown as tensors.
    """

    in_modes: bool
    alone: tuple[int, ...]
    in_others: tuple[int, ...]


@dataclass(frozen=True)
class Emission:
    """One line.

    Attributes:
        line: what capture noted at the call.
        message: what it is made of.
        when: flags, each with the outcome under which the line is written.
        direct: operands that are handed out or given as they are.
        first: whether it is written also when the graph raises: what can fail comes later.
    """

    line: Line
    message: Message
    when: tuple[tuple[OutputSlot, bool], ...]
    direct: dict[int, OutputSlot]
    first: bool

    @property
    def shown_first(self) -> tuple[OutputSlot, ...]:
        """What to copy to the host before it is known whether the line is due."""
        return () if self.when or self.line.on_device else self.message.sources

    @functools.cached_property
    def _writes(self) -> _Writes:
        recipe, looks = self.line.recipe, self.line.looks
        modes = self.message.computes or not only_text(recipe)
        alone = operands_printed_alone(recipe) & looks.keys()
        return _Writes(modes, tuple(alone), tuple(i for i in looks if i not in alone))

    def write(self, values: Values, host: Values) -> None:
        """Write the line.

        Args:
            values: as the graph took and gave them.
            host: the same, what :attr:`shown_first` asks for on the host.
        """
        near = host if self.shown_first else values
        if self._writes.in_modes:
            with self.message.modes():
                self._write(values, near)
        else:
            self._write(values, near)

    def _write(self, values: Values, near: Values) -> None:
        operands = list(self.message.operands(near))
        for i in self._writes.alone:
            operands[i] = text_or_tensor(operands[i], self._look(i, operands, values))
        for i in self._writes.in_others:
            operands[i] = with_look(operands[i], self._look(i, operands, values))
        evaluate(self.line.recipe, operands)

    def _look(self, position: int, operands: list[Any], values: Values) -> Look:
        known = self.line.looks[position]
        if isinstance(known, LookChoice):
            return known.made(operands)
        if known is not None:
            return known
        place = self.direct.get(position)
        return look_of(operands[position] if place is None else place.find(values))


# What to look at on the host, and what to do, with the number of each exception.
_Agenda = tuple[tuple[tuple[str, int], ...], tuple[tuple[int, Exit | Emission], ...]]


@dataclass(frozen=True)
class Events:
    """What happens around a graph.

    Attributes:
        count: how many outputs the program itself has; they come first.
        codes: where the numbers of exceptions are, one per device.
        events: exceptions and lines in program order; the number of the first exception is 1.
    """

    count: int
    codes: tuple[OutputSlot, ...]
    events: tuple[Exit | Emission, ...]

    @property
    def reads_back(self) -> bool:
        """Whether anything is brought to the host: not for lines of mere text."""
        lines = [event for event in self.events if isinstance(event, Emission)]
        return bool(self.codes) or any(line.message.sources or line.when for line in lines)

    def around(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """``compiled``, with its events, and the program's outputs only."""
        lines = [event for event in self.events if isinstance(event, Emission)]
        asked = [line.line.wanted for line in lines if line.line.wanted is not always]
        first = [line for line in lines if line.first]
        agenda = functools.cache(self._agenda)

        @functools.wraps(compiled)
        def call(*args: Any) -> Any:
            boxed = len(args) == 1 and isinstance(args[0], list)
            inputs = tuple(args[0]) if boxed else args  # a boxed call empties its list
            try:
                outputs = compiled(*args)
            except Exception:  # whatever it is: eager has written these lines before, and raises it
                given = Values(inputs, ())
                for line in first:
                    if line.line.wanted():
                        line.write(given, given)
                raise
            values = Values(inputs, outputs)
            places, todo = agenda(tuple([wanted() for wanted in asked]))
            host = on_host(values, places)
            due = min(filter(None, [int(code.find(host)) for code in self.codes]), default=0)
            for number, event in todo:
                if isinstance(event, Emission):
                    if all(bool(place.find(host)) == on for place, on in event.when):
                        event.write(values, host)
                elif number == due:
                    event.put_back(values)
                    error = [event.exception(values)]
                    del values, host, inputs, outputs, args  # the traceback would keep them alive
                    return raise_from(error, event.sink)
            return outputs[: self.count]

        return call

    def _agenda(self, wanted: tuple[bool, ...]) -> _Agenda:
        """What to do in a call; ``wanted`` says so of each line that is not always written."""
        answers = iter(wanted)
        todo: list[tuple[int, Exit | Emission]] = []
        places = list(self.codes)
        number = 0
        for event in self.events:
            if isinstance(event, Exit):
                number += 1
            elif event.line.wanted is always or next(answers):
                places += [*(place for place, _ in event.when), *event.shown_first]
            else:
                continue
            todo.append((number, event))
        held = dict.fromkeys((p.kind, p.position) for p in places if p.kind != "held")
        return tuple(held), tuple(todo)


def on_host(values: Values, places: Iterable[tuple[str, int]]) -> Values:
    """The same values, those at some places copied to the host where they are not there.

    Args:
        values: what a call took and gave.
        places: kinds and positions.
    """
    far: list[tuple[str, int, torch.Tensor]] = []
    for kind, position in places:
        tensor = (values.inputs if kind == "input" else values.outputs)[position]
        if isinstance(tensor, torch.Tensor) and _is_to_be_copied(tensor):
            far.append((kind, position, tensor))
    if not far:
        return values
    inputs, outputs = list(values.inputs), list(values.outputs)
    copies = _brought([tensor for _, _, tensor in far])
    for (kind, position, _), copy in zip(far, copies, strict=True):
        (inputs if kind == "input" else outputs)[position] = copy
    return Values(inputs, outputs)


def _is_to_be_copied(tensor: torch.Tensor) -> bool:
    far = tensor.device.type not in NEAR
    return far and tensor.numel() * tensor.element_size() <= _AT_ONCE


def _brought(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies on the host, at one wait per device; a single copy waits by itself."""
    if len(tensors) == 1:
        return [tensors[0].detach().to("cpu")]
    copies = [tensor.detach().to("cpu", non_blocking=True) for tensor in tensors]
    for device in {tensor.device for tensor in tensors}:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        elif device.type != "cpu":
            torch.accelerator.synchronize(device)
    return copies
