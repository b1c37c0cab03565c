"""An epilogue as a plain value: the pointwise operations on a GEMM's result before it is stored.

It is a straight line of operations on numbers, the same for every element. It knows neither graphs
nor kernels: ``fusion/gemm/grow.py`` makes one of an FX region, ``kernels/gemm/triton_source.py``
writes it as Triton, and :func:`evaluate`, the reference for both, computes it with torch.

Everything is computed in fp32, whatever the dtypes of the graph. Rounding to a half type between
two operations is left out, as Inductor does inside a kernel.

For a function of one number it also says whether that function is monotone: the maximum of its
results is then its result for the maximum.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

Argument = str | float | bool
"""``"%3"`` for the value of that number, or a constant."""

# Operation to its meaning. A value is fp32, or a truth value.
OPERATIONS: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {
        "add": torch.add,
        "sub": torch.sub,
        "mul": torch.mul,
        "div": torch.div,
        "neg": torch.neg,
        "abs": torch.abs,
        "exp": torch.exp,
        "expm1": torch.expm1,
        "log": torch.log,
        "log1p": torch.log1p,
        "sqrt": torch.sqrt,
        "rsqrt": torch.rsqrt,
        "reciprocal": torch.reciprocal,
        "erf": torch.erf,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "relu": torch.relu,
        "maximum": torch.maximum,
        "minimum": torch.minimum,
        "where": torch.where,
        "eq": torch.eq,
        "ne": torch.ne,
        "lt": torch.lt,
        "le": torch.le,
        "gt": torch.gt,
        "ge": torch.ge,
        "logical_not": torch.logical_not,
        "logical_and": torch.logical_and,
        "logical_or": torch.logical_or,
    }
)

REDUCTIONS: Mapping[str, Callable[[Tensor, int], Tensor]] = MappingProxyType(
    {"sum": torch.sum, "max": torch.amax}
)


@dataclass(frozen=True)
class EpilogueOperand:
    """What an element reads besides the product.

    Attributes:
        kind: ``row`` for one number per column of the product (a bias), ``column`` for one per
            row, ``full`` for one per element, ``scalar`` for one in all.
        dtype: a floating dtype or ``bool``, without ``torch.``.
    """

    kind: str
    dtype: str


@dataclass(frozen=True)
class EpilogueStep:
    """One operation: its name in :data:`OPERATIONS` and what it is given."""

    op: str
    args: tuple[Argument, ...]


@dataclass(frozen=True)
class Output:
    """A value that is stored, or reduced and then stored.

    Attributes:
        value: its number.
        dtype: as which it is stored, without ``torch.``; of what is reduced, ``float32``.
        over: ``rows`` where there is one result for each column (the gradient of a bias),
            ``columns`` where there is one for each row; else empty.
        by: how it is reduced, ``sum`` or ``max``.
    """

    value: str
    dtype: str
    over: str = ""
    by: str = "sum"


@dataclass(frozen=True)
class Epilogue:
    """Values are numbered: the products first, then the operands, then the steps in order.

    Attributes:
        products: how many there are: 1, or 2 for a gated pair; 0 where nothing is multiplied.
        operands: what is read besides.
        steps: the operations.
        outputs: what is stored, each of the size of one product; then what is reduced.
    """

    products: int
    operands: tuple[EpilogueOperand, ...]
    steps: tuple[EpilogueStep, ...]
    outputs: tuple[Output, ...]

    def text(self) -> str:
        """As JSON on one line: equal for equal epilogues."""
        record = asdict(self)
        for output in record["outputs"]:
            if not output["over"]:
                del output["over"], output["by"]
        return json.dumps(record, separators=(",", ":"), default=repr)

    @property
    def stored(self) -> tuple[Output, ...]:
        """The outputs that have an element for each of a product's."""
        return tuple(output for output in self.outputs if not output.over)

    @property
    def reduced(self) -> tuple[Output, ...]:
        """The other ones."""
        return tuple(output for output in self.outputs if output.over)

    def unscaled(self) -> Epilogue:
        """Without the steps that come first and scale each product; of one that has them.

        It is what is left to do behind products of an x that was scaled before. The first operand,
        by which they are scaled, is left out if nothing else reads it.
        """
        scale, first = self.products, self.products + len(self.operands)
        rest = self.steps[self.products :]
        read = {arg for step in rest for arg in step.args} | {out.value for out in self.outputs}
        kept = self.operands if f"%{scale}" in read else self.operands[1:]
        fewer = len(self.operands) - len(kept)

        def value(arg: Argument) -> Argument:
            if not isinstance(arg, str) or int(arg[1:]) < scale:
                return arg
            number = int(arg[1:])
            if number < first:
                return f"%{number - fewer}"
            step = number - first
            return f"%{step if step < self.products else number - self.products - fewer}"

        return replace(
            self,
            operands=kept,
            steps=tuple(EpilogueStep(step.op, tuple(map(value, step.args))) for step in rest),
            outputs=tuple(
                replace(output, value=str(value(output.value))) for output in self.outputs
            ),
        )


