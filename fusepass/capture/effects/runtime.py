"""Run a compiled graph, then print, log, warn and raise in the program's order.

The graph hands out a number, 0 or which exception is due, flags for lines that are not always
written, and what lines show. All of it is copied to the host at once: the one time per call that
the host waits. Then the lines in front of the exception are written. Memory that was written behind
the raise gets its contents back, the message is computed on real tensors with eager's own
operations, and the exception is raised so that its traceback ends where the program says ``raise``.
"""

from __future__ import annotations

import ast
import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from fusepass.capture.nodes.events import Line, Sink
from fusepass.capture.nodes.select_node import select
from fusepass.capture.nodes.tensor_repr import Look, LookChoice, look_of, text_or_tensor, with_look
from fusepass.capture.nodes.value_recipe import evaluate, only_text, operands_printed_alone
from fusepass.torch_private.fx.graphs import call_target

NEAR = ["cpu", "meta"]  # kinds of devices whose tensors need not be copied to be shown
_AT_ONCE = 1 << 20  # bytes: of larger tensors a text shows the edges, which are read one by one


@dataclass(frozen=True)
class Values:
    """What a call of the compiled graph took and gave."""

    inputs: Sequence[Any]
    outputs: Sequence[Any]


@dataclass(eq=False)
class OutputSlot:
    """Where a value is once the graph has run.

    Attributes:
        kind: ``input``, ``output`` or ``held``.
        position: of the input or output.
        index: of a number among those an output holds, or None for the output itself.
        value: of what the graph holds itself.
    """

    kind: str
    position: int = 0
    index: int | None = None
    value: Any = None

    def find(self, values: Values) -> Any:
        """The value."""
        if self.kind == "held":
            return self.value
        found = (values.inputs if self.kind == "input" else values.outputs)[self.position]
        return found if self.index is None else found[self.index]


@dataclass(frozen=True)
class Message:
    """What a message is made of.

    Attributes:
        graph: computes the operands of its recipe from ``sources``.
        sources: where the inputs of ``graph`` are.
    """

    graph: fx.Graph
    sources: tuple[OutputSlot, ...]

    def operands(self, values: Values) -> list[Any]:
        """The operands, computed as eager would have."""
        return list(self._compute([source.find(values) for source in self.sources]))

    @functools.cached_property
    def computes(self) -> bool:
        """Whether operands are computed by more than reading numbers."""
        calls = [node for node in self.graph.nodes if node.op not in ("placeholder", "output")]
        return any((node.op, node.target) != ("call_method", "item") for node in calls)

    @functools.cached_property
    def _compute(self) -> Callable[[Sequence[Any]], Any]:
        """Gives the operands of the sources; made when first needed, which many never are."""
        inputs = self.graph.find_nodes(op="placeholder")
        operands: Any = self.graph.output_node().args[0]
        if all(node in inputs for node in operands):
            positions = [inputs.index(node) for node in operands]
            return lambda found: [found[position] for position in positions]
        if any(node.target is select for node in self.graph.nodes):
            return functools.partial(_run, self.graph)
        calls = fx.GraphModule({}, self.graph)
        return lambda found: calls.forward(*found)


def _run(graph: fx.Graph, values: Sequence[Any]) -> Any:
    """Run a graph of plain calls as eager would have: of two arms, only the one that is taken."""
    known: dict[fx.Node, Any] = dict(zip(graph.find_nodes(op="placeholder"), values, strict=True))
    output = graph.output_node()
    todo = [output]
    while todo:
        node = todo[-1]
        missing = [] if node in known else [n for n in _needed(node, known) if n not in known]
        if missing:
            todo += reversed(missing)
        elif todo.pop() not in known:
            known[node] = _value(node, known)
    return known[output]


def _needed(node: fx.Node, known: dict[fx.Node, Any]) -> list[fx.Node]:
    if node.target is not select:
        return node.all_input_nodes
    predicate: Any = node.args[0]
    arm = _arm(node, known) if predicate in known else ()
    return [predicate, *(n for n in arm if isinstance(n, fx.Node))]


