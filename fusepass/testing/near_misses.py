"""Near misses: a pattern's own operations with one of them changed.

Whether a rule fires on one does not matter, only that the result stays right: a rule that fires
although a constant, a variant or an operand differs computes something else.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name

from fusepass.testing.program_text import literal

_SIBLINGS = {
    "add": "sub", "sub": "add", "mul": "add", "div": "mul", "exp": "expm1", "log": "log1p",
    "sum": "mean", "mean": "sum", "amax": "amin", "amin": "amax", "max": "min", "min": "max",
    "sigmoid": "tanh", "tanh": "sigmoid", "relu": "sigmoid", "softmax": "log_softmax",
    "log_softmax": "softmax", "rsqrt": "sqrt", "sqrt": "rsqrt", "erf": "tanh", "sin": "cos",
    "cos": "sin", "maximum": "minimum", "minimum": "maximum", "silu": "sigmoid", "square": "abs",
}  # fmt: skip
_KEYWORDS = {
    "gelu": ("approximate", "tanh"),
    "softmax": ("dtype", torch.float64),
    "sum": ("keepdim", True),
    "mean": ("keepdim", True),
    "var": ("correction", 0),
    "add": ("alpha", 2),
    "sub": ("alpha", 2),
}


class _Name(str):
    """A variable, where a plain string would be an argument."""

    __slots__ = ()


@dataclass(frozen=True)
class _RecordedCall:
    """One call: ``out = target(*args, **kwargs)``."""

    out: str
    target: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def line(self) -> str:
        given = [_text(value) for value in self.args]
        if self.target.startswith("."):  # a property of a tensor
            return f"{self.out} = {given[0]}{self.target}"
        given += [f"{name}={_text(value)}" for name, value in self.kwargs.items()]
        return f"{self.out} = {self.target}({', '.join(given)})"


class _Untraceable(Exception):
    """A pattern whose calls cannot be written down."""


def near_misses(
    pattern: Callable[..., Any], names: Sequence[str], inputs: Sequence[Any]
) -> list[tuple[str, list[str]]]:
    """What was changed, and lines computing it from the tensors ``names``.

    The lines assign the results to ``y0``, ``y1``, ... Sizes in them are those of ``inputs``. An
    empty list if the pattern's operations cannot be written down, or nothing in them can change.
    """
    given = [v.detach().clone() if isinstance(v, Tensor) else v for v in inputs]
    try:
        steps, results = _record(pattern, names, given)
    except Exception:  # noqa: BLE001 - patterns are anybody's code; without near misses goes on
        return []
    tensors = {n: v for n, v in zip(names, given, strict=True) if isinstance(v, Tensor)}
    lines = _lines(steps, results)
    if not _runs(lines, tensors):
        return []
    found = {tuple(lines): ""}
    for what, changed in _changed(steps, results):
        if tuple(changed) not in found and _runs(changed, tensors):
            found[tuple(changed)] = what
    return [(what, list(text)) for text, what in found.items() if what]


def _record(
    pattern: Callable[..., Any], names: Sequence[str], inputs: Sequence[Any]
) -> tuple[list[_RecordedCall], list[str]]:
    known: dict[int, str] = {}
    for name, value in zip(names, inputs, strict=True):
        if isinstance(value, Tensor):
            known[id(value)] = name
    recorder = _CallCounter(known)
    with torch.no_grad(), recorder:
        returned = pattern(*inputs)
    values = returned if isinstance(returned, (tuple, list)) else (returned,)
    return recorder.steps, [known[id(value)] for value in values]


class _CallCounter(TorchFunctionMode):
    """Writes down each call of a torch function that makes tensors."""

    def __init__(self, known: dict[int, str]) -> None:
        super().__init__()
        self.known = known
        self.steps: list[_RecordedCall] = []
        self.alive: list[Any] = []  # an id is worth something only as long as its owner lives

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.alive.append(result)
        values = result if isinstance(result, (tuple, list)) else (result,)
        if any(isinstance(value, Tensor) for value in values):
            out = f"v{len(self.steps)}"
            named = {name: self._named(value) for name, value in (kwargs or {}).items()}
            given = tuple(map(self._named, args))
            self.steps.append(_RecordedCall(out, _target(func), given, named))
            # Named only now: a call may hand its operand back.
            for index, value in enumerate(values):
                if isinstance(value, Tensor):
                    single = isinstance(result, Tensor)
                    self.known[id(value)] = out if single else f"{out}[{index}]"
        return result

    def _named(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return _Name(self.known[id(value)])
        if isinstance(value, (tuple, list)):
            return tuple(map(self._named, value))
        return value


def _target(func: Any) -> str:
    if getattr(func, "__name__", "") == "__get__":
        return f".{func.__self__.__name__}"
    name = resolve_name(func)
    if name is None and hasattr(func, "_qualified_op_name"):
        name = "torch.ops." + str(func).replace("::", ".")
    if name is None or not name.startswith("torch."):
        raise _Untraceable(str(func))
    return str(name)


def _text(value: Any) -> str:
    if isinstance(value, _Name):
        return str.__str__(value)
    if isinstance(value, tuple):
        return "(" + "".join(f"{_text(item)}, " for item in value) + ")"
    if isinstance(value, slice):
        return f"slice({_text(value.start)}, {_text(value.stop)}, {_text(value.step)})"
    if value is Ellipsis:
        return "..."
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if value is None or isinstance(value, (bool, int, float, str)):
        return literal(value)
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value)
    raise _Untraceable(repr(value))


def _lines(steps: Sequence[_RecordedCall], results: Sequence[str]) -> list[str]:
    last = [f"y{index} = {result}" for index, result in enumerate(results)]
    return [step.line() for step in steps] + last


def _runs(lines: Sequence[str], tensors: dict[str, Tensor]) -> bool:
    names: dict[str, Any] = {name: value.clone() for name, value in tensors.items()}
    try:
        with torch.no_grad():
            exec("\n".join(lines), {"torch": torch}, names)
    except Exception:  # noqa: BLE001 - most changes make a call that torch refuses
        return False
    return True


def _changed(steps: list[_RecordedCall], results: list[str]) -> Iterator[tuple[str, list[str]]]:
    for index, step in enumerate(steps):
        for what, other in _changed_step(step):
            text = _lines([*steps[:index], other, *steps[index + 1 :]], results)
            yield f"{step.target}: {what}", text
    inner = [step.out for step in steps if step.out not in results]
    for out in inner:
        done = next(i for i, step in enumerate(steps) if step.out == out) + 1
        for what, extra in (
            ("an interior value changed in place", f"{out}.mul_(2)"),
            ("an interior value detached", f"{out} = {out}.detach()"),
            ("an interior value in double precision", f"{out} = {out}.double()"),
        ):
            head, tail = _lines(steps[:done], []), _lines(steps[done:], results)
            yield f"{out}: {what}", [*head, extra, *tail]
        text = _lines(steps, results)
        yield f"{out}: an interior value with another user", [*text, f"y0 = y0 + {out}.sum()"]
        yield f"{out}: written after its use", [*text, f"{out}.zero_()"]


def _changed_step(step: _RecordedCall) -> Iterator[tuple[str, _RecordedCall]]:
    base, _, op = step.target.rpartition(".")
    plain = op.strip("_").removesuffix("_")
    if plain in _SIBLINGS:
        yield (
            "another operation",
            replace(step, target=f"{base}.{op.replace(plain, _SIBLINGS[plain])}"),
        )
    if plain in _KEYWORDS:
        name, value = _KEYWORDS[plain]
        yield f"{name}={value}", replace(step, kwargs={**step.kwargs, name: value})
    for position, value in enumerate(step.args):
        for other in _others(value):
            given = (*step.args[:position], other, *step.args[position + 1 :])
            yield f"argument {position}", replace(step, args=given)
    for name, value in step.kwargs.items():
        for other in _others(value):
            yield name, replace(step, kwargs={**step.kwargs, name: other})
        yield (
            f"{name} left out",
            replace(step, kwargs={k: v for k, v in step.kwargs.items() if k != name}),
        )
    tensors = [i for i, value in enumerate(step.args) if isinstance(value, _Name)]
    for one, other in itertools.pairwise(tensors):
        swapped = list(step.args)
        swapped[one], swapped[other] = swapped[other], swapped[one]
        yield "operands exchanged", replace(step, args=tuple(swapped))
    if len(step.args) > 2 and isinstance(step.args[-1], _Name):
        yield "an operand left out", replace(step, args=step.args[:-1])


def _others(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1] if value else [1, -1]
    if isinstance(value, float):
        return [value * 2, value + 1]
    if isinstance(value, tuple) and value and all(isinstance(v, int) for v in value):
        return [tuple(v - 1 for v in value), tuple(reversed(value))]
    if value == "tanh":
        return ["none"]
    if value == "none":
        return ["tanh"]
    return []
