"""A depthwise convolution and what is element-wise behind it, in one kernel of ours.

    f(s * (conv(x, w) + a) + t, z, …)  ->  fusepass::depthwise(x, w, [s, t, z, …], f)

for images that lie channels last, with one kernel for each channel. In matrix form (a row for each
pixel) its result is a product like another: what may follow it, and what that reads besides, is
found as behind a linear layer. Where Inductor would compute what follows in a kernel that it
generates anyway (a norm, a mean over pixels), the convolution is taken alone.

Whether it pays is measured: the library's convolution and one element-wise kernel, as Inductor runs
them, against one kernel.
"""

from __future__ import annotations

import math
import warnings
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from fusepass import torch_private
from fusepass.errors import CandidateFailed
from fusepass.graph.canonical import tensor_value
from fusepass.graph.conv_chain import is_conv, scaled_at
from fusepass.graph.epilogue import evaluate, parse
from fusepass.graph.epilogue_of_aten import NoRegion
from fusepass.graph.generated_code import feeds_generated_code
from fusepass.graph.region import Region
from fusepass.graph.region_growth import grown
from fusepass.kernels import depthwise as kernel
from fusepass.kernels.depthwise_launch import prepare
from fusepass.kernels.depthwise_source import Patch, Shape, shape_of
from fusepass.kernels.gemm_unfused import behind
from fusepass.report.decision import Reason
from fusepass.rewrite import own_kernels
from fusepass.rewrite.channels import ChannelWriter
from fusepass.rewrite.graph_rule import GraphRule, Site, written_before
from fusepass.rewrite.matrix_form import (
    OtherStrides,
    Trial,
    has_known_images,
    lies_last,
    write_trial,
)
from fusepass.rewrite.region_call import sizes_of, write_call
from fusepass.rewrite.reject import Accept, Reject
from fusepass.tune import INDUCTOR, REFERENCE, Candidate, DepthwiseProblem, choose
from fusepass.tune.region_problem import digest

TIMED = 3  # patches that are timed outside max-autotune


def is_depthwise(node: fx.Node) -> bool:
    """Whether a node is a depthwise convolution of known sizes whose images lie channels last."""
    if not is_conv(node):
        return False
    args: Any = node.args
    values = [tensor_value(one) for one in (*args[:2], node)]
    if any(one is None or one.dtype not in kernel.DTYPES for one in values):
        return False
    x, weight, made = (one for one in values if one is not None)
    sizes = *weight.shape, *args[3], *args[4], *args[5]
    if not has_known_images(x) or not has_known_images(made):
        return False
    if not all(isinstance(size, int) for size in sizes):
        return False
    one_each = args[8] == x.shape[1] == weight.shape[0] > 1 and weight.shape[1] == 1
    return bool(one_each and _in_order(weight) and lies_last(x) and lies_last(made))


def _in_order(weight: Tensor) -> bool:
    """Whether the numbers of a (C, 1, h, w) weight lie one behind the other."""
    extent = 1
    for size, stride in zip(reversed(weight.shape), reversed(weight.stride()), strict=True):
        if size != 1 and stride != extent:
            return False
        extent *= size
    return True


def _arguments(conv: fx.Node) -> tuple[list[int], list[int], list[int]]:
    stride, padding, dilation = (list(pair) for pair in conv.args[3:6])  # type: ignore[arg-type]
    return stride, padding, dilation


# --- candidates -----------------------------------------------------------------------------------


def candidates(problem: DepthwiseProblem, shape: Shape, every: bool) -> tuple[Candidate, ...]:
    """Inductor's two kernels, and ours with some patches.

    Args:
        problem: to be computed.
        shape: of the convolution.
        every: ask for more patches than those that were best elsewhere.
    """
    text = problem.epilogue.text()
    found = kernel.choices(shape)
    made = [
        Candidate(one.name, partial(_ours, text=text, problem=problem, patch=one), compiles=True)
        for one in (found if every else found[:TIMED])
    ]
    unfused = partial(_unfused, text=text, problem=problem)
    traced = partial(_traced, text=text, problem=problem)
    return Candidate(INDUCTOR, unfused, traced=traced), *made


def _ours(
    x: Tensor, weight: Tensor, *operands: Tensor, text: str, problem: DepthwiseProblem, patch: Patch
) -> Any:
    stride, padding, dilation = problem.sizes
    return kernel.launch(x, weight, operands, text, stride, padding, dilation, patch.name)


def _convolved(x: Tensor, weight: Tensor, problem: DepthwiseProblem) -> Tensor:
    made: Tensor = torch.ops.aten.convolution.default(
        x, weight, None, *map(list, problem.sizes), False, [0, 0], problem.groups
    )
    return made.permute(0, 2, 3, 1).reshape(-1, problem.n)


def _unfused(
    x: Tensor, weight: Tensor, *operands: Tensor, text: str, problem: DepthwiseProblem
) -> Any:
    made = _convolved(x, weight, problem)
    return behind([made], operands, text) if parse(text).steps else made


