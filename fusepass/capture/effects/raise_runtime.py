"""Raise a sink's exception after a compiled graph has run.

Memory written behind the raise gets its contents back, the message is computed on real tensors with
eager's own operations, and the exception is raised so that its traceback ends where the program
says ``raise``.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fusepass.capture.effects.output_slots import Message, OutputSlot, Values
from fusepass.capture.nodes.raise_node import Sink
from fusepass.capture.nodes.value_recipe import evaluate


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
            with self.message.modes():
                error = evaluate(self.sink.recipe, self.message.operands(values))
        except Exception as fault:  # noqa: BLE001 - the message is the user's code
            return fault.with_traceback(None)
        return error  # type: ignore[no-any-return]


def raise_from(error: list[BaseException], sink: Sink) -> Any:
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
