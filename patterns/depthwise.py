"""A depthwise convolution and the pointwise work after it, in one kernel of ours.

    f(s * (conv(x, w) + a) + t, z, …)  ->  fusepass::depthwise(x, w, [s, t, z, …], f)

for images that lie channels last, with one kernel for each channel. In matrix form (a row for each
pixel) its result is a product like another: what may follow it, and what that reads besides, is
found as behind a linear layer. Where Inductor would compute what follows in a kernel that it
generates anyway (a norm, a mean over pixels), the convolution is taken alone.

Whether it pays is measured: the library's convolution and one pointwise kernel, as Inductor runs
them, against one kernel.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, fx

from fusepass.fusion import kernel_gate
from fusepass.fusion.conv.matrix_form import (
    conv_arguments,
    multiply_by,
    nhwc_conv,
    problem_of,
    region_of_matmul,
    try_matrix_form,
)
from fusepass.fusion.write_kernel_call import sizes_of, write_call
from fusepass.kernels.conv import depthwise as kernel
from fusepass.kernels.conv.depthwise_launch import prepare
from fusepass.kernels.conv.depthwise_source import DepthwisePatch, DepthwiseShape, shape_of
from fusepass.patterns.conv_region import inductor_candidate
from fusepass.rewrite.rule import Accept, GraphRule, Reject, RuleSite
from fusepass.tune import (
    REFERENCE,
    Candidate,
    ConvRegionProblem,
    DepthwiseProblem,
    choose,
)
from fusepass.tune.problems.base import with_tiles

TIMED = 3  # patches that are timed outside max-autotune


def is_depthwise(node: fx.Node) -> bool:
    """Whether a node is a depthwise convolution of known sizes whose images lie channels last."""
    found = nhwc_conv(node, kernel.DTYPES)
    if found is None:
        return False
    x, weight, _ = found
    one_each = node.args[8] == x.shape[1] == weight.shape[0] > 1 and weight.shape[1] == 1
    return bool(one_each and _in_order(weight))


def _in_order(weight: Tensor) -> bool:
    """Whether the numbers of a (C, 1, h, w) weight lie one behind the other."""
    extent = 1
    for size, stride in zip(reversed(weight.shape), reversed(weight.stride()), strict=True):
        if size != 1 and stride != extent:
            return False
        extent *= size
    return True


# --- candidates -----------------------------------------------------------------------------------


def candidates(
    problem: ConvRegionProblem, shape: DepthwiseShape, every: bool
) -> tuple[Candidate, ...]:
    """Inductor's two kernels, and ours with some patches.

    With ``every`` there are more than those that were best elsewhere.
    """
    patches = kernel.choices(shape)[: None if every else TIMED]
    return with_tiles(inductor_candidate(problem), patches, partial(_ours, problem=problem))


def _ours(
    x: Tensor, weight: Tensor, *operands: Tensor, problem: ConvRegionProblem, tile: DepthwisePatch
) -> Any:
    stride, padding, dilation = problem.sizes
    text = problem.epilogue.text()
    return kernel.launch(x, weight, operands, text, stride, padding, dilation, tile.name)


# --- the rule -------------------------------------------------------------------------------------


def _check(site: RuleSite) -> Accept | Reject:
    return try_matrix_form(site, multiply_by(kernel.PRODUCT), _check_matmul)


def _check_matmul(site: RuleSite, conv: fx.Node) -> Accept | Reject:
    """Whether a kernel of ours computes the region at a product, as the site's notes then say."""
    region = region_of_matmul(site.anchor)
    x, weight = region.x.meta["val"], region.weights[0].value
    shape = shape_of(x.shape, weight.shape, x.dtype, *conv_arguments(conv))
    problem = problem_of(DepthwiseProblem, "depthwise", region, conv)
    if isinstance(problem, Reject):
        return problem
    every = site.options.mode.startswith("max-autotune")
    choice = choose(problem, site.options, candidates(problem, shape, every))
    verdict = kernel_gate.verdict(choice, conv)
    if isinstance(verdict, Reject):
        return verdict
    if choice.candidate != REFERENCE:
        given = shape, region.epilogue, choice.candidate, x.device
        obstacle = kernel_gate.compile_check("depthwise", partial(prepare, *given), conv)
        if obstacle is not None:
            return obstacle
    site.notes.update(region=region, sizes=sizes_of(region), tile=choice.candidate, conv=conv)
    return verdict


def _replace(site: RuleSite) -> None:
    kernel.install_lowering()
    inner: RuleSite = site.notes["product"]
    arguments = conv_arguments(inner.notes["conv"])

    def call(x: Any, weights: Any, operands: Any, epilogue: str, patch: str) -> tuple[Any, ...]:
        return kernel.OPERATOR, x, weights[0], operands, epilogue, *arguments, patch

    write_call(inner, call)
    site.gm.graph.eliminate_dead_code()


RULE = GraphRule("depthwise", is_depthwise, _check, _replace, tries=True)
