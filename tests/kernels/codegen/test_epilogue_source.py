"""The text of epilogues: what is written in fewer operations, and what must not be."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fusepass.fusion.kernel_ir.epilogue import Epilogue, EpilogueStep, Output
from fusepass.kernels.codegen import epilogue_source
from fusepass.kernels.codegen.epilogue_source import epilogue_parts
from tests.kernels.gemm.test_op import GELU, GELU_TANH, QUOTIENT


def line(epilogue: Epilogue) -> str:
    """The last operation's."""
    return epilogue_parts(epilogue)[0][-1].partition(" = ")[2]


def of(*steps: EpilogueStep) -> Epilogue:
    return Epilogue(1, (), steps, (Output(f"%{len(steps)}", "bfloat16"),))


def of_single(*steps: EpilogueStep) -> Epilogue:
    return Epilogue(1, (), steps, (Output(f"%{len(steps)}", "float32"),))


def test_gelu_is_one_logistic() -> None:
    lines = epilogue_parts(GELU)[0]
    assert any(text.endswith(" = v3 * _normal(v3)") for text in lines)
    assert line(GELU_TANH).startswith("v2 * _logistic(v2 * (2.30220819")
    assert "v2 * v2 * 0.102943239" in line(GELU_TANH)


def test_silu_has_no_division() -> None:
    assert any("* _reciprocal(" in text for text in epilogue_parts(QUOTIENT)[0])


_MEANING: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "tanh": math.tanh,
    "erf": math.erf,
    "_tanh": math.tanh,
    "_erf": math.erf,
    "_logistic": lambda t: 1 / (1 + 2**-t),
    "_normal": lambda x: (1 + math.erf(x / math.sqrt(2))) / 2,
}


@pytest.mark.parametrize("op", ["tanh", "erf"])
@pytest.mark.parametrize(
    "inner",
    [
        (),
        (EpilogueStep("mul", ("%0", 3.0)),),
        (EpilogueStep("mul", ("%0", "%0")),),
        (EpilogueStep("add", ("%0", 1.0)),),
        (EpilogueStep("mul", ("%0", "%0")), EpilogueStep("mul", ("%1", "%0"))),
        (
            EpilogueStep("mul", ("%0", "%0")),
            EpilogueStep("mul", ("%1", "%0")),
            EpilogueStep("add", ("%2", "%0")),
        ),
        (EpilogueStep("mul", ("%0", "%0")), EpilogueStep("mul", ("%1", "%1"))),  # x⁴: too high
    ],
)
def test_a_polynomial_inside_is_the_same_function(op: str, inner: tuple[EpilogueStep, ...]) -> None:
    steps = (
        *inner,
        EpilogueStep(op, (f"%{len(inner)}",)),
        EpilogueStep("add", (1.0, f"%{len(inner) + 1}")),
    )
    lines = [text.partition(" = ") for text in epilogue_parts(of(*steps))[0][2:]]
    for x in (-1.5, -0.3, 0.2, 1.1):
        values, want = {"v0": x}, [x]
        for name, _, text in lines:
            values[name] = eval(text, dict(_MEANING), dict(values))
        for step in steps:
            args = [want[int(a[1:])] if isinstance(a, str) else a for a in step.args]
            want.append(_MEANING[step.op](*args))
        assert values[lines[-1][0]] == pytest.approx(want[-1], rel=1e-6, abs=1e-6)


def test_a_cubic_of_two_signs_stays() -> None:
    """Far out eager's is a difference of infinities."""
    cubic = (
        EpilogueStep("mul", ("%0", "%0")),
        EpilogueStep("mul", ("%1", "%0")),
        EpilogueStep("mul", ("%2", -0.05)),
    )
    rest = (
        EpilogueStep("add", ("%0", "%3")),
        EpilogueStep("tanh", ("%4",)),
        EpilogueStep("add", ("%5", 1.0)),
    )
    assert line(of(*cubic, *rest)).startswith("2.0 * _logistic(v4 * ")
    twice = (
        EpilogueStep("mul", ("%0", 3.0)),
        EpilogueStep("mul", ("%0", -1.0)),
        EpilogueStep("add", ("%1", "%2")),
    )
    rest = EpilogueStep("tanh", ("%3",)), EpilogueStep("add", ("%4", 1.0))
    assert line(of(*twice, *rest)).startswith("2.0 * _logistic(v3 * ")


