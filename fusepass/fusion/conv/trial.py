"""Try the matrix form of a convolution and what follows it; undo it if the rule declines."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import fx

from fusepass.fusion import kernel_gate
from fusepass.fusion.aten_to_epilogue import NoRegion
from fusepass.fusion.conv.chain import scaled_conv_at
from fusepass.fusion.conv.channel_writer import ChannelWriter
from fusepass.fusion.conv.matrix_form import MatrixForm, OtherStrides, write_matrix_form
from fusepass.fusion.gemm.grow import grow_region
from fusepass.fusion.gemm.region import GemmRegion
from fusepass.fusion.inductor_fusion import feeds_generated_code
from fusepass.report.decision import Reason
from fusepass.rewrite.graph_rule import RuleSite, written_before
from fusepass.rewrite.reject import Accept, Reject
from fusepass.torch_private.fx.tracing import size_hint
from fusepass.tune import ConvRegionProblem
from fusepass.tune.problems.gemm import digest

CheckMatmul = Callable[[RuleSite, fx.Node], Accept | Reject]
"""Given the site of the product and the convolution."""


def try_matrix_form(
    site: RuleSite,
    multiply: Callable[[ChannelWriter, fx.Node], fx.Node],
    asked: CheckMatmul,
    behind: Callable[[fx.Node], GemmRegion] | None = None,
) -> Accept | Reject:
    """What ``asked`` says of a convolution in matrix form; that form stays if it accepts.

    The site of the product is then in the notes, as ``product``.

    Args:
        site: whose anchor is the convolution.
        multiply: see :func:`fusepass.fusion.conv.matrix_form.write_matrix_form`.
        asked: decides.
        behind: the region of a product; what is not in it stays as it was, for other convolutions
            to find. :func:`region_of_matmul` by default.
    """
    conv = site.anchor
    nowhere = kernel_gate.gate_reason(conv.meta["val"].device, site.options, conv)
    if nowhere is not None:
        return nowhere
    if written_before(site, scaled_conv_at(conv)[1].next):
        return Reject(Reason.VARIANT, "something is written in front of it", conv)
    before = set(site.gm.graph.nodes)
    trial = MatrixForm(conv)
    verdict: Accept | Reject | None = None
    try:
        product = write_matrix_form(trial, multiply)
        joined = (behind or region_of_matmul)(product).nodes
        taken = {node for node, matrix in trial.matrix.items() if matrix in joined}
        if len(taken) < len(trial.matrix):  # the rest stays what other convolutions find
            trial.undo(before)
            trial = MatrixForm(conv)
            product = write_matrix_form(trial, multiply, taken)
        inner = RuleSite(site.gm, product, site.options, site.fake_mode, site.nested)
        verdict = asked(inner, conv)
    except OtherStrides:
        return Reject(Reason.STRIDE_MISMATCH, "its images would lie otherwise", conv)
    except NoRegion as why:
        return Reject(Reason.VARIANT, str(why), conv)
    finally:
        if not isinstance(verdict, Accept):
            trial.undo(before)
    site.notes["product"] = inner
    return verdict


def conv_arguments(conv: fx.Node) -> tuple[list[int], list[int], list[int]]:
    """Stride, padding and dilation."""
    stride, padding, dilation = (list(pair) for pair in conv.args[3:6])  # type: ignore[arg-type]
    return stride, padding, dilation


def region_of_matmul(product: fx.Node) -> GemmRegion:
    """What one kernel computes: all that follows, or nothing where it is better computed there.

    Raises:
        NoRegion: there is nothing.
    """
    try:
        region = grow_region([product], ())
    except NoRegion:
        return grow_region([product], (), alone=True)
    stored = (nodes for nodes in region.outputs if nodes)
    if any(feeds_generated_code(one, region.nodes, alike) for one, *alike in stored):
        return grow_region([product], (), alone=True)
    return region


def problem_of(
    kind: type[ConvRegionProblem], op: str, region: GemmRegion, conv: fx.Node
) -> ConvRegionProblem | Reject:
    """What is to be computed, as the tuner sees it."""
    args: Any = conv.args
    x, weight = args[0].meta["val"], args[1].meta["val"]
    batch = size_hint(x.shape[0])
    if batch is None:
        return Reject(Reason.COST, "its batch depends on data: nothing can be timed", conv)
    return kind(
        op=op,
        activation=digest(region.epilogue),
        bias=False,
        dtype=x.dtype,
        m=0,
        n=weight.shape[0],
        k=math.prod(weight.shape[1:]),
        x_strides=(0, 0),
        weight_strides=(0, 0),
        device=x.device,
        images=(batch, *map(int, x.shape[1:])),  # type: ignore[arg-type]
        kernel=tuple(map(int, weight.shape)),  # type: ignore[arg-type]
        sizes=tuple(tuple(pair) for pair in conv_arguments(conv)),
        groups=args[8],
        epilogue=region.epilogue,
    )