def _traced(
    x: Tensor, weight: Tensor, *operands: Tensor, text: str, problem: DepthwiseProblem
) -> Any:
    return evaluate(parse(text), [_convolved(x, weight, problem).float()], operands)


# --- the rule -------------------------------------------------------------------------------------


def _check(site: Site) -> Accept | Reject:
    conv = site.anchor
    nowhere = own_kernels.refused(conv.meta["val"].device, site.options, conv)
    if nowhere is not None:
        return nowhere
    if written_before(site, scaled_at(conv)[1].next):
        return Reject(Reason.FLAVOUR, "something is written in front of it", conv)
    before = set(site.gm.graph.nodes)
    trial = Trial(conv)
    verdict: Accept | Reject | None = None
    try:
        product = write_trial(trial, _multiply)
        inner = Site(site.gm, product, site.options, site.fake_mode, site.nested)
        verdict = _asked(inner, conv)
    except (OtherStrides, NoRegion) as why:
        return Reject(Reason.FLAVOUR, str(why) or "its images would lie otherwise", conv)
    finally:
        if not isinstance(verdict, Accept):
            trial.take_back(before)
    site.notes["product"] = inner
    return verdict


def _multiply(write: ChannelWriter, conv: fx.Node) -> fx.Node:
    """The convolution without its bias, in matrix form."""
    x, weight = conv.args[:2]
    return write.call(kernel.PRODUCT, x, weight, *_arguments(conv))


def _asked(site: Site, conv: fx.Node) -> Accept | Reject:
    """Whether a kernel of ours computes the region at a product, as the site's notes then say."""
    region = _region(site.anchor)
    x, weight = region.x.meta["val"], region.weights[0].value
    stride, padding, dilation = _arguments(conv)
    shape = shape_of(x.shape, weight.shape, x.dtype, stride, padding, dilation)
    batch = torch_private.size_hint(x.shape[0])
    if batch is None:
        return Reject(Reason.COST, "its batch depends on data: nothing can be timed", conv)
    images = batch, shape.channels, *shape.image
    problem = DepthwiseProblem(
        op="depthwise",
        activation=digest(region.epilogue),
        bias=False,
        dtype=x.dtype,
        m=0,
        n=shape.channels,
        k=math.prod(shape.kernel),
        x_strides=(0, 0),
        weight_strides=(0, 0),
        device=x.device,
        images=images,
        kernel=tuple(weight.shape),  # type: ignore[arg-type]
        sizes=(tuple(stride), tuple(padding), tuple(dilation)),
        groups=shape.channels,
        epilogue=region.epilogue,
    )
    every = site.options.mode.startswith("max-autotune")
    choice = choose(problem, site.options, candidates(problem, shape, every))
    if choice.candidate == INDUCTOR:
        code = Reason.SLOWER if choice.microseconds else Reason.NO_RULE
        return Reject(code, f"left to Inductor: {choice.why}", conv, choice.microseconds)
    if choice.candidate != REFERENCE:
        obstacle = _obstacle(shape, region, choice.candidate)
        if obstacle is not None:
            return Reject(Reason.INTERNAL, f"its kernel cannot be made: {obstacle}", conv)
    site.notes.update(region=region, sizes=sizes_of(region), tile=choice.candidate, conv=conv)
    code = Reason.FORCED if choice.source == "forced" else Reason.MEASURED
    return Accept(code, f"{choice.candidate}: {choice.why}", choice.microseconds)


def _obstacle(shape: Shape, region: Region, patch: str) -> str | None:
    """Why a kernel cannot be compiled, which a table does not know; None if it can."""
    try:
        prepare(shape, region.epilogue, patch, region.x.meta["val"].device)
    except Exception as error:  # noqa: BLE001 - whatever stops it must not stop the program
        problem = f"{type(error).__name__}: {error}"
        warnings.warn(CandidateFailed("depthwise", problem), stacklevel=2)
        return problem
    return None


def _region(product: fx.Node) -> Region:
    """What one kernel computes: all that follows, or nothing where it is better computed there.

    Raises:
        NoRegion: there is nothing.
    """
    try:
        region = grown([product], ())
    except NoRegion:
        return grown([product], (), alone=True)
    stored = (node for nodes in region.outputs for node in nodes)
    if any(feeds_generated_code(node, region.nodes) for node in stored):
        return grown([product], (), alone=True)
    return region


def _replace(site: Site) -> None:
    kernel.install_lowering()
    inner: Site = site.notes["product"]
    arguments = _arguments(inner.notes["conv"])

    def call(x: Any, weights: Any, operands: Any, epilogue: str, patch: str) -> tuple[Any, ...]:
        return kernel.OPERATOR, x, weights[0], operands, epilogue, *arguments, patch

    write_call(inner, call)
    site.gm.graph.eliminate_dead_code()


RULE = GraphRule("depthwise", is_depthwise, _check, _replace)
