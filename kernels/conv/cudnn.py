"""A convolution with bias, residual and ReLU as one operation.

    ``fusepass::conv_relu(x, weight, bias, residual, stride, padding, dilation, groups) -> out``

    out = relu(conv(x, weight) + bias + residual)

Shapes: ``x`` (B, C, H, W), ``weight`` (O, C / groups, h, w), ``bias`` (O), ``residual`` None or of
the result's shape; the result has the shape and strides of ``aten::convolution``'s. For graphs
after autograd: no backward formula.

The operator computes its reference, on any device. Under Inductor it becomes a call of
``cudnn_convolution_relu`` or ``cudnn_convolution_add_relu``, which every CUDA build of torch has,
with images channels last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fusepass.torch_private.inductor import convolution

# --- reference ------------------------------------------------------------------------------------


def reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    sizes: Sequence[Sequence[int]],
    groups: int,
) -> Tensor:
    """The result in plain PyTorch: accumulated in fp32 (fp64 stays), rounded once, at the end.

    Args:
        x: (B, C, H, W).
        weight: (O, C / groups, h, w).
        bias: (O).
        residual: of the result's shape, or None.
        sizes: stride, padding and dilation, two numbers each.
        groups: of channels.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    stride, padding, dilation = sizes
    made: Tensor = torch.ops.aten.convolution.default(
        x.to(wide), weight.to(wide), None, stride, padding, dilation, False, [0, 0], groups
    )
    made = made + bias.to(wide)[:, None, None]
    if residual is not None:
        made = made + residual.to(wide)
    return made.relu().to(x.dtype)


# --- kernel ---------------------------------------------------------------------------------------


def is_supported(x: Tensor, weight: Tensor) -> bool:
    """Whether cuDNN has the fused call; takes fake tensors, too."""
    known = x.dtype in (torch.float16, torch.bfloat16, torch.float32)
    sized = not any(isinstance(s, int) and s == 0 for s in (*x.shape, *weight.shape))
    on_cuda = x.device.type == "cuda" and not torch.version.hip
    return known and sized and on_cuda and weight.dtype == x.dtype


def fused_conv_relu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    sizes: Sequence[Sequence[int]],
    groups: int,
) -> Tensor:
    """The fused call itself, for what :func:`is_supported` knows; see :func:`reference`."""
    return convolution.cudnn_convolution_relu(x, weight, bias, residual, sizes, groups)


def nonfinite_difference(
    x: Tensor,
    weight: Tensor,
    residual: Tensor | None,
    sizes: Sequence[Sequence[int]],
    groups: int,
) -> str | None:
    """What the fused call makes other than it is of sums that are not finite; None if nothing.

    A ReLU that takes the larger of two numbers by the hardware's instruction drops NaN, and one
    that is a clamp cuts infinity. Which one a library has, is asked of it, by biases: these are
    added behind all products, so whatever kernel multiplies, each number of the result is known.

    Args:
        x: (B, C, H, W), finite, as all of these.
        weight: (O, C / groups, h, w).
        residual: of the result's shape, or None.
        sizes: stride, padding and dilation.
        groups: of channels.
    """
    for value in (math.nan, math.inf, -math.inf):
        bias = torch.full((weight.shape[0],), value, dtype=x.dtype, device=x.device)
        made = fused_conv_relu(x, weight, bias, residual, sizes, groups)
        if not torch.allclose(made, bias.relu()[0].expand_as(made), equal_nan=True):
            return f"of {value} it makes {float(made.flatten()[0])}"
    return None


# --- operator -------------------------------------------------------------------------------------


@torch.library.custom_op(
    "fusepass::conv_relu",
    mutates_args=(),
    schema=(
        "(Tensor x, Tensor weight, Tensor bias, Tensor? residual, SymInt[] stride, "
        "SymInt[] padding, SymInt[] dilation, SymInt groups) -> Tensor"
    ),
)
def conv_relu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """``relu(conv(x, weight) + bias + residual)``; see the module."""
    return reference(x, weight, bias, residual, (stride, padding, dilation), groups)


@conv_relu.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    return convolution.convolution_strides(x, weight, (stride, padding, dilation), groups)


OPERATOR = torch.ops.fusepass.conv_relu.default


def install_lowering() -> None:
    """Tell Inductor how to compile ``fusepass::conv_relu``, if Inductor is loaded."""
    convolution.lower_to_cudnn(OPERATOR, is_supported)
