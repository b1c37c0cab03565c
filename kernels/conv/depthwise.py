"""A depthwise convolution with the pointwise work around its result as one operation.

    ``fusepass::depthwise(x, weight, operands, epilogue, stride, padding, dilation, patch)``

Each channel is convolved with a kernel of its own. ``epilogue`` is the text of a
:class:`fusepass.fusion.kernel_ir.epilogue.Epilogue` of that result as a matrix, one row for each
pixel.
Shapes: ``x`` (B, C, H, W), channels last; ``weight`` (C, 1, h, w); operands broadcastable to
(M, C), where M are the pixels of the result's images; outputs (M, C), contiguous. ``x`` and
``weight`` are bf16, fp16 or fp32; sums are in fp32.

The operator computes its reference on any device but CUDA's, where it launches the kernel of
``depthwise_source.py``. Under Inductor it becomes a call of what :func:`make_launcher` gives, with
outputs in memory that Inductor plans. For graphs after autograd: no backward formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fusepass.fusion.kernel_ir.epilogue import Epilogue, Output, evaluate, parse
from fusepass.kernels.conv.depthwise_launch import make_launcher, patch_named, plan_of
from fusepass.kernels.conv.depthwise_source import DepthwisePatch, DepthwiseShape, Pair, shape_of
from fusepass.torch_private.cuda import nvrtc
from fusepass.torch_private.inductor.host_call import HostCall, lower_to_host_call
from fusepass.torch_private.inductor.kernel_call import kernel_calls_possible

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
ALONE = Epilogue(1, (), (), (Output("%0", "float32"),))

# --- reference ------------------------------------------------------------------------------------


def reference(
    x: Tensor,
    weight: Tensor,
    operands: Sequence[Tensor],
    epilogue: Epilogue,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
) -> list[Tensor]:
    """The outputs in plain PyTorch: summed in fp32 (fp64 stays), rounded once, at the end."""
    wide = torch.promote_types(x.dtype, torch.float32)
    made = torch.ops.aten.convolution.default(
        x.to(wide),
        weight.to(wide),
        None,
        list(stride),
        list(padding),
        list(dilation),
        False,
        [0, 0],
        weight.shape[0],
    )
    return evaluate(epilogue, [made.permute(0, 2, 3, 1).reshape(-1, weight.shape[0])], operands)


# --- what it can compute --------------------------------------------------------------------------

_MOST_TAPS = 121
_WIDTHS = (14, 8, 7, 4)
# Fastest somewhere on an H200, for kernels of 3 to 7 pixels: channels, pixels down, and whether
# patches are as long as they may be, half of that, or short; those most often so come first.
_PATCHES = ((4, 1, 0), (2, 1, 0), (4, 1, 2), (4, 1, 1), (2, 2, 1), (2, 2, 0), (4, 2, 2), (2, 1, 2))
_PATCHES_OF_STRIDES = ((4, 2, 2), (4, 1, 2), (4, 1, 1), (2, 1, 2), (2, 1, 1), (2, 2, 2))


def choices(shape: DepthwiseShape) -> tuple[DepthwisePatch, ...]:
    """The patches worth timing: few pixels beyond the edge, and channels as there are."""
    if shape.kernel[0] * shape.kernel[1] > _MOST_TAPS:
        return ()
    width = shape.result[1]

    def waste(across: int) -> tuple[int, int]:
        return -(-width // across) * across, -across

    long = min((w for w in _WIDTHS if w < 2 * width or w == 4), key=waste)
    half = min((w for w in _WIDTHS if w < long or w == 4), key=waste)
    across = (long, half, 4)
    made = [
        DepthwisePatch(vector, across[kind], down)
        for vector, down, kind in (_PATCHES if shape.stride[1] == 1 else _PATCHES_OF_STRIDES)
        if shape.channels % vector == 0 and down <= shape.result[0]
    ]
    plain = [DepthwisePatch(1, across[0], 1)] * (shape.channels % 2)
    return tuple(dict.fromkeys([*made, *plain]))


# --- kernel ---------------------------------------------------------------------------------------


def launch(
    x: Tensor,
    weight: Tensor,
    operands: Sequence[Tensor],
    epilogue: str,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    patch: str,
) -> list[Tensor]:
    """The outputs, by one launch; by the reference if that is what ``patch`` names."""
    if patch == "reference":
        return reference(x, weight, operands, parse(epilogue), stride, padding, dilation)
    device = x.device.index
    if device != torch.cuda.current_device():
        with torch.cuda.device(device):
            return launch(x, weight, operands, epilogue, stride, padding, dilation, patch)
    steps: Any = (tuple(stride), tuple(padding), tuple(dilation))
    sizes, dtype = tuple(x.shape[1:]), str(x.dtype).removeprefix("torch.")
    plan = plan_of(x.shape, dtype, weight.shape, steps, epilogue, patch_named(patch), device)
    size, strides = (plan.pixels, plan.channels), (plan.channels, 1)
    results = [nvrtc.empty(size, strides, out) for out in plan.dtypes]
    fill = make_launcher(sizes, dtype, tuple(weight.shape), steps, epilogue, patch, device)
    fill(x.shape[0], x, weight, *operands, *results)
    return results


# --- operators ------------------------------------------------------------------------------------

_library = torch.library.Library("fusepass", "FRAGMENT")
_library.define(
    "depthwise(Tensor x, Tensor weight, Tensor[] operands, str epilogue, int[] stride, "
    "int[] padding, int[] dilation, str patch) -> Tensor[]",
    tags=(torch.Tag.needs_exact_strides,),
)
_library.define(
    "depthwise_product(Tensor x, Tensor weight, int[] stride, int[] padding, int[] dilation) "
    "-> Tensor"
)


def on_any_device(
    x: Tensor, weight: Tensor, operands: Sequence[Tensor], epilogue: str, *rest: Any
) -> list[Tensor]:
    """The reference, with the operator's arguments."""
    return reference(x, weight, operands, parse(epilogue), *rest[:3])


