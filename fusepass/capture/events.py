"""Around a compiled graph: what the program raises, prints, logs and warns of, in its order.

The graph hands out a number, 0 or which exception is due, flags for lines that are not always
written, and what lines show. All of it is copied to the host at once: the one time per call that
the host waits. Then the lines in front of the exception are written, and the exception is raised.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusepass.capture.exits import Exit, raise_from
from fusepass.capture.line import Line
from fusepass.capture.places import NEAR, Message, Place, Values
from fusepass.capture.recipe import made
from fusepass.capture.shown import look_of, shown

_AT_ONCE = 1 << 20  # bytes: of larger tensors a text shows the edges, which are read one by one


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
    when: tuple[tuple[Place, bool], ...]
    direct: dict[int, Place]
    first: bool

    def shows(self) -> list[Place]:
        """What to copy to the host before it is known whether the line is due."""
        if self.when or self.line.on_device:
            return []
        return list(self.message.sources)

    def write(self, values: Values, host: Values) -> None:
        """Write the line.

        Args:
            values: as the graph took and gave them.
            host: the same, what :meth:`shows` asks for on the host.
        """
        near = host if self.shows() else values
        with self.message.modes():
            operands = list(self.message.operands(near))
            for i, look in self.line.looks.items():
                operands[i] = shown(operands[i], look or self._look(i, operands[i], values))
            made(self.line.recipe, operands)

    def _look(self, position: int, operand: torch.Tensor, values: Values) -> Any:
        place = self.direct.get(position)
        return look_of(operand if place is None else place.find(values))


@dataclass(frozen=True)
class Events:
    """What happens around a graph.

    Attributes:
        count: how many outputs the program itself has; they come first.
        codes: where the numbers of exceptions are, one per device.
        events: exceptions and lines in program order; the number of the first exception is 1.
    """

    count: int
    codes: tuple[Place, ...]
    events: tuple[Exit | Emission, ...]

    def around(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """``compiled``, with its events, and the program's outputs only."""

        @functools.wraps(compiled)
        def call(*args: Any) -> Any:
            boxed = len(args) == 1 and isinstance(args[0], list)
            inputs = tuple(args[0]) if boxed else args  # a boxed call empties its list
            try:
                outputs = compiled(*args)
            except Exception:
                self._write_first(Values(inputs, ()))
                raise
            values = Values(inputs, outputs)
            due, wanted, host = self._look_at(values)
            number = 0
            for event in self.events:
                if isinstance(event, Emission):
                    if id(event) in wanted and all(p.find(host) == on for p, on in event.when):
                        event.write(values, host)
                    continue
                number += 1
                if number == due:
                    event.put_back(values)
                    error = [event.exception(values)]
                    del values, host, inputs, outputs, args  # the traceback would keep them alive
                    return raise_from(error, event.sink)
            return outputs[: self.count]

        return call

    def _look_at(self, values: Values) -> tuple[int, set[int], Values]:
        """Which exception is due, which lines are wanted, and what to know of them on the host."""
        lines = [e for e in self.events if isinstance(e, Emission) and e.line.wanted()]
        flags = [place for line in lines for place, _ in line.when]
        host = on_host(values, [*self.codes, *flags, *(p for line in lines for p in line.shows())])
        due = [number for number in (int(code.find(host)) for code in self.codes) if number]
        return min(due, default=0), {id(line) for line in lines}, host

    def _write_first(self, values: Values) -> None:
        for event in self.events:
            if isinstance(event, Emission) and event.first and event.line.wanted():
                event.write(values, values)


def on_host(values: Values, places: Iterable[Place]) -> Values:
    """The same values, those at some places copied to the host where they are not there."""
    inputs, outputs = list(values.inputs), list(values.outputs)
    devices: set[torch.device] = set()
    for place in dict.fromkeys((p.kind, p.position) for p in places if p.kind != "held"):
        held: list[Any] = inputs if place[0] == "input" else outputs
        tensor = held[place[1]]
        if isinstance(tensor, torch.Tensor) and _is_to_be_copied(tensor):
            held[place[1]] = tensor.detach().to("cpu", non_blocking=True)
            devices.add(tensor.device)
    for device in devices:
        _wait_for(device)
    return Values(inputs, outputs)


def _is_to_be_copied(tensor: torch.Tensor) -> bool:
    size = tensor.numel() * tensor.element_size()
    return tensor.device.type not in NEAR and size <= _AT_ONCE


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    elif device.type != "cpu":
        torch.accelerator.synchronize(device)


def needed_inputs(events: Sequence[Exit | Emission]) -> set[int]:
    """Positions of the inputs that events look at."""
    places = [place for event in events for place in event.message.sources]
    places += [place for event in events if isinstance(event, Exit) for place in _undone(event)]
    return {place.position for place in places if place.kind == "input"}


def _undone(event: Exit) -> list[Place]:
    return [place for pair in event.undo for place in pair]
