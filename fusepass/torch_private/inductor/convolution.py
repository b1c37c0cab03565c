"""Lower a convolution with bias, residual and ReLU to one cuDNN call. Run on 2.11."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._inductor
from torch import Tensor, fx

from fusepass.torch_private.inductor.lowering import expression

_PLAIN = "torch.cudnn_convolution_relu"
# The bias stands behind a number, which Inductor writes behind all tensors.
_ADDING = "(lambda x, w, z, b, *rest: torch.cudnn_convolution_add_relu(x, w, z, 1.0, b, *rest))"


def cudnn_convolution_relu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    sizes: Sequence[Sequence[int]],
    groups: int,
) -> Tensor:
    """``relu(conv(x, weight) + bias + residual)``; ``sizes``: stride, padding, dilation."""
    stride, padding, dilation = sizes
    if residual is None:
        return torch.cudnn_convolution_relu(x, weight, bias, stride, padding, dilation, groups)
    return torch.cudnn_convolution_add_relu(
        x, weight, residual, 1.0, bias, stride, padding, dilation, groups
    )


def convolution_strides(
    x: Tensor, weight: Tensor, sizes: Sequence[Sequence[int]], groups: int
) -> Tensor:
    """A fake result with the shape and strides that torch gives a convolution's."""
    stride, padding, dilation = sizes
    made: Tensor = torch.ops.aten.convolution.default(
        x, weight, None, stride, padding, dilation, False, [0, 0], groups
    )
    return made


def lower_to_cudnn(operator: Any, able: Callable[[Tensor, Tensor], bool]) -> None:
    """Compile ``operator(x, weight, bias, residual, stride, padding, dilation, groups)`` to cuDNN.

    The call stands in the generated code as those of other convolutions do; all its images lie
    channels last, which cuDNN's kernels for tensor cores want. ``able`` says whether cuDNN can do a
    call with such an x and weight.
    """
    if "torch._inductor.lowering" not in sys.modules:
        return
    from torch._inductor import ir, lowering
    from torch._inductor.virtualized import V

    if getattr(lowering.lowerings.get(operator), "fusepass_able", None) is able:
        return
    leave = lowering.fallback_handler(operator, add_to_fallback_set=False)

    def channels_last(value: Any) -> Any:
        return ir.ExternKernel.require_channels_last(ir.ExternKernel.realize_input(value))

    def lower(x: Any, weight: Any, bias: Any, residual: Any, *rest: Any) -> Any:
        node = V.graph.current_node
        fakes = [value.meta["val"] for value in node.args[:2] if isinstance(value, fx.Node)]
        if V.graph.cpp_wrapper or len(fakes) != 2 or not able(*fakes):
            return leave(x, weight, bias, residual, *rest)
        stride, padding, dilation, groups = rest
        made = convolution_strides(fakes[0], fakes[1], (stride, padding, dilation), groups)
        size: list[Any] = [expression(s) for s in made.shape]
        channels, height, width = size[1:]
        strides = [channels * height * width, 1, channels * width, channels]
        images = [x, weight] if residual is None else [x, weight, residual]
        flat = ir.ExternKernel.require_contiguous(ir.ExternKernel.realize_input(bias))
        return ir.TensorBox.create(
            ir.ExternKernelAlloc(
                layout=ir.FixedLayout(x.get_device(), x.get_dtype(), size, strides),
                inputs=[*map(channels_last, images), flat],
                constant_args=(list(stride), list(padding), list(dilation), groups),
                python_kernel_name=_PLAIN if residual is None else _ADDING,
            )
        )

    lowering.register_lowering(operator, type_promotion_kind=None)(lower)
    vars(lowering.lowerings[operator])["fusepass_able"] = able
