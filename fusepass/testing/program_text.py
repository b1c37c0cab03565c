"""The program around a pattern, as source text: what is run, compiled, and printed on a failure.

Each program is compiled from text of its own, so that Dynamo meets new code each time and nothing
compiled before is in the way.
"""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusepass.testing.case import AFTER, AROUND, BEFORE, Case
from fusepass.testing.space import Space

_WRITES = ("written", "part written")
_FILES = itertools.count()


def source_of(case: Case, space: Space, near_miss: Sequence[str] | None, outputs: int) -> str:
    """The text of a case's program: a function ``program`` of the tensors.

    Lines of a near miss assign to ``y0``, ``y1``, ... in place of the call of ``pattern``.
    ``outputs`` is how many values the pattern returns; 0 for one that is not in a tuple.
    """
    names = [space.names[p] for p in space.tensors]
    results = [f"y{i}" for i in range(max(outputs, 1))]
    lines: list[str] = []
    for index, name in enumerate(names):
        kind = case.before[index]
        if kind in _WRITES and case.grads[index]:
            lines.append(f"{name} = {name}.clone()")
        lines += [line.format(x=name) for line in BEFORE[kind]]
    if case.after == "operand written" and names and any(case.grads):
        lines.append(f"{names[0]} = {names[0]}.clone()")
    body = list(near_miss) if near_miss is not None else [_call(case, space, results, outputs)]
    around = AROUND[case.around]
    if around:
        device = space.example[space.tensors[0]].device.type if space.tensors else "cpu"
        body = [around.format(device=device), *(f"    {line}" for line in body)]
    lines += body
    returned = list(results)
    if case.again:
        again = [f"z{i}" for i in range(len(results))]
        lines.append(_call(case, space, again, outputs))
        returned += again
    changed = results[case.output % len(results)]
    after = [line.format(x=names[0] if names else "", y=changed) for line in AFTER[case.after]]
    lines += after
    if any(line.startswith("extra") for line in after):
        returned.append("extra")
    if case.beside:
        returned += names
    lines.append(f"return ({', '.join(returned)},)")
    head = f"def program({', '.join(names)}):"
    return "\n".join([head, *(f"    {line}" for line in lines)]) + "\n"


def _call(case: Case, space: Space, results: list[str], outputs: int) -> str:
    scalars = dict(zip(space.scalars, case.scalars, strict=True))
    arguments = [
        literal(scalars[p]) if p in scalars else name for p, name in enumerate(space.names)
    ]
    left = ", ".join(results) + ("," if outputs == 1 else "")
    return f"{left} = pattern({', '.join(arguments)})"


def literal(value: Any) -> str:
    """A scalar as Python text."""
    if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
        return f'float("{value}")'
    return repr(value)


class Text:
    """A program made from text, which tracebacks and reports can quote until it is closed."""

    def __init__(self, source: str, pattern: Callable[..., Any]) -> None:
        self.file = f"<fusepass.testing program {next(_FILES)}>"
        linecache.cache[self.file] = (len(source), None, source.splitlines(True), self.file)
        names: dict[str, Any] = {"torch": torch, "pattern": pattern, "__name__": __name__}
        exec(compile(source, self.file, "exec"), names)
        self.program: Callable[..., Any] = names["program"]

    def close(self) -> None:
        """Forget the text."""
        linecache.cache.pop(self.file, None)
