"""A convolution and the pointwise work after it, in one Triton kernel.

    f(s * (conv(x, w) + a) + t, z, …)  ->  fusepass::conv_region(x, [w], [s, t, z, …], f)

Images are NHWC, in half precision. cuDNN's kernels take a bias, a residual and ReLU (rule
``conv_relu``). For other activations (SiLU, hard-swish, GELU, leaky ReLU, a gate) Inductor writes
the result to memory and reads it again. In matrix form the convolution is a GEMM, and the same
epilogues may follow as after a linear layer.

The tuner decides: the library's convolution and one pointwise kernel, as Inductor runs them,
against one kernel, whose convolution is mostly slower than the library's.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from fusepass.fusion import kernel_gate
from fusepass.fusion.conv.matrix_form import (
    conv_arguments,
    has_static_batch,
    is_nhwc,
    multiply_by,
    nhwc_conv,
    problem_of,
    region_of_matmul,
    try_matrix_form,
)
from fusepass.fusion.kernel_ir.epilogue import evaluate, parse
from fusepass.fusion.write_kernel_call import sizes_of, write_call
from fusepass.kernels.conv import implicit_gemm as kernel
from fusepass.kernels.conv.implicit_gemm_source import ConvShape, ConvTile
from fusepass.kernels.gemm.baseline import run_epilogue
from fusepass.report.decision import Reason
from fusepass.rewrite.rule import Accept, GraphRule, Reject, RuleSite
from fusepass.tune import INDUCTOR, Candidate, ConvRegionProblem, choose
from fusepass.tune.problems.base import with_tiles


def is_dense_conv(node: fx.Node) -> bool:
    """Whether a node convolves all channels, with images and weight channels last, known sizes."""
    found = nhwc_conv(node, kernel.HALF)
    if found is None or node.args[8] != 1:
        return False
    return has_static_batch(found[1]) and is_nhwc(found[1])


def candidates(problem: ConvRegionProblem, shape: ConvShape, every: bool) -> tuple[Candidate, ...]:
    """Inductor's two kernels, and ours with some tiles.

    With ``every`` there are more than those that were best elsewhere.
    """
    tiles = kernel.choices(shape)[: None if every else kernel.TIMED]
    return with_tiles(inductor_candidate(problem), tiles, partial(_ours, problem=problem))


def _ours(
    x: Tensor, weight: Tensor, *operands: Tensor, problem: ConvRegionProblem, tile: ConvTile
) -> Any:
    name = kernel.tile_name(tile.name, *problem.sizes)
    return kernel.launch(x, weight, operands, problem.epilogue.text(), name)


def _check(site: RuleSite) -> Accept | Reject:
    x, weight = (one.meta["val"] for one in site.anchor.args[:2])  # type: ignore[union-attr]
    why = kernel.refuses(x, weight, conv_arguments(site.anchor)[2])
    if why is not None:
        return Reject(Reason.VARIANT, why, site.anchor)
    return try_matrix_form(site, multiply_by(kernel.PRODUCT), _check_matmul)


def _check_matmul(site: RuleSite, conv: fx.Node) -> Accept | Reject:
    """Whether a kernel of ours computes the region at a product, as the site's notes then say."""
    region = region_of_matmul(site.anchor)
    if not region.epilogue.steps:
        return Reject(Reason.NO_RULE, "nothing follows that is better computed with it", conv)
    x, weight = region.x.meta["val"], region.weights[0].value
    problem = problem_of(ConvRegionProblem, "conv", region, conv)
    if isinstance(problem, Reject):
        return problem
    shape = kernel.shape_of(x, weight, *conv_arguments(conv))
    every = site.options.mode.startswith("max-autotune")
    choice = choose(problem, site.options, candidates(problem, shape, every))
    verdict = kernel_gate.verdict(choice, conv)
    if isinstance(verdict, Reject):
        return verdict
    tile = kernel.tile_name(choice.candidate, *conv_arguments(conv))
    site.notes.update(region=region, sizes=sizes_of(region), tile=tile)
    return verdict


def _replace(site: RuleSite) -> None:
    kernel.install_lowering()

    def call(x: Any, weights: Any, operands: Any, epilogue: str, tile: str) -> tuple[Any, ...]:
        return kernel.OPERATOR, x, weights, operands, epilogue, tile

    write_call(site.notes["product"], call)
    site.gm.graph.eliminate_dead_code()


RULE = GraphRule("conv_region", is_dense_conv, _check, _replace, tries=True)


def inductor_candidate(problem: ConvRegionProblem) -> Candidate:
    """The library's kernel, and one pointwise kernel if anything follows."""
    unfused = partial(_unfused, problem=problem)
    return Candidate(INDUCTOR, unfused, graphable=partial(_reference, problem=problem))


def _convolve(x: Tensor, weight: Tensor, problem: ConvRegionProblem) -> Tensor:
    made: Tensor = torch.ops.aten.convolution.default(
        x, weight, None, *map(list, problem.sizes), False, [0, 0], problem.groups
    )
    return made.permute(0, 2, 3, 1).reshape(-1, problem.n)


def _unfused(x: Tensor, weight: Tensor, *operands: Tensor, problem: ConvRegionProblem) -> Any:
    made, text = _convolve(x, weight, problem), problem.epilogue.text()
    return run_epilogue([made], operands, text) if parse(text).steps else made


def _reference(x: Tensor, weight: Tensor, *operands: Tensor, problem: ConvRegionProblem) -> Any:
    return evaluate(problem.epilogue, [_convolve(x, weight, problem).float()], operands)
