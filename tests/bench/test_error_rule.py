from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from fusepass.bench.error_rule import compare, judge, reference_outputs
from fusepass.numerics import error_bound, half_ulp, passes
from fusepass.testing.compare import tensors

HALF_ULP_FP16_AT_1 = 2.0**-11


def verdict(
    output: torch.Tensor,
    eager: torch.Tensor,
    exact: torch.Tensor | None,
    inductor: torch.Tensor | None = None,
) -> Any:
    """The error rule on a program with one output."""
    reason = "no reference" if exact is None else None
    return judge(
        [compare(output, eager, exact)],
        [compare(eager, eager, exact)],
        None if inductor is None else [compare(inductor, eager, exact)],
        reason,
    )


def off_by(error: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor of ones, RMS 1, off by ``error``."""
    return torch.full((64,), 1.0 + error, dtype=dtype)


ONES = torch.ones(64, dtype=torch.float64)


def test_twice_eagers_error_passes_and_more_does_not():
    assert verdict(off_by(1.9e-3), off_by(1e-3), ONES)["passed"] is True
    failed = verdict(off_by(2.1e-3), off_by(1e-3), ONES)
    assert failed["passed"] is False
    assert failed["rms"] == pytest.approx(2.1e-3, rel=1e-3)
    assert failed["bound"] == pytest.approx(2e-3, rel=1e-3)
    assert "above" in failed["reason"]


def test_inductors_error_widens_the_bound_by_a_tenth():
    eager, inductor = off_by(1e-4), off_by(1e-3)
    assert verdict(off_by(1.05e-3), eager, ONES, inductor)["passed"] is True
    assert verdict(off_by(1.2e-3), eager, ONES, inductor)["passed"] is False
    assert verdict(off_by(1.05e-3), eager, ONES)["passed"] is False


def test_half_an_ulp_passes_though_eager_is_exact():
    eager = torch.ones(64, dtype=torch.float16)
    one_element_one_ulp_off = eager.clone()
    one_element_one_ulp_off[0] += 2.0**-10
    assert verdict(one_element_one_ulp_off, eager, ONES)["passed"] is True
    every_element_one_ulp_off = eager + 2.0**-10
    failed = verdict(every_element_one_ulp_off, eager, ONES)
    assert failed["passed"] is False
    assert failed["half_ulp"] == HALF_ULP_FP16_AT_1


@pytest.mark.parametrize(
    ("dtype", "magnitude", "expected"),
    [
        (torch.float16, 1.0, 2.0**-11),
        (torch.float16, 1.999, 2.0**-11),
        (torch.float16, 2.0, 2.0**-10),
        (torch.float16, 0.75, 2.0**-12),
        (torch.bfloat16, 1.0, 2.0**-8),
        (torch.float32, 3.0, 2.0**-23),
        (torch.float16, 0.0, 2.0**-25),  # half of the smallest subnormal
    ],
)
def test_half_ulp(dtype: torch.dtype, magnitude: float, expected: float):
    assert half_ulp(dtype, magnitude) == expected
    if magnitude:
        here = torch.tensor(magnitude, dtype=dtype)
        above = torch.nextafter(here, torch.tensor(math.inf, dtype=dtype))
        assert float(above) - float(here) == pytest.approx(2 * expected)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_never_pass_even_where_eager_has_them(bad: float):
    broken = off_by(0.0)
    broken[3] = bad
    assert verdict(broken, off_by(0.0), ONES)["passed"] is False
    both = verdict(broken, broken, ONES, broken)
    assert both["passed"] is False
    assert both["bit_equal_to_eager"] is True
    assert "NaN or infinity" in both["reason"]
    assert not passes(math.nan, math.inf)
    assert not passes(math.inf, math.inf)
    assert error_bound(1e-3, math.inf, math.nan) == 1e-3


def test_infinity_that_the_reference_has_too_is_right():
    exact = ONES.clone()
    exact[0], exact[1] = math.inf, math.nan
    output = exact.float()
    assert verdict(output, output, exact)["passed"] is True
    wrong_sign = output.clone()
    wrong_sign[0] = -math.inf
    assert verdict(wrong_sign, output, exact)["passed"] is False
    finite = output.clone()
    finite[1] = 0.0
    assert verdict(finite, output, exact)["passed"] is False


def test_integers_shapes_and_dtypes_have_to_be_eagers():
    ids = torch.arange(4)
    assert verdict(ids, ids, ids)["passed"] is True
    assert "differ" in verdict(ids + 1, ids, ids)["reason"]
    assert "shape" in verdict(off_by(0.0)[:3], off_by(0.0), ONES)["reason"]
    assert "float16" in verdict(off_by(0.0, torch.float16), off_by(0.0), ONES)["reason"]


def test_without_a_reference_nothing_is_claimed_but_the_distance_from_eager():
    record = verdict(off_by(0.5), off_by(0.0), None)
    assert record["passed"] is None
    assert record["reason"] == "no reference"
    assert record["relative_to_eager"] == pytest.approx(0.5)
    # Another shape needs no reference to be wrong.
    assert verdict(off_by(0.0)[:3], off_by(0.0), None)["passed"] is False


def test_the_worst_tensor_is_reported_and_one_bad_tensor_fails_all():
    good, bad = off_by(1e-3), off_by(3e-3)
    eager = [compare(good, good, ONES)] * 3
    variant = [compare(one, good, ONES) for one in (good, bad, good)]
    record = judge(variant, eager, None, None)
    assert record["passed"] is False
    assert record["worst"] == 1
    assert record["tensors"] == 3
    missing = judge(variant[:1], eager, None, None)
    assert missing["passed"] is False
    assert "1 output tensors where eager gives 3" in str(missing["reason"])


def test_the_reference_runs_in_float64_and_leaves_the_program_alone():
    model = nn.Linear(8, 8).half()
    x = torch.randn(4, 8, dtype=torch.float16)
    with torch.no_grad():
        (exact,) = reference_outputs(model, (), {"input": x})
    assert exact.dtype == torch.float64
    expected = x.double() @ model.weight.double().T + model.bias.double()
    torch.testing.assert_close(exact, expected, rtol=1e-14, atol=1e-14)
    assert model.weight.dtype == torch.float16
    assert x.dtype == torch.float16


def test_tensors_in_finds_them_in_every_container_in_order():
    a, b, c, d = (torch.tensor(float(i)) for i in range(4))
    value = {"x": [a, (b, None, "text")], "y": {"z": c}, "w": d}
    assert [float(t) for t in tensors(value)] == [0.0, 1.0, 2.0, 3.0]
    doubled = reference_outputs(lambda x: x, (value,), {})
    assert [float(t) for t in doubled] == [0.0, 1.0, 2.0, 3.0]
    assert {t.dtype for t in doubled} == {torch.float64}


class _Batch(NamedTuple):
    x: torch.Tensor
    rest: list[torch.Tensor]


def test_the_reference_is_given_named_tuples() -> None:
    given = _Batch(torch.ones(2), [torch.ones(2)])
    found = reference_outputs(lambda b: [b.x, *b.rest], (given,), {})
    assert [one.dtype for one in found] == [torch.float64] * 2
    assert given.x.dtype == torch.float32
