"""Products of one operand as the tuner sees them: their inputs, and classes of problems."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fusepass.fusion.kernel_ir.epilogue import Epilogue, EpilogueOperand, EpilogueStep, Output
from fusepass.patterns.sibling_gemms import candidates
from fusepass.tune import INDUCTOR, SiblingProblem, timing

PLAIN = Epilogue(1, (), (), (Output("%0", "float16"),))
BIASED = Epilogue(
    1,
    (EpilogueOperand("row", "float16"),),
    (EpilogueStep("add", ("%0", "%1")),),
    (Output("%2", "float16"),),
)
ONE = SiblingProblem(
    op="sibling_gemms",
    activation="",
    bias=False,
    dtype=torch.float16,
    m=48,
    n=40,
    k=16,
    x_strides=(24, 1),
    weight_strides=(1, 32),
    device=torch.device("cpu"),
    widths=(8, 32),
    epilogues=(BIASED, PLAIN),
)


def test_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_ensure_room", lambda *_: None)  # asks a CUDA device
    x, first, second, bias = (one for one in timing.make_inputs(ONE) if one is not None)
    assert [(one.shape, one.stride()) for one in (x, first, second, bias)] == [
        ((48, 16), (24, 1)),
        ((16, 8), (1, 32)),
        ((16, 32), (1, 32)),
        ((8,), (1,)),
    ]
    assert {one.dtype for one in (x, first, second, bias)} == {torch.float16}
    assert 0.5 < float(x.float().std()) < 1.5
    assert 0.1 < float(second.float().std()) < 0.4
    assert ONE.bytes_needed >= 4 * sum(one.numel() for one in (x, first, second)) + 2 * 48 * 40


def test_each_product_has_an_epilogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_ensure_room", lambda *_: None)  # asks a CUDA device
    with pytest.raises(ValueError, match="shorter"):
        timing.make_inputs(replace(ONE, epilogues=(BIASED,)))


def test_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ONE.key("default")
    every = [
        ONE,
        replace(ONE, m=65),
        replace(ONE, k=24),
        replace(ONE, widths=(32, 8)),
        replace(ONE, widths=(16, 24)),
        replace(ONE, widths=(8, 16, 16), epilogues=(BIASED, PLAIN, PLAIN)),
        replace(ONE, epilogues=(PLAIN, BIASED)),
        replace(ONE, dtype=torch.bfloat16),
        replace(ONE, x_strides=(16, 1)),
        replace(ONE, weight_strides=(40, 1)),
    ]
    assert len({one.key("default") for one in every}) == len(every)
    assert replace(ONE, m=64).key("default") == ONE.key("default")
    single = replace(ONE, dtype=torch.float32)  # whose kernels came to round to TF32
    assert ["kernels 1" in one.key("default") for one in (ONE, single)] == [True, False]
    monkeypatch.setattr(SiblingProblem, "generation", SiblingProblem.generation + 1)
    assert ONE.key("default") not in [one.key("default") for one in every[1:]] + [before]
    assert ONE.key("max-autotune") == ONE.key("max-autotune-no-cudagraphs") != ONE.key("default")


def test_candidates_compute_the_same() -> None:
    """Those that need no device."""
    inductor, *ours = candidates(ONE, every=False)
    assert inductor.name == INDUCTOR
    assert inductor.overhead_us == 0
    assert {one.overhead_us for one in ours} == {2.5}  # for one launch more
    assert 2 <= len(ours) < len(candidates(replace(ONE, m=100), every=True)) - 1
    inputs = ONE.inputs(torch.Generator().manual_seed(0))
    assert inductor.graphable is not None
    for got, want in zip(inductor.run(*inputs), inductor.graphable(*inputs), strict=True):
        torch.testing.assert_close(got.float(), want.float(), rtol=1e-2, atol=1e-2)