def _fake(
    x: Tensor, weight: Tensor, operands: Sequence[Tensor], epilogue: str, *rest: Any
) -> list[Tensor]:
    sizes = _result(x, weight, *rest[:3])
    outputs = parse(epilogue).outputs
    return [x.new_empty(sizes, dtype=getattr(torch, out.dtype)) for out in outputs]


def _result(x: Tensor, weight: Tensor, *steps: Pair) -> tuple[int, int]:
    """Rows and columns of the outputs."""
    height, width = shape_of(x.shape, weight.shape, x.dtype, *steps).result
    return x.shape[0] * height * width, x.shape[1]


def _conv_only(x: Tensor, weight: Tensor, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
    """The result alone, in x's dtype; stands in a graph while a site is looked at, never longer."""
    (made,) = reference(x, weight, [], ALONE, stride, padding, dilation)
    return made.to(x.dtype)


def _fake_conv_only(
    x: Tensor, weight: Tensor, stride: Pair, padding: Pair, dilation: Pair
) -> Tensor:
    return x.new_empty(_result(x, weight, stride, padding, dilation))


_library.impl("depthwise", on_any_device, "CompositeExplicitAutograd")
_library.impl("depthwise", launch, "CUDA")
torch.library.register_fake("fusepass::depthwise", _fake, lib=_library)
_library.impl("depthwise_product", _conv_only, "CompositeExplicitAutograd")
torch.library.register_fake("fusepass::depthwise_product", _fake_conv_only, lib=_library)
OPERATOR = torch.ops.fusepass.depthwise.default
PRODUCT = torch.ops.fusepass.depthwise_product.default


def _call(
    x: Tensor, weight: Tensor, operands: Sequence[Tensor], epilogue: str, *rest: Any
) -> HostCall | None:
    """What generated code calls, for fake operands; None for the operator itself."""
    *steps, patch = rest
    sizes = tuple(x.shape[1:])
    known = all(isinstance(size, int) for size in (*sizes, *weight.shape))
    if x.device.type != "cuda" or patch == "reference" or not kernel_calls_possible() or not known:
        return None
    rows, channels = _result(x, weight, *steps)
    outputs = [
        (getattr(torch, out.dtype), (rows, channels), (channels, 1))
        for out in parse(epilogue).outputs
    ]
    dtype = str(x.dtype).removeprefix("torch.")
    device = x.device.index or 0
    given = sizes, dtype, tuple(weight.shape), tuple(map(tuple, steps)), epilogue, patch, device
    return HostCall(make_launcher.__module__, "make_launcher", given, outputs, x.shape[:1])


def install_lowering() -> None:
    """Tell Inductor how to compile ``fusepass::depthwise``, if Inductor is loaded."""
    lower_to_host_call(OPERATOR, _call)