def parse(text: str) -> Epilogue:
    """The inverse of :meth:`Epilogue.text`.

    Raises:
        ValueError: it is no such text, or names an operation or a value there is not.
    """
    try:
        record = json.loads(text)
        found = Epilogue(
            int(record["products"]),
            tuple(EpilogueOperand(**one) for one in record["operands"]),
            tuple(EpilogueStep(one["op"], tuple(one["args"])) for one in record["steps"]),
            tuple(Output(**one) for one in record["outputs"]),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"not an epilogue: {text!r}") from error
    if not all(
        (one.over or "rows") in ("rows", "columns") and one.by in REDUCTIONS
        for one in found.outputs
    ):
        raise ValueError(f"a malformed output in an epilogue: {found.outputs}")
    known = found.products + len(found.operands)
    for position, step in enumerate(found.steps):
        used = [int(arg[1:]) for arg in step.args if isinstance(arg, str)]
        if step.op not in OPERATIONS or any(one >= known + position for one in used):
            raise ValueError(f"a malformed step in an epilogue: {step}")
    return found


def evaluate(
    epilogue: Epilogue, products: Sequence[Tensor], operands: Sequence[Tensor]
) -> list[Tensor]:
    """Compute an epilogue with torch.

    Args:
        epilogue: with as many products and operands as are given.
        products: each (M, N), of fp32 or fp64, which is kept; of none, all is fp32.
        operands: broadcastable to (M, N); of no products, to each other.

    Returns:
        The outputs, contiguous, in their dtypes; what is reduced as one row.
    """
    first = products[0] if products else operands[0]
    wide = first.dtype if products else torch.float32
    shape = torch.broadcast_shapes(*(one.shape for one in products or operands))
    values = [*products, *(o if o.dtype == torch.bool else o.to(wide) for o in operands)]

    def value(arg: Argument) -> Tensor:
        if isinstance(arg, str):
            return values[int(arg[1:])]
        kind = torch.bool if isinstance(arg, bool) else wide
        if wide is torch.float32:
            arg = to_float32(arg)
        # Filled on the device: a copy from the host could not be part of a CUDA graph.
        return torch.full((), arg, dtype=kind, device=first.device)

    for step in epilogue.steps:
        made = OPERATIONS[step.op](*map(value, step.args))
        values.append(made)

    def stored(out: Output) -> Tensor:
        whole = value(out.value).expand(shape)
        if out.over:
            whole = REDUCTIONS[out.by](whole, 0 if out.over == "rows" else 1)[None]
        return whole.to(getattr(torch, out.dtype)).contiguous()

    return list(map(stored, epilogue.outputs))


def to_float32(number: float) -> float:
    """A number, or infinity where that is its nearest in single precision."""
    try:
        struct.pack("<f", number)
    except OverflowError:
        return math.copysign(math.inf, number)
    return number


def is_constant(value: Any) -> bool:
    """Whether a number can stand in an epilogue's text: JSON's infinities and NaN included."""
    return isinstance(value, (int, float)) and not (isinstance(value, int) and abs(value) > 2**53)


_LARGE = 1e38  # what is smaller is finite in fp32, and so is one over it


def is_monotone(body: Epilogue) -> bool:
    """Whether a function never gives less for more, also in floating point, and NaN for NaN alone.

    Then the maximum of what it gives is what it gives for the maximum: each window has a pixel, as
    padding is at most half of it. Where it makes numbers equal (0 and -0, say) another one of
    them may be taken. Sums with a finite number and products with a positive one are monotone
    because rounding is.
    """
    previous = "%0"
    for number, step in enumerate(body.steps, start=1):
        if not _keeps_order(step, previous):
            return False
        previous = f"%{number}"
    return body.outputs[0].value == previous


def _keeps_order(step: EpilogueStep, previous: str) -> bool:
    if step.op == "relu":
        return step.args == (previous,)
    if len(step.args) != 2 or step.args[0] != previous:
        return False
    number = step.args[1]
    if isinstance(number, (bool, str)) or not abs(number) < _LARGE:
        return False
    scales = step.op in ("mul", "div") and number > 1 / _LARGE
    return scales or step.op in ("maximum", "minimum", "add", "sub")


def depends_on_zero_sign(body: Epilogue) -> bool:
    """Whether 0 and -0 may give different numbers."""
    return any(
        step.op in ("reciprocal", "rsqrt") or (step.op == "div" and isinstance(step.args[1], str))
        for step in body.steps
    )


def compose(first: Epilogue, second: Epilogue) -> Epilogue:
    """One function after the other, both of one product."""
    count = len(first.steps)

    def moved(arg: Argument) -> Argument:
        if not isinstance(arg, str):
            return arg
        return first.outputs[0].value if arg == "%0" else f"%{int(arg[1:]) + count}"

    steps = (EpilogueStep(step.op, tuple(map(moved, step.args))) for step in second.steps)
    output = Output(str(moved(second.outputs[0].value)), second.outputs[0].dtype)
    return Epilogue(1, (), (*first.steps, *steps), (output,))
