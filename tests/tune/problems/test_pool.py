"""A pooling as the tuner sees it: its image, and classes of problems."""

from __future__ import annotations

from dataclasses import replace

import torch

from fusepass.kernels.pointwise.pool_source import PoolShape
from fusepass.tune import PoolProblem

SHAPE = PoolShape(
    largest=True,
    image=(8, 6),
    result=(4, 3),
    kernel=(2, 2),
    stride=(2, 2),
    padding=(0, 0),
    divisor=0,
    given="float16",
    made="float32",
)
ONE = PoolProblem(
    op="pool",
    activation="",
    bias=False,
    dtype=torch.float16,
    m=48,
    n=12,
    k=4,
    x_strides=(0, 0),
    weight_strides=(0, 0),
    device=torch.device("cpu"),
    shape=SHAPE,
    before="one",
    behind="other",
)


def test_its_image() -> None:
    (x,) = ONE.inputs(torch.Generator().manual_seed(0))
    assert (x.shape, x.dtype) == ((48, 8, 6), torch.float16)
    assert 0.5 < float(x.float().std()) < 1.5
    assert ONE.bytes_needed >= x.nbytes + 48 * 12 * 4


def test_classes() -> None:
    shapes = [
        replace(SHAPE, largest=False, divisor=4),
        replace(SHAPE, largest=False),
        replace(SHAPE, padding=(1, 0)),
        replace(SHAPE, kernel=(2, 3)),
        replace(SHAPE, stride=(1, 2)),
        replace(SHAPE, image=(8, 7)),
        replace(SHAPE, given="float32"),
        replace(SHAPE, made="float16"),
    ]
    every = [ONE, *(replace(ONE, shape=shape) for shape in shapes)]
    every += [replace(ONE, before="another"), replace(ONE, behind="one", before="other")]
    every += [replace(ONE, m=65)]
    assert len({one.key("default") for one in every}) == len(every)
    assert replace(ONE, m=64).key("default") == ONE.key("default")
    assert ONE.key("max-autotune") == ONE.key("max-autotune-no-cudagraphs") != ONE.key("default")
