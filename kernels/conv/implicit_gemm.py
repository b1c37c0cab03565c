"""A convolution with the pointwise work around its result as one operation.

    ``fusepass::conv_region(x, weights, operands, epilogue, tile)``

``epilogue`` is the text of a :class:`fusepass.fusion.kernel_ir.epilogue.Epilogue` of the result as
a matrix, one row for each pixel. Shapes: ``x`` (B, C, H, W) and ``weights``, of which there is one,
(O, C, h, w), both channels last, bf16 or fp16; operands broadcastable to (M, O), where M are the
pixels of the result's images; outputs (M, O), contiguous. Sums are in fp32. ``tile`` says stride,
padding and dilation, too: see :func:`parse_tile_name`.

The operator computes its reference. Under Inductor it becomes a launch of the Triton kernel of
``implicit_gemm_source.py``, with outputs in memory that Inductor plans. For graphs after autograd:
no backward formula.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fusepass.fusion.kernel_ir.epilogue import Epilogue, Output, evaluate, parse
from fusepass.kernels.codegen.inductor_source import with_single_config
from fusepass.kernels.conv.implicit_gemm_source import NAME, ConvShape, ConvTile, conv_source
from fusepass.kernels.gemm.op import function_of
from fusepass.torch_private.inductor.kernel_call import KernelCall, lower_to_kernel

HALF = (torch.float16, torch.bfloat16)
ALONE = Epilogue(1, (), (), (Output("%0", "float32"),))
_Pair = Sequence[int]
_GROUP = 8
_NARROWEST = 32  # channels of the image that a step reads
_NARROWEST_TILE = 32  # of the result, in channels
_MOST_NUMBERS = 1 << 31  # of one image: places in it are 32-bit numbers

# --- reference ------------------------------------------------------------------------------------


def reference(
    x: Tensor, weight: Tensor, operands: Sequence[Tensor], epilogue: Epilogue, *steps: _Pair
) -> list[Tensor]:
    """The outputs in plain PyTorch: summed in fp32 (fp64 stays), rounded once, at the end."""
    wide = torch.promote_types(x.dtype, torch.float32)
    stride, padding, dilation = (list(pair) for pair in steps)
    given = x.to(wide), weight.to(wide), None, stride, padding, dilation, False, [0, 0], 1
    made = torch.ops.aten.convolution.default(*given)
    return evaluate(epilogue, [made.permute(0, 2, 3, 1).reshape(-1, weight.shape[0])], operands)


# --- what it can compute --------------------------------------------------------------------------

TIMED = 4  # tiles that are timed outside max-autotune
# Pixels, channels of the result, warps and stages. Fastest somewhere on an H200; those first.
_TILES = (
    (128, 64, 4, 4),
    (128, 128, 8, 3),
    (64, 64, 4, 4),
    (256, 64, 8, 3),
    (64, 128, 4, 4),
    (128, 32, 4, 4),
    (64, 32, 4, 5),
)


def refuses(x: Tensor, weight: Tensor, dilation: _Pair) -> str | None:
    """Why the kernel cannot compute a convolution of images channels last, or None."""
    down, across = (
        (size - 1) * step for size, step in zip(weight.shape[2:], dilation, strict=True)
    )
    if x.dtype not in HALF or weight.dtype is not x.dtype:
        return "its kernel multiplies fp16 or bf16"
    if x.shape[1] % _NARROWEST or weight.shape[0] % 16:
        return f"its channels are no multiples of {_NARROWEST} and 16"
    if x.shape[1] * x.shape[2] * x.shape[3] >= _MOST_NUMBERS or weight.numel() >= _MOST_NUMBERS:
        return "its image or its weight is too large"
    if (down * x.shape[3] + across) * x.shape[1] >= _MOST_NUMBERS:
        return "its kernel reaches too far"
    return None


def choices(shape: ConvShape) -> tuple[ConvTile, ...]:
    """The tiles worth timing: none much wider than the result."""
    channels, width = shape.channels
    k = 64 if channels % 64 == 0 else _NARROWEST
    return tuple(
        ConvTile(m, n, k, warps, stages)
        for m, n, warps, stages in _TILES
        if n <= width or n == _NARROWEST_TILE
    )


def shape_of(x: Tensor, weight: Tensor, *steps: _Pair) -> ConvShape:
    """What a call with tensors of these sizes computes, for any batch."""
    sides = zip(x.shape[2:], weight.shape[2:], *steps, strict=True)
    height, width = ((int(n) + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sides)
    pairs = [(int(a), int(b)) for a, b in (x.shape[2:], (height, width), weight.shape[2:], *steps)]
    return ConvShape((int(x.shape[1]), int(weight.shape[0])), *pairs)


def tile_name(tile: str, *steps: _Pair) -> str:
    """What the operator is given as its tile: a candidate's, and stride, padding, dilation."""
    return " ".join([tile, *(f"{a}x{b}" for a, b in steps)])


def parse_tile_name(name: str) -> tuple[ConvTile | None, tuple[tuple[int, int], ...]]:
    """The tile (None for the reference) and the stride, padding and dilation that a name says."""
    tile, *steps = name.rsplit(" ", 3)
    pairs = tuple((int(a), int(b)) for a, b in (pair.split("x") for pair in steps))
    if tile == "reference":
        return None, pairs
    m, n, k, warps, stages = map(int, re.findall(r"\d+", tile))
    return ConvTile(m, n, k, warps, stages), pairs


