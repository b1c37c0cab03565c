"""GEMM regions as the tuner sees them: inputs that lie as the program's do, classes of problems."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fusepass.fusion.kernel_ir.epilogue import Epilogue, EpilogueStep, Output
from fusepass.tune.problems.gemm import GemmRegionProblem, digest

RELU = Epilogue(1, (), (EpilogueStep("relu", ("%0",)),), (Output("%1", "bfloat16"),))
PAIR = Epilogue(2, (), (EpilogueStep("mul", ("%0", "%1")),), (Output("%2", "bfloat16"),))
ONE = GemmRegionProblem(
    op="gemm",
    activation=digest(RELU),
    bias=False,
    dtype=torch.bfloat16,
    m=48,
    n=24,
    k=16,
    x_strides=(16, 1),
    weight_strides=(1, 16),
    device=torch.device("cpu"),
    epilogue=RELU,
)
BATCHES = replace(ONE, batches=5, batch_strides=(48 * 16, 16 * 24))
# x was (M, B, K); the weights are one matrix, expanded; both.
INTERLEAVED = replace(BATCHES, x_strides=(5 * 16, 1), batch_strides=(16, 16 * 24))
EXPANDED = replace(BATCHES, batch_strides=(48 * 16, 0))
PACKED = replace(BATCHES, epilogue=PAIR, apart=24 * 16, batch_strides=(48 * 16, 2 * 24 * 16))


@pytest.mark.parametrize("problem", [ONE, BATCHES, INTERLEAVED, EXPANDED, PACKED])
def test_inputs_lie_as_given(problem: GemmRegionProblem) -> None:
    x, *weights = problem.inputs(torch.Generator().manual_seed(0))
    sizes = () if problem.batches is None else (problem.batches,)
    assert x.shape == (*sizes, 48, 16)
    assert {w.shape for w in weights} == {(*sizes, 16, 24)}
    assert x.stride()[-2:] == problem.x_strides
    assert {w.stride()[-2:] for w in weights} == {problem.weight_strides}
    if sizes:
        assert (x.stride(0), weights[0].stride(0)) == problem.batch_strides
    if problem.apart is not None:
        assert weights[1].storage_offset() - weights[0].storage_offset() == problem.apart
    stored = sum(
        {
            t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in (x, *weights)
        }.values()
    )
    assert 3 * stored <= problem.bytes_needed  # drawn in fp32 one after the other


def test_what_is_timed_otherwise_is_another_class() -> None:
    scaled = replace(ONE, scaled=True)
    tf32 = replace(ONE, dtype=torch.float32)
    every = [ONE, BATCHES, INTERLEAVED, EXPANDED, PACKED, scaled, tf32, replace(BATCHES, batches=6)]
    assert len({problem.key("default") for problem in every}) == len(every)
    alike = replace(ONE, m=33)
    assert alike.key("default") == ONE.key("default")
    assert ONE.key("max-autotune") != ONE.key("default")


def test_rows_of_a_class() -> None:
    """A power of two, and 96: where kernels that hold as many rows read weights as a stream."""
    rows = {m: replace(ONE, m=m).key("default") for m in (33, 64, 65, 96, 97, 128, 129)}
    assert rows[65] == rows[96]
    assert rows[97] == rows[128]
    assert len(set(rows.values())) == 4
    vary = replace(ONE, m=128, varies=True)  # for which there are no streams
    assert vary.key("default") not in rows.values()
    assert replace(vary, m=129).key("default") == rows[129]


@pytest.mark.parametrize(
    ("changed", "kernels"),
    [
        ({"m": 1}, 12),
        ({"m": 2}, 8),
        ({"m": 64}, 8),
        ({"m": 128}, 10),
        ({"m": 129}, 10),
        ({"m": 129, "k": 520}, 10),
    ],
)
def test_where_kernels_are_newer(changed: dict[str, int], kernels: int) -> None:
    """Or timed otherwise: only there a choice that is known is made again."""
    problem = replace(ONE, **{"k": 512, **changed})
    assert f"/kernels {kernels}" in problem.key("default")
    assert problem.after_reads == (problem.m <= 128)
    batched = replace(problem, batches=2)
    assert not batched.after_reads
    assert "/kernels 10" in batched.key("default")
    single = replace(problem, dtype=torch.float32)  # whose kernels came to round to TF32
    assert "/kernels 9" in single.key("default")