@pytest.mark.parametrize("factors", [(0.0, -1.0), (0.0, 1.0), (-0.0, 2.0), (0.0, 0.0)])
def test_a_sum_with_a_factor_of_zero_stays(
    functions: dict[str, Any], factors: tuple[float, float]
) -> None:
    """0 times infinity is NaN, and so is the sum."""
    sums = [EpilogueStep("mul", ("%0", factor)) for factor in factors] + [
        EpilogueStep("add", ("%1", "%2"))
    ]
    for swapped in (False, True):
        steps = [sums[1], sums[0], sums[2]] if swapped else sums
        last = EpilogueStep("tanh", ("%3",)), EpilogueStep("add", ("%4", 1.0))
        x = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -1.5, 2.0])
        got = values(of(*steps, *last), functions, x)
        want = 1 + torch.tanh(x * factors[0] + x * factors[1])
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6, equal_nan=True)


def values(epilogue: Epilogue, functions: dict[str, Any], x: Tensor) -> Tensor:
    """What the text of an epilogue computes, by torch."""
    named: dict[str, Any] = {"v0": x}
    for text in epilogue_parts(epilogue)[0][2:]:
        name, _, right = text.partition(" = ")
        named[name] = eval(right, dict(functions), dict(named))
    return named[name]  # type: ignore[no-any-return]


def test_a_factor_and_its_scale_are_finite_together(functions: dict[str, Any]) -> None:
    """0 times infinity is NaN, where eager's is 1 + tanh(0)."""
    steps = (
        EpilogueStep("mul", ("%0", 3e38)),
        EpilogueStep("tanh", ("%1",)),
        EpilogueStep("add", ("%2", 1.0)),
    )
    x = torch.tensor([0.0, 1.0, -1.0])
    assert torch.equal(values(of(*steps), functions, x), 1 + torch.tanh(x * 3e38))


def test_the_slope_of_tanh_far_out(functions: dict[str, Any]) -> None:
    """In single precision it falls on both sides alike, to what is smaller than 1's last digit."""
    dtype = functions["of"]
    steps = (
        EpilogueStep("tanh", ("%0",)),
        EpilogueStep("mul", ("%1", "%1")),
        EpilogueStep("sub", (1.0, "%2")),
    )
    x = torch.linspace(-20, 20, 4001)
    got = values(Epilogue(1, (), steps, (Output("%3", dtype),)), functions, x).double()
    want = 1 / x.double().cosh().square()
    if dtype == "float32":
        torch.testing.assert_close(got, want, rtol=3e-6, atol=0)
        ends = values(of_single(*steps), functions, torch.tensor([math.inf, -math.inf, math.nan]))
        assert ends[:2].tolist() == [0, 0]
        assert ends[2].isnan()
    else:
        torch.testing.assert_close(got, want, rtol=0, atol=4e-7)


@pytest.mark.parametrize("x", [-9.0, -2.0, -1e-4, 0.0, 0.3, 1.5, 6.0])
def test_the_slope_of_tanh(functions: dict[str, Any], x: float) -> None:
    """In the derivative of GELU (tanh) it shares its logistic with 1 + tanh."""
    cubic = [
        EpilogueStep("mul", ("%0", "%0")),
        EpilogueStep("mul", ("%1", "%0")),
        EpilogueStep("mul", ("%2", 0.044715)),
    ]
    cubic += [EpilogueStep("add", ("%0", "%3")), EpilogueStep("mul", ("%4", 0.7978845608028654))]
    rest = [EpilogueStep("tanh", ("%5",)), EpilogueStep("add", ("%6", 1.0))]
    rest += [EpilogueStep("mul", ("%6", "%6")), EpilogueStep("sub", (1.0, "%8"))]
    lines = [text.partition(" = ") for text in epilogue_parts(of(*cubic, *rest))[0][2:]]
    (left, half), (_, slope) = [(name, text) for name, _, text in lines[-3::2]]
    assert half.removeprefix("2.0 * ") in slope
    assert "_tanh" not in half + slope
    values: dict[str, Any] = {"v0": torch.tensor(x)}
    for name, _, text in lines:
        values[name] = eval(text, dict(functions), dict(values))
    tanh = math.tanh(0.7978845608028654 * (x + 0.044715 * x**3))
    assert float(values[left]) == pytest.approx(1 + tanh, abs=3e-7)
    assert float(values[lines[-1][0]]) == pytest.approx(1 - tanh * tanh, abs=1e-6)


