"""Convolutions as the tuner sees them: classes of problems, inputs, and what needs no device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fusepass.fusion.kernel_ir.epilogue import Epilogue, EpilogueOperand, EpilogueStep, Output
from fusepass.patterns.conv_region import inductor_candidate
from fusepass.tune import ConvProblem, ConvRegionProblem, DepthwiseProblem
from fusepass.tune.problems.gemm import digest

SCALED = Epilogue(
    1,
    (EpilogueOperand("row", "float16"), EpilogueOperand("full", "float16")),
    (
        EpilogueStep("mul", ("%0", "%1")),
        EpilogueStep("sigmoid", ("%3",)),
        EpilogueStep("add", ("%4", "%2")),
    ),
    (Output("%5", "float16"),),
)
PLAIN = ConvProblem(
    op="conv_relu",
    activation="relu",
    bias=True,
    dtype=torch.float16,
    m=0,
    n=16,
    k=32 * 9,
    x_strides=(0, 0),
    weight_strides=(0, 0),
    device=torch.device("cpu"),
    images=(3, 32, 7, 8),
    kernel=(16, 32, 3, 3),
    sizes=((1, 1), (1, 1), (1, 1)),
)
REGION = ConvRegionProblem(
    **{**vars(PLAIN), "op": "conv", "activation": digest(SCALED)}, epilogue=SCALED
)
KINDS = {"plain": PLAIN, "region": REGION, "depthwise": DepthwiseProblem(**vars(REGION))}


@pytest.mark.parametrize("kind", KINDS)
def test_classes(kind: str) -> None:
    one = KINDS[kind]
    one_more = replace(one, activation="another")
    every = [
        one,
        replace(one, sizes=((2, 2), (1, 1), (1, 1))),
        replace(one, sizes=((1, 1), (2, 1), (1, 1))),
        replace(one, sizes=((1, 1), (1, 1), (1, 2))),
        replace(one, kernel=(16, 32, 3, 5)),
        replace(one, kernel=(32, 32, 3, 3)),
        replace(one, images=(3, 32, 8, 7)),
        replace(one, images=(5, 32, 7, 8)),
        replace(one, groups=2, kernel=(16, 16, 3, 3)),
        replace(one, dtype=torch.bfloat16),
        replace(one, residual=True),
        one_more,
    ]
    assert len({each.key("default") for each in every}) == len(every)
    assert replace(one, images=(4, 32, 7, 8)).key("default") == one.key("default")
    assert one.key("max-autotune") == one.key("max-autotune-no-cudagraphs") != one.key("default")


def test_older_kernels_are_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    before = REGION.key("default")
    monkeypatch.setattr(ConvRegionProblem, "generation", ConvRegionProblem.generation + 1)
    assert REGION.key("default") != before


def test_what_inductor_is_compared_with() -> None:
    """The convolution, and all that follows; traced it is in single precision behind that."""
    inductor = inductor_candidate(REGION)
    x, weight, scale, residual = REGION.inputs(torch.Generator().manual_seed(0))
    made = torch.conv2d(x.double(), weight.double(), padding=1).permute(0, 2, 3, 1).flatten(0, 2)
    want = torch.sigmoid(made * scale.double()) + residual.double()
    assert inductor.graphable is not None
    (got,) = inductor.graphable(x, weight, scale, residual)
    torch.testing.assert_close(got.double(), want, rtol=2e-3, atol=2e-3)
