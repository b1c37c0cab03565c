"""The text of an epilogue's operations, in what Triton and Gluon call the same.

What can be one function of a logistic is written as one; see ``special_functions.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from fusepass.fusion.kernel_ir.epilogue import (
    Argument,
    Epilogue,
    EpilogueOperand,
    EpilogueStep,
    Output,
    to_float32,
)
from fusepass.kernels.codegen.special_functions import finest_dtype, special_functions

_HELPERS = '''\
@triton.jit
def _reciprocal(x):
    """1 / x for x of at least 1, by one instruction in place of a division"""
    return $reciprocal


@triton.jit
def _logistic(t):
    """1 / (1 + 2**-t)"""
    return _reciprocal(1.0 + tl.exp2(-t))


@triton.jit
def _sum(a, b):
    return a + b


@triton.jit
def _max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _place(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Row and column of a tile: columns of GROUP rows of tiles, which share their weights in L2."""
    in_group = GROUP * tiles_n
    first = (tile // in_group) * GROUP
    size = min(tiles_m - first, GROUP)
    return first + (tile % in_group) % size, (tile % in_group) // size
'''

_RECIPROCAL = """tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )"""

PLAIN = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
}
"""What is written alike in Python and in C++."""

EXPRESSIONS = PLAIN | {
    "abs": "tl.abs({0})",
    "exp": "_exp({0})",
    "expm1": "_expm1({0})",
    "log": "tl.log({0})",
    "log1p": "_log1p({0})",
    "sqrt": "tl.sqrt({0})",
    "rsqrt": "tl.rsqrt({0})",
    "reciprocal": "1.0 / {0}",
    "erf": "_erf({0})",
    "tanh": "_tanh({0})",
    "sigmoid": "_sigmoid({0})",
    "relu": "tl.maximum({0}, 0.0, propagate_nan=tl.PropagateNan.ALL)",
    "maximum": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "minimum": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "where": "tl.where({0}, {1}, {2})",
    "logical_not": "{0} == 0",
    "logical_and": "({0} != 0) & ({1} != 0)",
    "logical_or": "({0} != 0) | ({1} != 0)",
}


def helpers(*epilogues: Epilogue, in_single: bool = False) -> str:
    """The functions that these epilogues, and kernels, call.

    Args:
        epilogues: all that a kernel computes.
        in_single: whether their products may be in single precision, see ``special_functions.py``.
    """
    text = _HELPERS.replace("$reciprocal", "1.0 / x" if uses_interpreter() else _RECIPROCAL)
    return f"{text}\n\n{special_functions(finest_dtype(epilogues), in_single)}"


def uses_interpreter() -> bool:
    """Whether Triton's kernels run in its interpreter, which knows no inline assembly."""
    import triton

    return bool(triton.knobs.runtime.interpret)


def parameters(epilogue: Epilogue) -> Iterator[str]:
    """Parameters of a kernel for its epilogue's operands and outputs."""
    for i, operand in enumerate(epilogue.operands):
        yield f"p{i}"
        if operand.kind == "full":
            yield f"s{i}"
    for i in range(len(epilogue.outputs)):
        yield f"o{i}"


def epilogue_parts(
    epilogue: Epilogue, loads: Mapping[int, str] = MappingProxyType({})
) -> tuple[list[str], list[str]]:
    """The lines that compute an epilogue, and its outputs' values, for ``rows`` and ``columns``.

    The products are ``v0`` and, of a pair, ``v1``; sizes ``M`` and ``N``; pointers and strides as
    :func:`parameters` names them.

    Args:
        epilogue: of any operations.
        loads: how some of the operands are read, by number; the others by plain loads.
    """
    lines = [
        "inside = (rows < M)[:, None] & (columns < N)[None, :]",
        "at = rows.to(tl.int64)[:, None]",
    ]
    known = epilogue.products
    for i, operand in enumerate(epilogue.operands):
        lines.append(f"v{known} = {loads.get(i) or _load(i, operand)}")
        known += 1
    for step in epilogue.steps:
        lines.append(f"v{known} = {expression(epilogue, step)}")
        known += 1
    return lines, [value_text(output.value) for output in epilogue.outputs]


def reduction(i: int, output: Output, value: str, piece: str = "n") -> list[str]:
    """The lines that reduce a value of a tile and store one row of partial results.

    Partial results lie as (tiles, results): that of the ``m``-th tile of rows for each column, of
    the ``piece``-th piece of columns for each row.
    """
    neutral = "0.0" if output.by == "sum" else 'float("-inf")'
    axis, at, results = (0, "m", "N") if output.over == "rows" else (1, piece, "M")
    place = "columns" if output.over == "rows" else "rows"
    # Only what is reduced along needs a bound: other results are not stored.
    within = "(rows < M)[:, None]" if output.over == "rows" else "(columns < N)[None, :]"
    whole = f"tl.where({within}, {value}, {neutral})"
    return [
        f"r{i} = tl.reduce({whole}, {axis}, _{output.by})",
        f"tl.store(o{i} + {at}.to(tl.int64) * {results} + {place}, r{i}, mask={place} < {results})",
    ]


def expression(epilogue: Epilogue, step: EpilogueStep) -> str:
    """One operation; what is left without a use the compiler takes out."""
    half = _half_of(epilogue, step)
    if half is not None:
        return f"2.0 * {half}"
    slope = _slope_of_tanh(epilogue, step)
    if slope is not None:
        return slope
    if step.op == "mul":
        rest = _gelu(epilogue, step.args)
        if rest is not None:
            return rest
    below = _operation_of(epilogue, step.args[1]) if step.op == "div" else None
    if below is not None and below.op == "add" and 1.0 in below.args:
        added = [_operation_of(epilogue, arg) for arg in below.args]
        if [inner.op for inner in added if inner is not None] == ["exp"]:  # x / (1 + exp(-x))
            return f"{value_text(step.args[0])} * _reciprocal({value_text(step.args[1])})"
    return EXPRESSIONS[step.op].format(*map(value_text, step.args))


def _gelu(epilogue: Epilogue, factors: tuple[Argument, ...]) -> str | None:
    """``x * half`` where the factors are x, 0.5 and ``1 + erf(z)``, two of them a product."""
    for one, other in (factors, factors[::-1]):
        inner = _operation_of(epilogue, other)
        if inner is None or inner.op != "mul":
            continue
        three = (one, *inner.args)
        halves = [
            half for arg in three if (half := _half_of(epilogue, _operation_of(epilogue, arg)))
        ]
        named = [arg for arg in three if _half_of(epilogue, _operation_of(epilogue, arg)) is None]
        if len(halves) == 1 and 0.5 in named:
            named.remove(0.5)
            return f"{value_text(named[0])} * {halves[0]}"
    return None


def _half_of(epilogue: Epilogue, step: EpilogueStep | None) -> str | None:
    """Half of ``1 + erf(z)`` or ``1 + tanh(z)``, which needs no care near 0; else None."""
    if step is None or step.op != "add" or 1.0 not in step.args:
        return None
    for inner in (_operation_of(epilogue, arg) for arg in step.args):
        if inner is not None and inner.op in ("erf", "tanh"):
            scale = math.sqrt(2) if inner.op == "erf" else 2 * math.log2(math.e)
            scaled = _scaled(epilogue, inner.args[0], scale)
            return f"_{'normal' if inner.op == 'erf' else 'logistic'}({scaled})"
    return None


def _slope_of_tanh(epilogue: Epilogue, step: EpilogueStep) -> str | None:
    """``1 - tanh(z)²`` by the logistic that ``1 + tanh(z)`` is, too: the compiler computes it once.

    Both stand in the derivative of GELU (tanh).
    """
    if step.op != "sub" or step.args[0] != 1.0:
        return None
    square = _operation_of(epilogue, step.args[1])
    if square is None or square.op != "mul" or square.args[0] != square.args[1]:
        return None
    inner = _operation_of(epilogue, square.args[0])
    if inner is None or inner.op != "tanh":
        return None
    scaled = _scaled(epilogue, inner.args[0], 2 * math.log2(math.e))
    half = f"_logistic({scaled})"
    # In single precision 1 - half is 0 once half rounds to 1; the exact rest is not.
    rest = (
        f"_logistic(-({scaled}))" if finest_dtype((epilogue,)) == "float32" else f"(1.0 - {half})"
    )
    return f"4.0 * {half} * {rest}"


def _scaled(epilogue: Epilogue, arg: Argument, scale: float) -> str:
    """A value times a constant, in the fewest operations if it is a polynomial of at most x³."""
    base, powers = _polynomial(epilogue, arg)
    first, third = powers.get(1, 0.0) * scale, powers.get(3, 0.0) * scale
    kept = _normal_in_single(first) and _normal_in_single(third)
    if kept and third and set(powers) == {1, 3}:
        return f"{base} * ({first!r} + {base} * {base} * {third!r})"
    if kept and set(powers) == {1}:
        return base if math.isclose(first, 1.0) else f"{base} * {first!r}"
    return f"{value_text(arg)} * {scale!r}"


def _polynomial(epilogue: Epilogue, arg: Argument, depth: int = 6) -> tuple[str, dict[int, float]]:
    """A value as a polynomial of another one: its name and coefficients by power.

    A value that other operations than sums and products compute, or whose power would exceed 3, is
    itself the variable.
    """
    if not isinstance(arg, str):
        return "", {0: float(arg)}
    itself = value_text(arg), {1: 1.0}
    step = _operation_of(epilogue, arg)
    if step is None or step.op not in ("add", "mul") or not depth:
        return itself
    parts = [_polynomial(epilogue, part, depth - 1) for part in step.args]
    (one, left), (other, right) = parts
    found: dict[int, float] = {}
    if one and other and one != other:
        return itself
    if step.op == "add":
        factors = [factor for of in (left, right) for power, factor in of.items() if power]
        if 0 in factors or len({factor > 0 for factor in factors}) > 1:
            return itself  # far out it is NaN, or a difference of infinities: no product is
        for power in left.keys() | right.keys():
            found[power] = left.get(power, 0.0) + right.get(power, 0.0)
    else:
        for power, factor in left.items():
            for more, by in right.items():
                found[power + more] = found.get(power + more, 0.0) + factor * by
    bounded = max(found) <= 3 and all(map(_normal_in_single, found.values()))
    return (one or other, found) if bounded else itself


def _normal_in_single(number: float) -> bool:
    """Whether a factor is 0, or kept by single precision: two that are not may have no effect."""
    return number == 0 or 2.0**-126 <= abs(number) < 2.0**128


def _operation_of(epilogue: Epilogue, arg: Argument) -> EpilogueStep | None:
    """The operation that gives an argument."""
    first = epilogue.products + len(epilogue.operands)
    index = int(arg[1:]) - first if isinstance(arg, str) else -1
    return epilogue.steps[index] if index >= 0 else None


def _load(i: int, operand: EpilogueOperand) -> str:
    place, mask, shape = {
        "row": (f"p{i} + columns", "columns < N", "[None, :]"),
        "column": (f"p{i} + rows", "rows < M", "[:, None]"),
        "full": (f"p{i} + at * s{i} + columns[None, :]", "inside", ""),
        "scalar": (f"p{i}", "", ""),
    }[operand.kind]
    masked = f", mask={mask}, other=0" if mask else ""
    kind = "tl.int1" if operand.dtype == "bool" else "tl.float32"
    return f"tl.load({place}{masked}).to({kind}){shape}"


def value_text(arg: Argument) -> str:
    """An argument of a step: the name of a value, or a number."""
    if isinstance(arg, str):
        return f"v{arg[1:]}"
    if isinstance(arg, bool):
        return repr(arg)
    arg = to_float32(arg)
    if arg != arg or abs(arg) == float("inf"):
        return f'float("{arg!r}")'
    return repr(float(arg))