def test_what_is_no_slope_of_tanh() -> None:
    squares = of(
        EpilogueStep("tanh", ("%0",)),
        EpilogueStep("mul", ("%1", "%0")),
        EpilogueStep("sub", (1.0, "%2")),
    )
    assert line(squares) == "1.0 - v2"
    twice = of(
        EpilogueStep("tanh", ("%0",)),
        EpilogueStep("mul", ("%1", "%1")),
        EpilogueStep("sub", (2.0, "%2")),
    )
    assert line(twice) == "2.0 - v2"
    assert (
        line(of(EpilogueStep("mul", ("%0", "%0")), EpilogueStep("sub", (1.0, "%1")))) == "1.0 - v1"
    )


def test_a_half_of_something_else_stays() -> None:
    other = of(
        EpilogueStep("mul", ("%0", 0.25)),
        EpilogueStep("tanh", ("%0",)),
        EpilogueStep("add", ("%2", 1.0)),
        EpilogueStep("mul", ("%1", "%3")),
    )
    assert line(other) == "v1 * v3"


@pytest.mark.parametrize("factor", [1e30, 1e-30])
def test_factors_that_single_precision_does_not_hold_stay_apart(factor: float) -> None:
    """Their product, infinity or 0, would make NaN of x = 0, and 0 of a large x."""
    twice = EpilogueStep("mul", ("%0", factor)), EpilogueStep("mul", ("%1", factor))
    text = line(of(*twice, EpilogueStep("tanh", ("%2",)), EpilogueStep("add", ("%3", 1.0))))
    assert text.startswith("2.0 * _logistic(v2 * 2.885390081777")


def test_long_sums_are_read_in_time() -> None:
    """Doubled forty times: 2**40 ways to write it as a polynomial, if all were looked at."""
    steps = [EpilogueStep("add", (f"%{i}", f"%{i}")) for i in range(40)]
    steps += [EpilogueStep("tanh", ("%40",)), EpilogueStep("add", ("%41", 1.0))]
    assert line(of(*steps)) == "2.0 * _logistic(v34 * 184.6649652337873)"


HALF = "bfloat16", "float16"


SINGLE = "float32 of single precision"
GRADES = [*HALF, "float32", SINGLE]


