"""Products of a normalised row as the tuner sees them: their inputs, and classes of problems."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fusepass.fusion.kernel_ir.epilogue import Epilogue, EpilogueOperand, EpilogueStep, Output
from fusepass.fusion.kernel_ir.norm import Norm
from fusepass.kernels.gemm import normed_gemms as kernel
from fusepass.numerics import rms, rms_error
from fusepass.patterns import normed_gemms
from fusepass.patterns.normed_gemms import APART, candidates
from fusepass.tune import INDUCTOR, NormedProblem, timing

PLAIN = Epilogue(1, (), (), (Output("%0", "float16"),))
BIASED = Epilogue(
    1,
    (EpilogueOperand("row", "float16"),),
    (EpilogueStep("add", ("%0", "%1")),),
    (Output("%2", "float16"),),
)
PAIR = Epilogue(2, (), (EpilogueStep("mul", ("%0", "%1")),), (Output("%2", "float16"),))
ONE = NormedProblem(
    op="normed_gemms",
    activation="",
    bias=False,
    dtype=torch.float16,
    m=1,
    n=40,
    k=16,
    x_strides=(16, 1),
    weight_strides=(1, 32),
    device=torch.device("cpu"),
    widths=(8, 32),
    epilogues=(BIASED, PLAIN),
    gain=torch.float32,
)


def test_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_ensure_room", lambda *_: None)  # asks a CUDA device
    made = [one for one in timing.make_inputs(ONE) if one is not None]
    assert [(one.shape, one.stride(), one.dtype) for one in made] == [
        ((1, 16), (16, 1), torch.float16),
        ((16, 8), (1, 32), torch.float16),
        ((16, 32), (1, 32), torch.float16),
        ((16,), (1,), torch.float32),
        ((8,), (1,), torch.float16),
    ]
    shifted = replace(ONE, norm=Norm(1e-6, 0.0, True, True), shift=torch.float16)
    assert [one.dtype for one in shifted.inputs(torch.Generator())[3:5] if one is not None] == [
        torch.float32,
        torch.float16,
    ]
    pair = replace(ONE, widths=(8, 8), epilogues=(PAIR,))
    assert len(timing.make_inputs(pair)) == 4
    assert ONE.bytes_needed >= sum(one.numel() * one.itemsize for one in made)


def test_classes() -> None:
    every = [
        ONE,
        replace(ONE, k=24),
        replace(ONE, widths=(32, 8)),
        replace(ONE, epilogues=(PLAIN, BIASED)),
        replace(ONE, dtype=torch.bfloat16),
        replace(ONE, gain=torch.float16),
        replace(ONE, norm=Norm(1e-5)),
        replace(ONE, norm=Norm(1e-6, 1.0)),
        replace(ONE, norm=Norm(1e-6, centred=True)),
        replace(ONE, norm=Norm(1e-6, centred=True, shifted=True), shift=torch.float32),
        replace(ONE, norm=Norm(1e-6, centred=True, shifted=True), shift=torch.float16),
        replace(ONE, weight_strides=(1, 16)),
        replace(ONE, beside=True),
    ]
    keys = [one.key("default") for one in every]
    assert len(set(keys)) == len(keys)
    assert ONE.key("max-autotune") not in keys
    assert ONE.key("reduce-overhead") == keys[0]


@pytest.mark.parametrize("norm", [Norm(1e-3, 1.0), Norm(1e-3, 0.0, True, True)], ids=str)
@pytest.mark.parametrize("epilogues", [(BIASED, PLAIN), (PAIR,), (BIASED,)], ids=len)
def test_what_inductor_is_given_is_the_same(
    epilogues: tuple[Epilogue, ...], norm: Norm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each candidate that runs without a device, against the reference."""
    widths = (8,) * max(len(epilogues), epilogues[0].products)
    shift = torch.float16 if norm.shifted else None
    problem = replace(ONE, widths=widths, epilogues=epilogues, norm=norm, shift=shift)
    x, *rest = problem.inputs(torch.Generator().manual_seed(0))
    weights, operands = rest[: len(widths)], rest[len(widths) :]
    want = kernel.reference(x.double(), weights, operands, problem.norm, epilogues)
    tiles = kernel.choices(norm, epilogues)
    theirs, *others = candidates(problem, tiles)
    assert theirs.name == INDUCTOR
    assert theirs.graphable is not None
    for got, exact in zip(theirs.graphable(x, *rest), want, strict=True):
        assert rms_error(got, exact.double()) < 4e-3 * rms(exact)
    apart = [one for one in others if one.name.startswith(APART)]
    assert len(apart) == len(others) - len(apart) == len(tiles)
    assert [one.overhead_us for one in apart] == [0.0] * len(apart)
    assert {one.overhead_us for one in others if one not in apart} == {normed_gemms._LAUNCH}
    among = candidates(replace(problem, beside=True), tiles)
    assert among[-1].overhead_us == normed_gemms._LAUNCH + normed_gemms._HALF