# --- kernel ---------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def kernel(epilogue: str, shape: ConvShape, tile: ConvTile, direct: bool = False) -> Any:
    """The Triton kernel of an epilogue for one kind of convolution.

    Args:
        epilogue: as the operator is given it.
        shape: of the convolution.
        tile: of the result.
        direct: for Inductor's code, to be launched as Inductor's kernels are.
    """
    import triton

    constants = shape.constants | {"BM": tile.m, "BN": tile.n, "BK": tile.k, "GROUP": _GROUP}
    made = function_of(conv_source(parse(epilogue)), NAME)
    config = triton.Config(constants, num_warps=tile.warps, num_stages=tile.stages)
    return with_single_config(made, config, direct=direct)


def _arguments(
    x: Any,
    weight: Any,
    operands: Sequence[Any],
    outputs: Sequence[Any],
    epilogue: Epilogue,
    values: Sequence[Tensor],
    sizes: tuple[Any, int],
) -> dict[str, Any]:
    """The kernel's arguments, by name; ``values`` are tensors that have the operands' strides."""
    given: dict[str, Any] = {"x_ptr": x, "w0_ptr": weight}
    for i, (operand, value) in enumerate(zip(operands, values, strict=True)):
        given[f"p{i}"] = operand
        if epilogue.operands[i].kind == "full":
            given[f"s{i}"] = value.stride(0)
    given |= {f"o{i}": output for i, output in enumerate(outputs)}
    return given | {"M": sizes[0], "N": sizes[1]}


def _counts(x: Tensor, shape: ConvShape, tile: ConvTile) -> tuple[Any, Any]:
    """Pixels of the result, and programs."""
    pixels = x.shape[0] * shape.result[0] * shape.result[1]
    return pixels, -(-pixels // tile.m) * -(-shape.channels[1] // tile.n)


def launch(
    x: Tensor, weight: Tensor, operands: Sequence[Tensor], epilogue: str, name: str
) -> list[Tensor]:
    """Run the kernel now; for timing, and for tests."""
    tile, steps = parse_tile_name(name)
    parsed = parse(epilogue)
    if tile is None:
        return reference(x, weight, operands, parsed, *steps)
    shape = shape_of(x, weight, *steps)
    pixels, programs = _counts(x, shape, tile)
    sizes = pixels, shape.channels[1]
    outputs = [x.new_empty(sizes, dtype=getattr(torch, out.dtype)) for out in parsed.outputs]
    if programs:
        given = _arguments(x, weight, operands, outputs, parsed, operands, sizes)
        kernel(epilogue, shape, tile)[(programs,)](**given)
    return outputs


# --- operators ------------------------------------------------------------------------------------


@torch.library.custom_op(
    "fusepass::conv_region",
    mutates_args=(),
    schema="(Tensor x, Tensor[] weights, Tensor[] operands, str epilogue, str tile) -> Tensor[]",
)
def conv_region(
    x: Tensor, weights: Sequence[Tensor], operands: Sequence[Tensor], epilogue: str, tile: str
) -> list[Tensor]:
    """``epilogue`` of the convolution; see the module.

    Raises:
        ValueError: a malformed epilogue.
    """
    return reference(x, weights[0], operands, parse(epilogue), *parse_tile_name(tile)[1])


@conv_region.register_fake
def _(
    x: Tensor, weights: Sequence[Tensor], operands: Sequence[Tensor], epilogue: str, tile: str
) -> list[Tensor]:
    sizes = _result(x, weights[0], *parse_tile_name(tile)[1])
    outputs = parse(epilogue).outputs
    return [x.new_empty(sizes, dtype=getattr(torch, out.dtype)) for out in outputs]


def _result(x: Tensor, weight: Tensor, *steps: _Pair) -> tuple[Any, Any]:
    """Rows and columns of the outputs."""
    height, width = shape_of(x, weight, *steps).result
    return x.shape[0] * height * width, weight.shape[0]


_library = torch.library.Library("fusepass", "FRAGMENT")
_library.define(
    "conv_product(Tensor x, Tensor weight, int[] stride, int[] padding, int[] dilation) -> Tensor"
)


def _product(x: Tensor, weight: Tensor, *steps: _Pair) -> Tensor:
    """The result alone, in x's dtype; stands in a graph while a site is looked at, never longer."""
    (made,) = reference(x, weight, [], ALONE, *steps)
    return made.to(x.dtype)


_library.impl("conv_product", _product, "CompositeExplicitAutograd")
torch.library.register_fake(
    "fusepass::conv_product",
    lambda x, weight, *steps: x.new_empty(_result(x, weight, *steps)),
    lib=_library,
)
OPERATOR = torch.ops.fusepass.conv_region.default
PRODUCT = torch.ops.fusepass.conv_product.default


def plan(values: Sequence[Tensor], products: int, epilogue: str, name: str) -> KernelCall | None:
    """How Inductor should compile one call; None for the operator itself.

    Args:
        values: fake tensors of x, the weight and the operands.
        products: 1.
        epilogue: as the operator is given it.
        name: likewise, its tile.
    """
    x, weight, *operands = values
    tile, steps = parse_tile_name(name)
    if tile is None or x.device.type != "cuda" or refuses(x, weight, steps[2]):
        return None
    parsed, shape = parse(epilogue), shape_of(x, weight, *steps)
    pixels, programs = _counts(x, shape, tile)
    sizes = pixels, shape.channels[1]
    made = [(getattr(torch, output.dtype), sizes) for output in parsed.outputs]

    def given(tensors: Sequence[Any], outputs: Sequence[Any]) -> dict[str, Any]:
        return _arguments(tensors[0], tensors[1], tensors[2:], outputs, parsed, operands, sizes)

    function = kernel(epilogue, shape, tile, direct=True)
    return KernelCall(function, programs, made, given)


def install_lowering() -> None:
    """Tell Inductor how to compile ``fusepass::conv_region``, if Inductor is loaded."""
    lower_to_kernel(OPERATOR, plan)