@pytest.fixture(params=GRADES)
def functions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The helpers of kernels with results of a dtype, computed by torch in single precision."""
    monkeypatch.setattr(epilogue_source, "uses_interpreter", lambda: True)
    tl = SimpleNamespace(
        exp2=torch.exp2,
        log=torch.log,
        abs=torch.abs,
        floor=torch.floor,
        where=torch.where,
        maximum=lambda x, bound, propagate_nan: x.clamp_min(bound),
        minimum=lambda x, bound, propagate_nan: x.clamp_max(bound),
        PropagateNan=SimpleNamespace(ALL=None),
        constexpr=None,
    )
    space: dict[str, Any] = {"tl": tl, "triton": SimpleNamespace(jit=lambda function: function)}
    epilogue = Epilogue(1, (), (), (Output("%0", request.param.split()[0]),))
    text = epilogue_source.helpers(epilogue, in_single=request.param == SINGLE)
    exec(compile(text, "helpers", "exec"), space)
    space["_power"] = torch.exp2  # there of the bits, which torch does not convert as Triton does
    return space | {"of": request.param}


# What is meant; the largest error allowed for each grade, of results above 1 relative; from where.
FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[float, ...], float]] = {
    "_normal": (torch.special.ndtr, (6e-5, 6e-6, 2.5e-7, 2e-7), -3e38),
    "_erf": (torch.erf, (1.3e-4, 1.2e-5, 2.5e-7, 2.5e-7), -3e38),
    "_tanh": (torch.tanh, (4e-7, 4e-7, 2e-7, 2e-7), -3e38),
    "_logistic": (lambda t: 1 / (1 + torch.exp2(-t)), (2e-7, 2e-7, 2e-7, 2e-7), -3e38),
    "_sigmoid": (torch.sigmoid, (2e-7, 2e-7, 2e-7, 2e-7), -3e38),
    "_exp": (torch.exp, (4e-6, 4e-6, 4e-6, 1.5e-7), -3e38),
    "_expm1": (torch.expm1, (4e-6, 4e-6, 4e-6, 1.5e-7), -3e38),
    "_log1p": (torch.log1p, (4e-7, 4e-7, 2e-7, 2e-7), -0.999),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_as_exact_as_they_say(functions: dict[str, Any], name: str) -> None:
    """Over the whole range, and what becomes of infinities and NaN."""
    meant, every, least = FUNCTIONS[name]
    allowed = every[GRADES.index(functions["of"])]
    grid = [torch.linspace(-8, 8, 400001), torch.logspace(-6, 38, 5001)]
    grid = torch.cat([*grid, torch.linspace(80, 88.72, 20001)])
    grid = torch.cat([grid, -grid, torch.tensor([math.inf, -math.inf, math.nan, 0.0])])
    x = grid[~(grid < least)]
    got, want = functions[name](x).double(), meant(x.double())
    want = torch.where(want.abs() > torch.finfo(torch.float32).max, want * math.inf, want)
    finite = want.isfinite()
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got[~finite].nan_to_num(), want[~finite].nan_to_num())
    error = (got - want).abs() / want.abs().clamp_min(1.0)
    assert float(error[finite].max()) <= allowed


@pytest.mark.parametrize("op", ["logical_and", "logical_or", "logical_not"])
def test_truth_of_numbers(functions: dict[str, Any], op: str) -> None:
    """Floats have a truth value, too: NaN is true, -0.0 is not."""
    x = torch.tensor([0.0, -0.0, 1.5, math.nan, -math.inf])
    pairs = torch.cartesian_prod(x, x).unbind(1)
    count = 1 if op == "logical_not" else 2
    text = epilogue_source.EXPRESSIONS[op].format("a", "b")
    for a, b in (pairs, [one.bool() for one in pairs]):
        got = eval(text, functions, {"a": a, "b": b})
        assert torch.equal(got, getattr(torch, op)(*(a, b)[:count]))


SMALL_RESULTS = {  # with the largest relative error allowed for each dtype
    "_normal": (torch.special.ndtr, (2e-4, 1.4e-5, 4e-7, 4e-7)),
    "_erf": (torch.erf, (5e-4, 4e-5, 5e-7, 3e-7)),
    "_tanh": (torch.tanh, (3e-6, 3e-6, 4e-7, 2e-7)),
    "_expm1": (torch.expm1, (3e-6, 3e-6, 4e-7, 2e-7)),
    "_log1p": (torch.log1p, (3e-6, 3e-6, 4e-7, 2e-7)),
    "_exp": (torch.exp, (4e-6, 4e-6, 4e-6, 1.5e-7)),
    "_sigmoid": (torch.sigmoid, (4e-6, 4e-6, 4e-6, 2.5e-7)),
}


@pytest.mark.parametrize("name", SMALL_RESULTS)
def test_small_results_are_relatively_exact(functions: dict[str, Any], name: str) -> None:
    """Near 0, and of the normal distribution its tail, where formulas lose all digits at last."""
    meant, every = SMALL_RESULTS[name]
    allowed = every[GRADES.index(functions["of"])]
    near = torch.logspace(-30, 0, 20001)
    x = torch.cat([near, -near * 0.9])
    if name in ("_normal", "_exp", "_sigmoid"):
        x = torch.linspace(-5 if name == "_normal" else -80, 0, 20001)
    want = meant(x.double())
    error = ((functions[name](x).double() - want) / want).abs()
    if name == "_normal":
        error /= 1 + x.double().square()
    assert float(error.max()) <= allowed
    zero = torch.tensor([-0.0])
    if name != "_normal":
        assert torch.equal(functions[name](zero).signbit(), meant(zero).signbit())


def test_gelu_far_out(functions: dict[str, Any]) -> None:
    """Nothing bounds the square in it: the polynomial only grows."""
    x = torch.tensor([5.4, 5.6, 6.0, 20.0, 1e10, 1e25])
    for one in (x, -x):
        torch.testing.assert_close(one * functions["_normal"](one), F.gelu(one))
