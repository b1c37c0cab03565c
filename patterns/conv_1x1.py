"""A 1×1 convolution as a GEMM, with the pointwise work that follows it.

    conv(x, w) with w of (O, I, 1, 1)  =  x as (B * H * W, I) @ w as (I, O)

for images that lie channels last, of which both sides are views. So what follows (a batch norm
without statistics, an activation, a residual) can be computed where the product is accumulated, by
the same kernels and under the same conditions as behind a linear layer: ``gemm_region``.

The changes of channels that come first are two vectors there: ``s * y + t``.

The site is written in matrix form on trial, put to that rule, and taken back unless a kernel of
ours was measured faster than the convolution with one pointwise kernel, and than the product
with one.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from fusepass.fusion.aten_to_epilogue import FLOATS
from fusepass.fusion.conv.conv_epilogue import PERMUTE, RESHAPE, ChannelWriter
from fusepass.fusion.conv.matrix_form import (
    TO_NCHW,
    TO_NHWC,
    as_matrix,
    has_static_batch,
    nhwc_conv,
    try_matrix_form,
)
from fusepass.fusion.gemm.grow import NoRegion, region_at
from fusepass.fusion.gemm.region import GemmRegion
from fusepass.fusion.kernel_ir.epilogue import parse
from fusepass.kernels.gemm.baseline import reduce_partial_results, run_epilogue
from fusepass.patterns import gemm_region
from fusepass.rewrite.rule import Accept, GraphRule, Reject, RuleSite
from fusepass.tune import Candidate
from fusepass.tune.cost_model import region_microseconds

CONVOLUTION = "convolution"


def is_pointwise_conv(node: fx.Node) -> bool:
    """Whether a node is a 1×1 convolution of an NHWC image, of known sizes."""
    found = nhwc_conv(node, FLOATS[1:])
    if found is None or not has_static_batch(found[1]):
        return False
    args: Any = node.args
    plain = list(args[3]) == [1, 1] and list(args[4]) == [0, 0] and args[8] == 1
    return plain and list(found[1].shape[2:]) == [1, 1]


# --- the matrix form ------------------------------------------------------------------------------


def _multiply(write: ChannelWriter, conv: fx.Node) -> fx.Node:
    """The convolution as a product of its pixels and its weight."""
    args: Any = conv.args
    pixels = as_matrix(write, args[0])
    weight = write.call(RESHAPE, args[1], [args[1].meta["val"].shape[0], -1])
    return write.call(torch.ops.aten.mm.default, pixels, write.call(PERMUTE, weight, [1, 0]))


def _convolution(region: GemmRegion, images: Tensor, weight: Tensor) -> Candidate:
    """What Inductor does with the site as it is."""
    text = region.epilogue.text()
    _, channels, height, width = images.shape
    shape = -1, height, width, channels

    def run(x: Tensor, weight_t: Tensor, *operands: Tensor) -> Any:
        y = torch.ops.aten.convolution.default(
            x.reshape(shape).permute(TO_NCHW),
            weight_t.t().reshape(weight.shape),
            None,
            [1, 1],
            [0, 0],
            [1, 1],
            False,
            [0, 0],
            1,
        )
        product = y.permute(TO_NHWC).reshape(-1, y.shape[1])
        return reduce_partial_results(parse(text), run_epilogue([product], operands, text))

    return Candidate(CONVOLUTION, run, estimate=partial(region_microseconds, fused=False))


# --- the rule -------------------------------------------------------------------------------------


def _check(site: RuleSite) -> Accept | Reject:
    return try_matrix_form(site, _multiply, _check_matmul, _whole_region)


def _whole_region(product: fx.Node) -> GemmRegion:
    """The pointwise work after it: the rule for GEMM regions says who computes it."""
    try:
        return region_at(product, pairs=False)
    except NoRegion:
        return region_at(product, pairs=False, alone=True)


def _check_matmul(site: RuleSite, conv: fx.Node) -> Accept | Reject:
    """What the rule for GEMM regions says of the product, with the convolution as it is beside."""
    x, weight = (one.meta["val"] for one in conv.args[:2])  # type: ignore[union-attr]
    library = partial(_convolution, images=x, weight=weight)
    verdict = gemm_region.check(site, False, library)
    if isinstance(verdict, Reject):
        return Reject(verdict.code, verdict.text, conv, verdict.microseconds)
    return verdict


def _replace(site: RuleSite) -> None:
    gemm_region.replace(site.notes["product"])
    site.gm.graph.eliminate_dead_code()


RULE = GraphRule("conv_1x1", is_pointwise_conv, _check, _replace, tries=True)
