"""Raises, after a compiled graph has run, the exception its sinks stand for.

The graph hands out a number: 0, or which exception is due. Reading it is the one time per call that
the host waits. When one is due, memory written behind the raise gets its contents back, the message
is computed on real tensors with eager's own operations, and the exception is raised so that its
traceback ends where the program says ``raise``.
"""

from __future__ import annotations

import ast
import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusepass.capture.recipe import made
from fusepass.capture.select import select
from fusepass.capture.sink import Sink


@dataclass(frozen=True)
class Place:
    """Where a value is once the graph has run.

    Attributes:
        kind: ``input``, ``output`` or ``held``.
        position: of the input or output.
        value: of what the graph holds itself.
    """

    kind: str
    position: int = 0
    value: Any = None

    def find(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """The value."""
        if self.kind == "held":
            return self.value
        return (inputs if self.kind == "input" else outputs)[self.position]


@dataclass(frozen=True)
class Exit:
    """One exception.

    Attributes:
        sink: what capture noted at the site.
        message: computes the operands of the recipe from ``sources``.
        sources: where the inputs of ``message`` are.
        undo: tensors written after the site, each with its contents at the site.
    """

    sink: Sink
    message: fx.Graph
    sources: tuple[Place, ...]
    undo: tuple[tuple[Place, Place], ...]

    def put_back(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Give memory that is visible outside the contents it had at the site."""
        with torch.no_grad():
            for written, saved in self.undo:
                written.find(inputs, outputs).copy_(saved.find(inputs, outputs))

    def exception(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> BaseException:
        """The exception; an error in the program's own message is what eager would raise."""
        values = [source.find(inputs, outputs) for source in self.sources]
        try:
            with contextlib.ExitStack() as modes:
                modes.enter_context(torch.set_grad_enabled(self.sink.grad_enabled))
                for kind, on, dtype in self.sink.autocast:
                    if on or torch.is_autocast_enabled(kind):
                        modes.enter_context(torch.autocast(kind, dtype=dtype, enabled=on))
                error = made(self.sink.recipe, _run(self.message, values))
        except Exception as fault:  # noqa: BLE001 - the message is the user's code
            return fault.with_traceback(None)
        return error  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Exits:
    """Every exception of a graph.

    Attributes:
        count: how many outputs the program itself has; they come first.
        codes: where the numbers are, one per device.
        exits: in program order; the number of the first is 1.
    """

    count: int
    codes: tuple[int, ...]
    exits: tuple[Exit, ...]

    def around(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """``compiled``, raising where the program does, with the program's outputs only."""

        @functools.wraps(compiled)
        def call(*args: Any) -> Any:
            boxed = len(args) == 1 and isinstance(args[0], list)
            inputs = tuple(args[0]) if boxed else args  # a boxed call empties its list
            outputs = compiled(*args)
            due = [n for n in (int(outputs[code]) for code in self.codes) if n]
            if not due:
                return outputs[: self.count]
            first = self.exits[min(due) - 1]
            first.put_back(inputs, outputs)
            error = [first.exception(inputs, outputs)]
            del inputs, outputs, args  # the traceback would keep them alive
            return _raise(error, first.sink)

        return call


def _run(graph: fx.Graph, values: Sequence[Any]) -> Any:
    """Run a graph of plain calls as eager would have: of two arms, only the one that is taken."""
    known: dict[fx.Node, Any] = dict(zip(graph.find_nodes(op="placeholder"), values, strict=True))
    (output,) = graph.find_nodes(op="output")
    todo = [output]
    while todo:
        node = todo[-1]
        needed = _needed(node, known)
        missing = [n for n in needed if n not in known]
        if missing:
            todo += reversed(missing)
        elif todo.pop() not in known:
            known[node] = _value(node, known)
    return known[output]


def _needed(node: fx.Node, known: dict[fx.Node, Any]) -> list[fx.Node]:
    if node in known:
        return []
    if node.target is not select:
        return node.all_input_nodes
    predicate: Any = node.args[0]
    return [predicate, *_arm(node, known)] if predicate in known else [predicate]


def _arm(node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    predicate, taken, other = node.args
    return taken if known[predicate] else other  # type: ignore[index]


def _value(node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    if node.target is select:
        return tuple(known[n] for n in _arm(node, known))
    args, kwargs = fx.map_arg((node.args, node.kwargs), known.__getitem__)
    if node.op == "output":
        return args[0]
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)


def _raise(error: list[BaseException], sink: Sink) -> Any:
    """Raise the error out of frames that carry the names and lines of the user's frames."""
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
