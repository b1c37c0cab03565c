"""Max- or average-pooling with the pointwise work on either side of it as one operation.

    ``fusepass::pool(x, before, behind, largest, kernel, stride, padding, divisor, dtype, patch)``

``before`` and ``behind`` are texts of :class:`fusepass.fusion.kernel_ir.epilogue.Epilogue` of one
product and
nothing else: what is done to each number of ``x``, and to each of what is pooled of that. Shapes:
``x`` (…, H, W), contiguous, bf16, fp16 or fp32; the result (…, h, w), contiguous, of ``dtype``, one
of these. ``divisor`` is that of an average; 0 divides by the pixels of the window inside the image.
Arithmetic is in fp32.

The operator computes its reference on any device but CUDA's, where it launches the kernel of
``pool_source.py``. Under Inductor it becomes a call of what
:func:`fusepass.kernels.pointwise.pool_launch.make_launcher` gives, with the result in memory that
Inductor plans.
For graphs after autograd: no backward formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fusepass.fusion.kernel_ir.epilogue import Epilogue, evaluate, parse
from fusepass.kernels.pointwise.pool_launch import make_launcher
from fusepass.kernels.pointwise.pool_source import PoolPatch, PoolShape
from fusepass.torch_private.cuda import nvrtc
from fusepass.torch_private.inductor.host_call import HostCall, lower_to_host_call
from fusepass.torch_private.inductor.kernel_call import kernel_calls_possible

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_Pair = Sequence[int]

# --- reference ------------------------------------------------------------------------------------


def reference(x: Tensor, before: Epilogue, behind: Epilogue, shape: PoolShape) -> Tensor:
    """The result in plain PyTorch, in fp32 and rounded once, at the end."""
    (image,) = evaluate(before, [x.float()], [])
    planes = image.reshape(-1, 1, *shape.image)
    kernel, stride, padding = shape.kernel, shape.stride, shape.padding
    if planes.numel() == 0:  # torch pools no batch of nothing
        made = planes.new_empty(len(planes), 1, *shape.result)
    elif shape.largest:
        made = F.max_pool2d(planes, kernel, stride, padding)
    else:
        counted, divisor = bool(shape.divisor), shape.divisor or None
        made = F.avg_pool2d(planes, kernel, stride, padding, False, counted, divisor)
    (result,) = evaluate(behind, [made.reshape(*x.shape[:-2], *shape.result)], [])
    return result.to(getattr(torch, shape.made))


# --- what it can compute --------------------------------------------------------------------------

_MOST_TAPS = 25
TIMED = 4  # patches that are timed outside max-autotune
_VECTOR = 16  # bytes
# Pixels across and down. Fastest somewhere on an H200; those most often so come first.
_PATCHES = ((4, 1), (4, 2), (2, 1), (2, 4), (8, 1), (2, 2), (8, 2), (4, 4), (1, 4), (1, 1))


def choices(shape: PoolShape) -> tuple[PoolPatch, ...]:
    """The patches worth timing, with the longest vectors that fit; none for large windows."""
    if shape.kernel[0] * shape.kernel[1] > _MOST_TAPS:
        return ()
    made = []
    for across, down in _PATCHES:
        vector = _VECTOR // getattr(torch, shape.given).itemsize
        while shape.image[1] % vector or across * shape.stride[1] % vector:
            vector //= 2
        if across <= shape.result[1] and down <= shape.result[0]:
            made.append(PoolPatch(vector, across, down))
    return tuple(made)


# --- kernel ---------------------------------------------------------------------------------------


def launch(x: Tensor, before: str, behind: str, shape: PoolShape, patch: str) -> Tensor:
    """The result, by one launch; by the reference if that is what ``patch`` names."""
    if patch == "reference":
        return reference(x, parse(before), parse(behind), shape)
    device = x.device.index
    with torch.cuda.device(device):
        size = (*x.shape[:-2], *shape.result)
        result = nvrtc.empty(size, _contiguous(size), getattr(torch, shape.made))
        make_launcher(astuple(shape), before, behind, patch, device)(*x.shape[:-2], x, result)
    return result


def _contiguous(size: Sequence[Any]) -> tuple[Any, ...]:
    strides: list[Any] = [1]
    for one in reversed(size[1:]):
        strides.insert(0, strides[0] * one)
    return tuple(strides)


def shape_of(
    x: Tensor, largest: bool, steps: Sequence[_Pair], divisor: int, dtype: str
) -> PoolShape:
    """What a call computes, for any number of planes.

    Args:
        x: the image, a fake one too.
        largest: whether it is a maximum.
        steps: kernel, stride and padding.
        divisor: of an average, or 0.
        dtype: of the result.
    """
    sides = zip(x.shape[-2:], *steps, strict=True)
    height, width = ((int(n) + 2 * p - k) // s + 1 for n, k, s, p in sides)
    kernel, stride, padding = ((int(a), int(b)) for a, b in steps)
    image = int(x.shape[-2]), int(x.shape[-1])
    given = str(x.dtype).removeprefix("torch.")
    return PoolShape(
        largest, image, (height, width), kernel, stride, padding, divisor, given, dtype
    )


# --- operator -------------------------------------------------------------------------------------

_library = torch.library.Library("fusepass", "FRAGMENT")
_library.define(
    "pool(Tensor x, str before, str behind, bool largest, int[] kernel, int[] stride, "
    "int[] padding, int divisor, str dtype, str patch) -> Tensor[]",
    tags=(torch.Tag.needs_exact_strides,),
)


def _shape(x: Tensor, largest: bool, *rest: Any) -> PoolShape:
    *steps, divisor, dtype, _ = rest
    return shape_of(x, largest, steps, divisor, dtype)


def on_any_device(x: Tensor, before: str, behind: str, *rest: Any) -> list[Tensor]:
    """The reference, with the operator's arguments."""
    return [reference(x, parse(before), parse(behind), _shape(x, *rest))]


def _on_cuda(x: Tensor, before: str, behind: str, *rest: Any) -> list[Tensor]:
    return [launch(x, before, behind, _shape(x, *rest), rest[-1])]


def _fake(x: Tensor, before: str, behind: str, *rest: Any) -> list[Tensor]:
    shape = _shape(x, *rest)
    size = (*x.shape[:-2], *shape.result)
    return [x.new_empty(size, dtype=getattr(torch, shape.made))]


_library.impl("pool", on_any_device, "CompositeExplicitAutograd")
_library.impl("pool", _on_cuda, "CUDA")
torch.library.register_fake("fusepass::pool", _fake, lib=_library)
OPERATOR = torch.ops.fusepass.pool.default


def _call(x: Tensor, before: str, behind: str, *rest: Any) -> HostCall | None:
    """What generated code calls, for a fake image; None for the operator itself."""
    patch = rest[-1]
    known = all(isinstance(size, int) for size in x.shape[-2:])
    if x.device.type != "cuda" or patch == "reference" or not kernel_calls_possible() or not known:
        return None
    shape = _shape(x, *rest)
    size = (*x.shape[:-2], *shape.result)
    outputs = [(getattr(torch, shape.made), size, _contiguous(size))]
    given = astuple(shape), before, behind, patch, x.device.index or 0
    return HostCall(make_launcher.__module__, "make_launcher", given, outputs, x.shape[:-2])


def install_lowering() -> None:
    """Tell Inductor how to compile ``fusepass::pool``, if Inductor is loaded."""
    lower_to_host_call(OPERATOR, _call)