def _arm(node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    predicate, taken, other = node.args
    return taken if known[predicate] else other  # type: ignore[index]


def _value(node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    if node.target is select:
        return fx.map_arg(_arm(node, known), known.__getitem__)
    args, kwargs = fx.map_arg((node.args, node.kwargs), known.__getitem__)
    return args[0] if node.op == "output" else call_target(node.target, args, kwargs)


@dataclass(frozen=True)
class Exit:
    """One exception.

    Attributes:
        sink: what capture noted at the site.
        message: what it is made of.
        undo: tensors written after the site, each with its contents at the site.
    """

    sink: Sink
    message: Message
    undo: tuple[tuple[OutputSlot, OutputSlot], ...]

    def put_back(self, values: Values) -> None:
        """Give memory that is visible outside the contents it had at the site."""
        with torch.no_grad():
            for written, saved in self.undo:
                written.find(values).copy_(saved.find(values))

    def exception(self, values: Values) -> BaseException:
        """The exception; an error in the program's own message is what eager would raise."""
        try:
            with self.sink.modes.entered():
                error = evaluate(self.sink.recipe, self.message.operands(values))
        except Exception as fault:  # noqa: BLE001 - the message is the user's code
            return fault.with_traceback(None)
        return error  # type: ignore[no-any-return]


def _raise_from(error: list[BaseException], sink: Sink) -> Any:
    """Raise the only error in a list, out of frames with the names and lines of the user's."""
    statement = "raise error.pop()" + (" from None" if sink.without_context else "")
    inner: Callable[[], Any] | None = None
    for file, name, line in reversed(sink.stack):
        text = statement if inner is None else "inner()"
        inner = functools.partial(
            exec, _code(text, file, name, line), {"error": error, "inner": inner}
        )
    if inner is not None:
        inner()
    raise error.pop()


@functools.lru_cache(maxsize=256)
def _code(text: str, file: str, name: str, line: int) -> Any:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            place = {"lineno": line, "end_lineno": line, "col_offset": -1, "end_col_offset": -1}
            vars(node).update(place)  # no columns: nothing is underlined
    return compile(tree, file, "exec").replace(co_name=name, co_qualname=name)


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
    def _shows_modes(self) -> bool:
        """Whether grad mode or autocast could show."""
        return self.message.computes or not only_text(self.line.recipe)

    @functools.cached_property
    def _printed_alone(self) -> set[int]:
        return operands_printed_alone(self.line.recipe)

    def write(self, values: Values, host: Values) -> None:
        """Write the line, from ``host`` where :attr:`shown_first` has been copied there."""
        modes = self.line.modes.entered() if self._shows_modes else contextlib.nullcontext()
        with modes:
            operands = self.message.operands(host if self.shown_first else values)
            given = tuple(operands)
            for i in self.line.looks:
                show = text_or_tensor if i in self._printed_alone else with_look
                operands[i] = show(given[i], self._look(i, given, values))
            evaluate(self.line.recipe, operands)

    def _look(self, position: int, operands: Sequence[Any], values: Values) -> Look:
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
        host: outputs of the program that the code behind the graph reads, by position: they are
            brought to the host at the same time.
    """

    count: int
    codes: tuple[OutputSlot, ...]
    events: tuple[Exit | Emission, ...]
    host: dict[int, OutputSlot] = field(default_factory=dict)

    @property
    def _lines(self) -> list[Emission]:
        return [event for event in self.events if isinstance(event, Emission)]

    @property
    def reads_back(self) -> bool:
        """Whether anything is brought to the host: not for lines of mere text."""
        return bool(self.codes or self.host) or any(
            line.message.sources or line.when for line in self._lines
        )

    def around(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """``compiled``, with its events, and the program's outputs only."""
        asked = [each.line.wanted for each in self._lines if each.line.wanted is not None]
        first = [line for line in self._lines if line.first]
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
                    if line.line.wanted is None or line.line.wanted():
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
                    return _raise_from(error, event.sink)
            if not self.host:
                return outputs[: self.count]
            read = {position: place.find(host) for position, place in self.host.items()}
            return [read.get(i, output) for i, output in enumerate(outputs[: self.count])]

        return call

    def _agenda(self, wanted: tuple[bool, ...]) -> _Agenda:
        """What to do in a call; ``wanted`` says so of each line that is not always written."""
        answers = iter(wanted)
        todo: list[tuple[int, Exit | Emission]] = []
        places = [*self.codes, *self.host.values()]
        number = 0
        for event in self.events:
            if isinstance(event, Exit):
                number += 1
            elif event.line.wanted is None or next(answers):
                places += [*(place for place, _ in event.when), *event.shown_first]
            else:
                continue
            todo.append((number, event))
        held = dict.fromkeys((p.kind, p.position) for p in places if p.kind != "held")
        return tuple(held), tuple(todo)


def on_host(values: Values, places: Iterable[tuple[str, int]]) -> Values:
    """The same values, those at some places copied to the host where they are not there."""
    far: list[tuple[str, int, torch.Tensor]] = []
    for kind, position in places:
        tensor = (values.inputs if kind == "input" else values.outputs)[position]
        remote = isinstance(tensor, torch.Tensor) and tensor.device.type not in NEAR
        if remote and tensor.numel() * tensor.element_size() <= _AT_ONCE:
            far.append((kind, position, tensor))
    if not far:
        return values
    inputs, outputs = list(values.inputs), list(values.outputs)
    copies = _brought([tensor for _, _, tensor in far])
    for (kind, position, _), copy in zip(far, copies, strict=True):
        (inputs if kind == "input" else outputs)[position] = copy
    return Values(inputs, outputs)


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
