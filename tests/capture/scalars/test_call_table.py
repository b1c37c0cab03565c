"""A tensor in place of a number: eager's bits for every dtype, or the number is kept where it raises."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from fusepass.report.decision import Reason
from tests.graph.number_graph import DTYPES, operands, replaced, same_bits, values_of

SHAPES = ((37,), (), (3, 5))


def mask(x: Tensor) -> Tensor:
    return torch.eq(x, x)


def called(function: Any, anchor: Any, *args: Any, **kwargs: Any) -> Any:
    """A call of what has no way to record itself."""
    if isinstance(anchor, fx.Proxy):
        return anchor.tracer.create_proxy("call_function", function, args, kwargs)
    return function(*args, **kwargs)


def tensor_of(anchor: Any, *args: Any, **kwargs: Any) -> Any:
    """``torch.tensor`` in eager mode; Dynamo records it as its reference, which checks more."""
    if isinstance(anchor, fx.Proxy):
        return called(torch._refs.tensor, anchor, *args, **kwargs)
    return torch.tensor(*args, **kwargs)


def stored(x: Tensor, s: float, index: Any) -> Tensor:
    y = x.clone()
    called(operator.setitem, x, y, index, s)
    return y


def in_place(name: str, **kwargs: Any) -> Callable[..., Tensor]:
    def call(x: Tensor, s: float) -> Tensor:
        y = x.clone()
        return getattr(y, name)(s, **kwargs)  # type: ignore[no-any-return]

    return call


USES: dict[str, Callable[..., Any]] = {
    "x + s": operator.add,
    "s + x": lambda x, s: operator.add(s, x),
    "x - s": operator.sub,
    "s - x": lambda x, s: operator.sub(s, x),
    "rsub": torch.rsub,
    "x * s": operator.mul,
    "s * x": lambda x, s: operator.mul(s, x),
    "x / s": operator.truediv,
    "s / x": lambda x, s: operator.truediv(s, x),
    "x // s": operator.floordiv,
    "s // x": lambda x, s: operator.floordiv(s, x),
    "x % s": operator.mod,
    "s % x": lambda x, s: operator.mod(s, x),
    "s ** x": lambda x, s: operator.pow(s, x),
    "fmod": lambda x, s: torch.fmod(x, s),
    "div floor": lambda x, s: torch.div(x, s, rounding_mode="floor"),
    "div trunc": lambda x, s: x.div(s, rounding_mode="trunc"),
    "add alpha=2": lambda x, s: torch.add(x, s, alpha=2),
    **{f"{n}(x, s)": getattr(operator, n) for n in ("eq", "ne", "lt", "le", "gt", "ge")},
    "s < x": lambda x, s: operator.lt(s, x),
    **{f"{n}(x, s)": getattr(operator, n) for n in ("and_", "or_", "xor", "lshift", "rshift")},
    "s & x": lambda x, s: operator.and_(s, x),
    "add_": in_place("add_"),
    "sub_": in_place("sub_"),
    "mul_": in_place("mul_"),
    "div_": in_place("div_"),
    "floor_divide_": in_place("floor_divide_"),
    "remainder_": in_place("remainder_"),
    "fmod_": in_place("fmod_"),
    "lt_": in_place("lt_"),
    "imul": lambda x, s: called(operator.imul, x, x.clone(), s),
    "isub": lambda x, s: called(operator.isub, x, x.clone(), s),
    "itruediv": lambda x, s: called(operator.itruediv, x, x.clone(), s),
    "masked_fill": lambda x, s: x.masked_fill(mask(x), s),
    "fill_": in_place("fill_"),
    "x[...] = s": lambda x, s: stored(x, s, Ellipsis),
    "x[mask] = s": lambda x, s: stored(x, s, mask(x)),
    "where(c, x, s)": lambda x, s: torch.where(mask(x), x, s),
    "where(c, s, x)": lambda x, s: torch.where(mask(x), s, x),
    "x.where(c, s)": lambda x, s: x.where(mask(x), s),
    "where(c, s, 2)": lambda x, s: torch.where(mask(x), s, 2.0),
    "full_like": lambda x, s: torch.full_like(x, s),
    "new_full": lambda x, s: x.new_full((2, 3), s),
    "full": lambda x, s: torch.full((3,), s),
    "full dtype": lambda x, s: torch.full((3,), s, dtype=torch.int8),
    "scalar_tensor": lambda x, s: torch.scalar_tensor(s),
    "refs.tensor": lambda x, s: tensor_of(x, [s, 1], dtype=torch.float32),
    "lerp": lambda x, s: torch.lerp(x, x.neg(), s),
    "addcmul": lambda x, s: torch.addcmul(x, x, x.neg(), value=s),
    "addcdiv": lambda x, s: torch.addcdiv(x, x, x.neg(), value=s),
    "add alpha=s": lambda x, s: torch.add(x, x.flip(-1), alpha=s),
    "sub alpha=s": lambda x, s: torch.sub(x, x.flip(-1), alpha=s),
    "x ** s": operator.pow,
    "pow_": in_place("pow_"),
    "leaky_relu": lambda x, s: torch.nn.functional.leaky_relu(x, s),
    "index_fill": lambda x, s: x.reshape(-1).index_fill(
        0, called(torch.zeros, x, 1, dtype=torch.int64), s
    ),
    "copysign": lambda x, s: torch.copysign(x, s),
    "copysign_": in_place("copysign_"),
    "xlogy": lambda x, s: torch.xlogy(x, s),
    "xlogy from the left": lambda x, s: torch.special.xlogy(s, x),
    "xlogy_": in_place("xlogy_"),
    "xlog1py": lambda x, s: torch.special.xlog1py(x, s),
    "xlog1py from the left": lambda x, s: torch.special.xlog1py(s, x),
    "zeta": lambda x, s: torch.special.zeta(x, s),
    "zeta from the left": lambda x, s: torch.special.zeta(s, x),
    "isin": lambda x, s: torch.isin(x, s),
    "isin inverted": lambda x, s: torch.isin(elements=x, test_element=s, invert=True),
    "float_power": lambda x, s: torch.float_power(x, s),
    "float_power from the left": lambda x, s: torch.float_power(s, x),
    "float_power_": in_place("float_power_"),
    "clamp max": lambda x, s: x.clamp(max=s),
    "clamp min": lambda x, s: torch.clamp(x, s),
    "clamp both": lambda x, s: torch.clamp(x, -1, s),
    "clamp_": lambda x, s: x.clone().clamp_(min=s),
    "clamp_max": lambda x, s: torch.clamp_max(x, s),
}
# Eager's clamp gives a zero or a minus zero of the two, by their position.
EITHER_ZERO = ("clamp max", "clamp min", "clamp both", "clamp_", "clamp_max")


POWERS = ("x ** s", "pow", "pow_")


def outcomes(function: Callable[..., Any], x: Tensor, source: torch.dtype) -> list[Any]:
    """What eager gives for each number of a dtype: a tensor, or an exception."""
    found: list[Any] = []
    for t in values_of(source):
        try:
            found.append(function(x.clone(), t.item()))
        except (RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
            found.append(error)
    return found


def raised(function: Callable[..., Any], x: Tensor, source: torch.dtype) -> list[Any]:
    """Types and texts of what a function raises for each number of a dtype, or a graph for each."""
    graph = isinstance(function, fx.GraphModule)
    found: list[Any] = []
    for t in values_of(source):
        try:
            found.append(function(x.clone(), t if graph else t.item()))
        except (RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
            found.append((type(error), str(error)))
    return found


# Kept although eager raises for no number: a negative one wraps, or only CUDA checks.
KEPT_TO_BE_SAFE = (torch.uint8, torch.float16, torch.bfloat16)
EVERYDAY = (torch.bool, torch.int8, torch.int64, torch.float16, torch.float32)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", USES)
def test_bits_of_eager(name: str) -> None:
    check(name, EVERYDAY)


@pytest.mark.slow
@pytest.mark.parametrize("name", USES)
def test_bits_of_eager_from_every_dtype(name: str) -> None:
    check(name, tuple(dtype for dtype in DTYPES if dtype not in EVERYDAY))


def check(name: str, sources: tuple[torch.dtype, ...]) -> None:
    """Where eager raises for a number of the dtype the number is kept, and mostly only there."""
    function, replacements = USES[name], 0
    for dtype, source in itertools.product((*DTYPES, torch.complex64), sources):
        for shape in SHAPES if source is torch.float32 else SHAPES[:1]:
            x = operands(dtype, shape)
            expected = outcomes(function, x, source)
            failed = [e for e in expected if isinstance(e, Exception)]
            try:
                made = replaced(function, x, torch.zeros((), dtype=source))
            except Exception:  # noqa: BLE001  # neither can Dynamo trace it
                continue
            if len(failed) == len(expected):  # for any number of the kind, or for this tensor
                assert made.kept or raised(made.gm, x, source) == raised(function, x, source)
                continue
            if made.kept:
                assert made.reads == 1
                safe = dtype in KEPT_TO_BE_SAFE or torch.bool in (dtype, source)
                safe |= made.kept[0].code is Reason.INEXACT or dtype.is_complex
                # torch 2.15 bounds a tensor of 8 bits from above by what it does not hold
                safe |= dtype is torch.int8 and name.startswith("clamp")
                safe |= name == "sub alpha=s"  # the smallest integer, negated, wraps
                assert failed or safe, (dtype, source, made.kept)
                continue
            assert not failed, (dtype, source, failed[0])
            assert made.reads == 0
            replacements += 1
            for t, eager in zip(values_of(source), expected, strict=True):
                if name in POWERS and not t.is_floating_point() and abs(t.item()) > 2**24:
                    continue  # the vector code of eager rounds the exponent, the rest does not
                mine = made.gm(x.clone(), t)
                assert same_bits(mine, eager, zeros=name not in EITHER_ZERO), (
                    (dtype, source, shape, t),
                    mine,
                    eager,
                )
    assert replacements or name == "full dtype"  # numbers of 8 bits only: the everyday ones


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.is_floating_point], ids=str)
def test_the_sign_of_not_a_number(dtype: torch.dtype) -> None:
    """``copysign`` shows the sign of a NaN, which other comparisons let pass."""
    x = operands(dtype, (37,))
    for t in (torch.tensor(sign * math.nan) for sign in (1, -1)):
        made = replaced(USES["copysign"], x, t)
        assert not made.kept
        eager = torch.copysign(x, t.item())
        assert torch.equal(made.gm(x, t).signbit(), eager.signbit())


def near_misses() -> dict[str, tuple[Callable[..., Any], torch.dtype, Reason]]:
    floating, whole = torch.float32, torch.int64
    return {
        "returned": (lambda x, s: s, floating, Reason.PYTHON_VALUE),
        "a slice": (lambda x, n: x[:n], whole, Reason.SIZE),
        "an index and a value": (lambda x, n: stored(x, n, n), whole, Reason.SIZE),
        "a size": (lambda x, n: called(torch.full, x, (n,), 1.0), whole, Reason.SIZE),
        "no tensor form": (
            lambda x, s: torch.nn.functional.softplus(x, s),
            floating,
            Reason.PYTHON_VALUE,
        ),
        "isin of the number": (lambda x, s: torch.isin(s, x), floating, Reason.PYTHON_VALUE),
        "float_power, with its gradient": (
            lambda x, s: torch.float_power(x.requires_grad_(), s),
            floating,
            Reason.INEXACT,
        ),
        "an exponent, with its gradient": (
            lambda x, s: x.requires_grad_() ** s,
            floating,
            Reason.INEXACT,
        ),
        "alpha beside bfloat16": (
            lambda x, s: torch.add(x.bfloat16(), x.bfloat16(), alpha=s),
            floating,
            Reason.INEXACT,
        ),
        "an exponent of float16": (lambda x, s: x.half() ** s, floating, Reason.INEXACT),
        "both sides": (lambda x, s: torch.add(x, s, alpha=s), floating, Reason.PYTHON_VALUE),
        "integers divided by zero": (lambda x, n: x.int() // n, whole, Reason.PARTIAL_OP),
        "a fill that overflows": (
            lambda x, n: x.to(torch.int8).fill_(n),
            whole,
            Reason.OVERFLOW,
        ),
    }


@pytest.mark.parametrize("what", near_misses())
def test_kept(what: str) -> None:
    function, dtype, reason = near_misses()[what]
    made = replaced(function, torch.ones(6), torch.ones((), dtype=dtype))
    assert [why.code for why in made.kept] == [reason]
    assert made.kept[0].text
    assert made.reads == 1


def test_written_afterwards() -> None:
    """The number is what it was where it was read."""

    def function(x: Tensor, s: float) -> Tensor:
        return x * s

    for write in (lambda t: t.add_(1), lambda t: t.reshape(1).mul_(3)):
        made = written(function, write)
        t = torch.tensor(2.0)
        assert torch.equal(made.gm(torch.ones(3), t), torch.full((3,), 2.0))


def written(function: Callable[..., Any], write: Callable[..., Any]) -> Any:
    def program(x: Any, s: Any) -> Any:
        source = next(iter(s.node.args))
        write(fx.Proxy(source, s.tracer))
        return function(x, s)

    return replaced(program, torch.ones(3), torch.tensor(2.0))
