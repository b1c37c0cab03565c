"""A concatenation as the tuner sees it: its tensors, and classes of problems."""

from __future__ import annotations

from dataclasses import replace

import torch

from fusepass.tune import CatProblem

ONE = CatProblem(
    op="cat",
    activation="",
    bias=False,
    dtype=torch.float16,
    m=100,
    n=400,
    k=26,
    x_strides=(0, 0),
    weight_strides=(0, 0),
    device=torch.device("cpu"),
)


def test_its_tensors() -> None:
    given = ONE.inputs(torch.Generator().manual_seed(0))
    assert [(one.shape, one.dtype) for one in given] == [((100, 15), torch.float16)] * 26
    assert 0.5 < float(torch.cat(given, 1).float().std()) < 1.5
    assert ONE.bytes_needed >= 2 * sum(one.nbytes for one in given)
    thin = replace(ONE, n=20)
    assert thin.inputs(torch.Generator())[0].shape == (100, 1)
    assert thin.bytes_needed >= 2 * 100 * 26 * 2


def test_classes() -> None:
    """Sizes are rounded up to powers of two."""
    every = [ONE, replace(ONE, m=129), replace(ONE, n=513), replace(ONE, k=33)]
    every += [replace(ONE, dtype=torch.bfloat16)]
    assert len({one.key("default") for one in every}) == len(every)
    assert replace(ONE, m=128, n=512, k=32).key("default") == ONE.key("default")
    assert ONE.key("max-autotune") == ONE.key("max-autotune-no-cudagraphs") != ONE.key("default")
