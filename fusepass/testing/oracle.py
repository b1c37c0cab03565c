"""Whether a compiled program did what eager did; values by the error rule.

Everything but rounding must be equal: dtype, shape, strides, who shares memory with whom, what
was written, which gradients are None, where NaN and infinity stand, and what was raised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusepass.numerics import error_bound, half_ulp, is_float, rms, to_double
from fusepass.testing.inputs import Values
from fusepass.testing.observe import Observation

VALUES = "its value"
NOT_FINITE = "NaN or infinity"
CERTAIN = 30  # times the error allowed


@dataclass(frozen=True)
class Difference:
    """The first thing in which a compiled program differs from eager.

    Attributes:
        path: which value, as Python text over the names of the snippet: ``outputs[0]``.
        fact: what about it: ``dtype``, ``shape``, ``values``, ...; ``fault`` where the rule itself
            failed and was left out.
        eager, compiled: what eager gave and what the compiled program gave, as text; of a fault
            the latter is what is wrong.
        bound: for values, the RMS error allowed.
        values, seed: which inputs of the case show it.
        resized: whether it takes the case's second sizes, after the first.
        certain: whether it is more than bad luck with rounding could be.
    """

    path: str
    fact: str
    eager: str
    compiled: str
    bound: float | None = None
    values: Values = "normal"
    seed: int = 0
    resized: bool = False
    certain: bool = True

    def __str__(self) -> str:
        if self.fact == "fault":
            return self.compiled
        said = f"{self.path}: {self.fact} is {self.eager} in eager, {self.compiled} compiled"
        return f"{said} (RMS error above {self.bound:.3g})" if self.bound else said


@dataclass(frozen=True)
class Pair:
    """One value of a program as eager and as the compiled program computed it."""

    path: str
    eager: Tensor
    compiled: Tensor


def compare(eager: Observation, compiled: Observation) -> Difference | list[Pair]:
    """The first difference that no rounding explains, or else the pairs whose values differ.

    The pairs are for :func:`judge_values`: most programs have none, and need no exact result.
    """
    if eager.error is not None or compiled.error is not None:
        return _errors(eager.error, compiled.error) or []
    if len(eager.outputs) != len(compiled.outputs):
        one, other = str(len(eager.outputs)), str(len(compiled.outputs))
        return Difference("outputs", "their number", one, other)
    pairs: list[Pair] = []
    for index, (a, b) in enumerate(zip(eager.outputs, compiled.outputs, strict=True)):
        found = _value(f"outputs[{index}]", a, b, pairs)
        if found is not None:
            return found
    for kind, a_ids, b_ids in zip(
        ("shared memory", "identity"), eager.sharing, compiled.sharing, strict=True
    ):
        if a_ids != b_ids:
            return Difference("outputs + inputs", kind, str(a_ids), str(b_ids))
    for index, (a, b) in enumerate(zip(eager.inputs, compiled.inputs, strict=True)):
        found = _value(f"inputs[{index}]", a, b, pairs)
        if found is not None:
            return found
    return _gradients(eager, compiled, pairs) or pairs


def _errors(eager: Exception | None, compiled: Exception | None) -> Difference | None:
    same = type(eager) is type(compiled) and str(eager) == str(compiled)
    if same:
        return None
    one, other = ("nothing" if e is None else f"{type(e).__name__}: {e}" for e in (eager, compiled))
    return Difference("program", "what it raises", one, other)


def _gradients(eager: Observation, compiled: Observation, pairs: list[Pair]) -> Difference | None:
    if eager.gradients is None:  # autograd refused in eager as well: nothing to hold it against
        return None
    if compiled.gradients is None:
        return Difference("gradients", "a backward", "possible", "refused")
    for index, (a, b) in enumerate(zip(eager.gradients, compiled.gradients, strict=True)):
        path = f"gradients[{index}]"
        if a is None or b is None:
            if (a is None) != (b is None):
                one, other = ("None" if g is None else "a tensor" for g in (a, b))
                return Difference(path, "it", one, other)
            continue
        found = _facts(path, a, b, ("dtype", "shape"))
        if found is not None:
            return found
        if not _equal(a, b):
            pairs.append(Pair(path, a, b))
    return None


_FACTS: dict[str, Callable[[Tensor], Any]] = {
    "dtype": lambda t: t.dtype,
    "shape": lambda t: tuple(t.shape),
    "device": lambda t: t.device,
    "stride": lambda t: _seen_strides(t),
    "requires_grad": lambda t: t.requires_grad,
    "is_inference": lambda t: t.is_inference(),
}


def _seen_strides(tensor: Tensor) -> tuple[int, ...]:
    """Strides, 0 where a step is never taken: those say nothing about the layout."""
    if tensor.numel() == 0:
        return ()
    return tuple(
        step if size > 1 else 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )


def _facts(path: str, a: Tensor, b: Tensor, names: Sequence[str]) -> Difference | None:
    for name in names:
        one, other = _FACTS[name](a), _FACTS[name](b)
        if one != other:
            return Difference(path, name, str(one), str(other))
    return None


def _value(path: str, a: Any, b: Any, pairs: list[Pair]) -> Difference | None:
    if type(a) is not type(b):
        return Difference(path, "type", type(a).__name__, type(b).__name__)
    if not isinstance(a, Tensor):
        return None if a == b or a != a else Difference(path, "value", repr(a), repr(b))
    found = _facts(path, a, b, tuple(_FACTS))
    if found is None and not _equal(a, b):
        if not is_float(a):
            return Difference(path, VALUES, text(a), text(b), 0.0)
        pairs.append(Pair(path, a, b))
    return found


def _equal(a: Tensor, b: Tensor) -> bool:
    a, b = a.detach(), b.detach()
    return bool(((a == b) | ((a != a) & (b != b))).all())


def exact_value(path: str, exact: Observation) -> Tensor | None:
    """The value of a path in another observation of the same program."""
    if exact.error is not None:
        return None
    group, _, index = path.rstrip("]").partition("[")
    found = getattr(exact, group)
    return None if found is None else found[int(index)]


def judge_values(samples: Sequence[tuple[Pair, Tensor | None, float]]) -> Difference | None:
    """The error rule on one value of a program, over all the inputs it was run with.

    Args:
        samples: what eager and the compiled program gave, the exact value (None if float64 does
            not run, eager's then stands for it) and the least RMS error that counts as one.
    """
    errors: list[Tensor] = []
    eager_errors: list[Tensor] = []
    scale: list[Tensor] = []
    least = 0.0
    for pair, reference, floor in samples:
        exact = to_double(pair.eager if reference is None else reference).detach()
        a, b = to_double(pair.eager).detach(), to_double(pair.compiled).detach()
        wrong = _misplaced(a, b, exact)
        if wrong is not None:
            return Difference(pair.path, NOT_FINITE, *wrong)
        seen = torch.isfinite(b) & torch.isfinite(exact)
        errors.append((b - exact)[seen].abs().flatten())
        both = seen & torch.isfinite(a)
        eager_errors.append((a - exact)[both].abs().flatten())
        scale.append(exact[seen].abs().flatten())
        least = max(least, floor)
    first = samples[0][0]
    count = sum(len(one) for one in errors)
    error, eager_error = rms(torch.cat(errors)), rms(torch.cat(eager_errors))
    ulp = half_ulp(first.eager.dtype, rms(torch.cat(scale)))
    # A few numbers may all be rounded luckily in eager; of many, luck averages out. Numbers of one
    # run may share one error (that of a sum they all contain), so runs count as well.
    if len(samples) > 1:
        count = min(count, 4 * len(samples))
    bound = error_bound(ulp, max(eager_error, least), None) * (1 + 3 / math.sqrt(count or 1))
    if error <= bound:
        return None
    shown = text(first.eager), text(first.compiled)
    return Difference(first.path, VALUES, *shown, bound, certain=error > CERTAIN * bound)


def _misplaced(a: Tensor, b: Tensor, exact: Tensor) -> tuple[str, str] | None:
    """Where NaN or infinity stands in one only; finite is right where the exact value is finite."""
    same = (a == b) | (a.isnan() & b.isnan()) | (a.isfinite() & b.isfinite())
    wrong = ~(same | (exact.isfinite() & b.isfinite()))
    if not bool(wrong.any()):
        return None
    return text(a[wrong]), text(b[wrong])


def text(tensor: Tensor) -> str:
    """A tensor's values, not too many."""
    flat = tensor.detach().flatten()
    shown = ", ".join(f"{value:.6g}" for value in flat[:6].tolist())
    return f"[{shown}{', ...' if flat.numel() > 6 else ''}]"
