"""What regions should take: what was measured on an H200, within what the model claims to know."""

from __future__ import annotations

import pytest
import torch

from fusepass.fusion.kernel_ir.epilogue import Epilogue, EpilogueOperand, EpilogueStep, Output
from fusepass.tune.cost_model import RATES, region_microseconds
from fusepass.tune.problems.gemm import GemmRegionProblem, digest

RATES_OF_H200 = RATES["NVIDIA H200"]
SILU = Epilogue(
    1,
    (EpilogueOperand("row", "float16"),),
    (
        EpilogueStep("add", ("%0", "%1")),
        EpilogueStep("sigmoid", ("%2",)),
        EpilogueStep("mul", ("%2", "%3")),
    ),
    (Output("%4", "float16"),),
)


def times(m: int, k: int, n: int, epilogue: Epilogue = SILU) -> tuple[float | None, float | None]:
    """Inductor's, and ours."""
    problem = GemmRegionProblem(
        op="gemm",
        activation=digest(epilogue),
        bias=False,
        dtype=torch.float16,
        m=m,
        n=n,
        k=k,
        x_strides=(k, 1),
        weight_strides=(1, k),
        device=torch.device("cuda"),
        epilogue=epilogue,
    )
    unfused = region_microseconds(problem, RATES_OF_H200, fused=False)
    return unfused, region_microseconds(problem, RATES_OF_H200, fused=True)


@pytest.mark.parametrize(
    ("m", "k", "n", "gain"),
    [(401408, 16, 96, 2.4), (100352, 24, 144, 2.3), (401408, 16, 64, 1.84), (100352, 64, 72, 2.3)],
)
def test_products_of_few_columns_gain(m: int, k: int, n: int, gain: float) -> None:
    """Measured gains of 1×1 convolutions; the model claims no more."""
    unfused, fused = times(m, k, n)
    assert unfused is not None
    assert fused is not None
    assert 1.1 < unfused / fused < 1.05 * gain


@pytest.mark.parametrize(
    ("m", "k", "n"), [(8192, 4096, 4096), (4096, 4096, 14336), (8192, 1024, 4096)]
)
def test_large_products_are_not_promised_anything(m: int, k: int, n: int) -> None:
    unfused, fused = times(m, k, n)
    assert unfused is not None
    assert fused is not None
    assert unfused / fused < 1.03


@pytest.mark.parametrize(("m", "k", "n"), [(6272, 80, 480), (1, 4096, 4096), (0, 64, 64)])
def test_nothing_is_said_about_small_results(m: int, k: int, n: int) -> None:
    assert times(m, k, n) == (None, None)


def test_operands_and_results_count_on_both_sides() -> None:
    more = Epilogue(
        1,
        (EpilogueOperand("full", "float16"),),
        (EpilogueStep("add", ("%0", "%1")), EpilogueStep("relu", ("%2",))),
        (Output("%2", "float16"), Output("%3", "float16")),
    )
    few, many = times(401408, 16, 96), times(401408, 16, 96, more)
    assert all(a is not None and b is not None and a < b for a, b in zip(few, many, strict=True))
    assert many[0] / many[1] < few[0] / few[1]  # type: ignore[operator]
