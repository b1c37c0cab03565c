"""A convolution, a batch norm without statistics, a residual and a ReLU, in one kernel of cuDNN.

    relu(s * (conv(x, w) + a) + t + z)  ->  fusepass::conv_relu(x, s * w, s * a + t, z)

with s and t one number per channel. A convolution is linear in its weight, so the scale of a
channel can be applied to the weight that makes it; the bias, z and the ReLU are added where the
sum is accumulated. The left side rounds what the convolution gives, the right one the scaled
weight: in half precision both errors are half an ulp of a factor or of the sum.

Where two convolutions' results are added (the last of a residual block, and that of its shortcut),
the first becomes the residual of the other's kernel, and both biases go into that.

The weights are scaled by each call of the compiled code, from the weights and statistics there are
then: nothing can be stale. That reads and writes the weights once, which is charged to the fused
candidate; where images are large it is nothing beside a pass over them.

Whether it pays is measured: the convolution and one pointwise kernel, as Inductor runs them,
against cuDNN's fused kernel. Whether its ReLU is torch's, which keeps NaN and infinity, is asked of
the kernel that computes a problem before it is taken.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, fx

from fusepass.fusion import kernel_gate
from fusepass.fusion.conv.conv_epilogue import (
    ADD,
    CONVERT,
    MUL,
    ChannelWriter,
    ConvReluChain,
    NoChain,
    ScaledConv,
    conv_problem,
    conv_relu_chain_at,
    is_relu,
)
from fusepass.fusion.kernel_ir.epilogue import Epilogue, EpilogueOperand, EpilogueStep, Output
from fusepass.kernels.conv import cudnn as kernel
from fusepass.kernels.gemm.baseline import run_epilogue
from fusepass.report.decision import Reason, in_short
from fusepass.rewrite.apply.snapshot import inherit_meta
from fusepass.rewrite.rule import Accept, GraphRule, Reject, RuleSite, written_before
from fusepass.torch_private.fx.graphs import known_equal
from fusepass.torch_private.inductor import lowering
from fusepass.tune import INDUCTOR, REFERENCE, Candidate, ConvProblem, choose
from fusepass.tune.device.peaks import peaks_of
from fusepass.tune.timing import NotEnoughMemory, make_inputs

CUDNN = "cudnn"
_aten = torch.ops.aten

# --- candidates -----------------------------------------------------------------------------------


def candidates(problem: ConvProblem, scaled: int) -> tuple[Candidate, ...]:
    """Inductor's two kernels, and cuDNN's one.

    For the second, ``scaled`` bytes of weights have to be scaled.
    """
    besides = 2e6 * scaled / peaks_of(problem.device).bandwidth if scaled else 0.0
    how = partial(_unfused, problem=problem, epilogue=_epilogue(problem))
    traced = partial(_reference, problem=problem)
    fused = partial(_fused, problem=problem)
    return Candidate(INDUCTOR, how, graphable=traced), Candidate(CUDNN, fused, overhead_us=besides)


def _epilogue(problem: ConvProblem) -> str:
    """``relu(%0 + bias)`` or ``relu(%0 + bias + residual)``, where %0 is the convolution."""
    dtype = str(problem.dtype).removeprefix("torch.")
    bias, residual = EpilogueOperand("row", dtype), EpilogueOperand("full", dtype)
    if problem.residual:  # operands follow the product, steps follow the operands
        sums = EpilogueStep("add", ("%0", "%1")), EpilogueStep("add", ("%3", "%2"))
        steps = (*sums, EpilogueStep("relu", ("%4",)))
        return Epilogue(1, (bias, residual), steps, (Output("%5", dtype),)).text()
    last = EpilogueStep("add", ("%0", "%1")), EpilogueStep("relu", ("%2",))
    return Epilogue(1, (bias,), last, (Output("%3", dtype),)).text()


def _unfused(
    x: Tensor, weight: Tensor, bias: Tensor, *rest: Tensor, problem: ConvProblem, epilogue: str
) -> Any:
    made = _aten.convolution.default(x, weight, None, *problem.sizes, False, [0, 0], problem.groups)
    matrices = [one.permute(0, 2, 3, 1).reshape(-1, problem.n) for one in (made, *rest)]
    return run_epilogue(matrices[:1], [bias, *matrices[1:]], epilogue)


def _reference(
    x: Tensor, weight: Tensor, bias: Tensor, *rest: Tensor, problem: ConvProblem
) -> Tensor:
    made: Tensor = _aten.convolution.default(
        x, weight, None, *map(list, problem.sizes), False, [0, 0], problem.groups
    )
    made = made + bias[:, None, None]
    return (made + rest[0] if rest else made).relu()


def _fused(x: Tensor, weight: Tensor, bias: Tensor, *rest: Tensor, problem: ConvProblem) -> Tensor:
    residual = rest[0] if rest else None
    return kernel.fused_conv_relu(x, weight, bias, residual, problem.sizes, problem.groups)


# --- the check ------------------------------------------------------------------------------------


def _check(site: RuleSite) -> Accept | Reject:
    relu, options = site.anchor, site.options
    try:
        chain = conv_relu_chain_at(relu)
    except NoChain as why:
        return Reject(Reason.VARIANT, f"no convolution that ends here: {why}", relu)
    forced = options.candidate == REFERENCE
    args: Any = chain.first.conv.args
    x, weight, groups = args[0].meta["val"], args[1].meta["val"], args[8]
    if not kernel.is_supported(x, weight) and not forced:
        return Reject(Reason.COST, "cuDNN has no such call there", relu)
    if groups == weight.shape[0] > 1 and not forced:
        return Reject(Reason.COST, "cuDNN's fused kernel is slow for depthwise convolutions", relu)
    if options.inductor_value("cpp_wrapper") and not forced:
        return Reject(Reason.UNSUPPORTED_VERSION, "the call needs Inductor's Python code", relu)
    if written_before(site, relu):
        return Reject(Reason.VARIANT, "something is written in front of it", relu)
    if any(not isinstance(size, int) for size in (*weight.shape, groups)):
        return Reject(Reason.SIZE, "the sizes of its weight vary", relu)
    if 0 in weight.shape:
        return Reject(Reason.SIZE, "it is empty", relu)
    product, result = (_strides(one) for one in (chain.first.conv, relu))
    if not all(map(known_equal, product, result)):  # a sum's are its left operand's
        laid_out = f"the convolution gives strides {product}, not {result}, where dimensions count"
        return Reject(Reason.STRIDE_MISMATCH, laid_out, relu)
    scaled = [one for one in (chain.first, chain.second) if one is not None and one.scales_weights]
    residual = chain.residual is not None or chain.second is not None
    named = {"op": "conv_relu", "activation": "relu", "bias": True, "residual": residual}
    problem = conv_problem(ConvProblem, chain.first.conv, **named)
    if isinstance(problem, Reject):
        return problem
    weights = sum(_weight_bytes(one) for one in scaled)
    choice = choose(problem, options, candidates(problem, weights))
    verdict = kernel_gate.verdict(choice, relu)
    if isinstance(verdict, Reject):
        return verdict
    lost = _nonfinite_difference(problem) if choice.candidate == CUDNN else None
    if lost is not None:
        return Reject(Reason.INEXACT, f"cuDNN's ReLU is another: {lost}", relu)
    site.notes.update(chain=chain)
    return verdict


def _nonfinite_difference(problem: ConvProblem) -> str | None:
    """What the kernel that cuDNN has for a problem makes other than it is; None if nothing."""
    try:
        try:
            return _choose(problem)
        except NotEnoughMemory:
            return _choose(replace(problem, images=(1, *problem.images[1:])))
    except Exception as error:  # noqa: BLE001 - anything may fail on a device in use
        return f"it could not be asked ({in_short(error)})"


@lru_cache(maxsize=1024)
def _choose(problem: ConvProblem) -> str | None:
    with lowering.real_tensors(), torch.autocast(problem.device.type, enabled=False):
        x, weight, _, *rest = (one for one in make_inputs(problem) if one is not None)
        return kernel.nonfinite_difference(
            x, weight, rest[0] if rest else None, problem.sizes, problem.groups
        )


def _strides(node: fx.Node) -> list[Any]:
    """Strides of the dimensions that have several elements."""
    value = node.meta["val"]
    pairs = zip(value.shape, value.stride(), strict=True)
    return [stride for size, stride in pairs if not known_equal(size, 1)]


def _weight_bytes(one: ScaledConv) -> int:
    args: Any = one.conv.args
    weight: Tensor = args[1].meta["val"]
    return weight.numel() * weight.dtype.itemsize


# --- the rewrite ----------------------------------------------------------------------------------


def _fold_channel_ops(
    write: ChannelWriter, biases: ChannelWriter, one: ScaledConv
) -> tuple[fx.Node, Any]:
    """Its weight, scaled, and its bias as (channels), or a number."""
    weight: Any = one.conv.args[1]
    scale, _ = write.scale_and_shift(one)
    _, shift = biases.scale_and_shift(one)
    if not isinstance(scale, fx.Node) and scale == 1.0:
        return weight, shift
    dtype = weight.meta["val"].dtype
    made = write.call(MUL, write.to_float32(weight), scale)
    return (made if dtype is torch.float32 else write.call(CONVERT, made, dtype)), shift


def _replace(site: RuleSite) -> None:
    chain: ConvReluChain = site.notes["chain"]
    kernel.install_lowering()
    relu, first = chain.relu, chain.first
    value = relu.meta["val"]
    write, biases = ChannelWriter(site.gm.graph, (1, 1, 1)), ChannelWriter(site.gm.graph)
    with site.gm.graph.inserting_before(relu):
        weight, shift = _fold_channel_ops(write, biases, first)
        residual = chain.residual
        if chain.second is not None:
            other, more = _fold_channel_ops(write, biases, chain.second)
            args = list(chain.second.conv.args)
            args[1:3] = other, None
            residual = write.call(_aten.convolution.default, *args)
            if not isinstance(shift, fx.Node):
                shift, more = more, shift
            if isinstance(shift, fx.Node) and more != 0.0:
                shift = biases.call(ADD, shift, more)
            elif not isinstance(shift, fx.Node):
                shift = shift + more
        channels = weight.meta["val"].shape[0]
        if isinstance(shift, fx.Node):
            bias = biases.to_dtype(shift, value.dtype)
        else:
            bias = site.gm.graph.call_function(
                _aten.full.default,
                ([channels], shift),
                {"dtype": value.dtype, "device": value.device, "pin_memory": False},
            )
            bias.meta["val"] = value.new_empty([channels])
        args = list(first.conv.args)
        fused = write.call(
            kernel.OPERATOR,
            args[0],
            weight,
            bias,
            residual,
            *args[3:6],
            args[8],
        )
    inherit_meta(fused, relu)
    fused.meta["val"] = value  # of dimensions of one element strides may differ
    relu.replace_all_uses_with(fused)
    site.gm.graph.eliminate_dead_code()


RULE = GraphRule("conv_relu", is_relu, _check, _replace)
