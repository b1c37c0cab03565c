"""Products of one normalised row, each with the pointwise work after it, in one launch.

    ``fusepass::normed_gemms(x, weights, operands, text, tile) -> outputs``

``text`` holds a :class:`fusepass.fusion.kernel_ir.norm.Norm` and, with spaces in between, either
one :class:`fusepass.fusion.kernel_ir.epilogue.Epilogue` of all products (a gated pair, or one
product) or one for each. Shapes: ``x`` (1, K), contiguous; weights (K, N), contiguous along K and
of the same stride from one column to the next; ``operands`` the norm's gain (K,), its shift (K,) if
it has one, and then those of the epilogues, the first one's first, broadcastable to (1, N); outputs
likewise in order, (1, N). ``x`` and weights are bf16 or fp16; the norm is computed in fp32;
products accumulate in fp32.

Decoding one sequence, a norm is a kernel that takes as long to start as to run. Each program of the
kernels of ``few_rows_source.py`` and ``sibling_source.py`` reads all of x anyway, and so does each
block of ``row_source.py``, which rounds the norm once.

The operator computes its reference. Under Inductor it becomes one launch. For graphs after
autograd: no backward formula.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fusepass.fusion.kernel_ir import norm as norms
from fusepass.fusion.kernel_ir.epilogue import Epilogue
from fusepass.fusion.kernel_ir.norm import Norm
from fusepass.kernels.codegen.cuda_source import TYPES
from fusepass.kernels.codegen.inductor_source import with_single_config
from fusepass.kernels.gemm import op, sibling_gemms
from fusepass.kernels.gemm.few_rows_source import skinny_source
from fusepass.kernels.gemm.hopper import launch as hopper_launch
from fusepass.kernels.gemm.hopper.programmatic_launch import (
    lets_next_begin_early,
    with_early_launch,
)
from fusepass.kernels.gemm.hopper.row_source import RowKernel
from fusepass.kernels.gemm.op import HALF, function_of
from fusepass.kernels.gemm.sibling_source import NAME, sibling_source
from fusepass.kernels.gemm.tiles import Tile, ring_of
from fusepass.torch_private.inductor.host_call import HostCall
from fusepass.torch_private.inductor.kernel_call import KernelCall, lower_to_kernel

# --- reference ------------------------------------------------------------------------------------


def reference(
    x: Tensor,
    weights: Sequence[Tensor],
    operands: Sequence[Tensor],
    norm: Norm,
    epilogues: Sequence[Epilogue],
) -> list[Tensor]:
    """The outputs in plain PyTorch: in fp32 (fp64 stays), rounded once, at the end."""
    vectors, rest = operands[: norm.vectors], operands[norm.vectors :]
    rows = norms.normalize(x, vectors, norm)
    if len(epilogues) == len(weights):
        return sibling_gemms.reference(rows, weights, rest, epilogues)
    return op.reference(rows, weights, rest, epilogues[0])


def text_of(norm: Norm, epilogues: Sequence[Epilogue]) -> str:
    """What the operator is given, on one line."""
    return f"{norm.text()} {sibling_gemms.text_of(epilogues)}"


def parse_text(text: str) -> tuple[Norm, list[Epilogue]]:
    """The norm and the epilogues of such a text.

    Raises:
        ValueError: one is malformed.
    """
    first, _, rest = text.partition(" ")
    return norms.parse(first), sibling_gemms.parse_texts(rest)


# --- what it can compute --------------------------------------------------------------------------

# Together within 1 % of the best of 56 of plain loads for layers of Llama 8B, 3B and 1B and of
# Qwen3 0.6B, on an H100 and an H200.
_PAIR = (
    Tile(1, 4, 1024, 4, 3, form="row"),
    Tile(1, 2, 256, 2, 1, form="row"),
    Tile(1, 8, 512, 4, 1, form="row"),
)
_ONE = (
    Tile(1, 4, 512, 4, 1, form="row"),
    Tile(1, 8, 256, 4, 1, form="row"),
    Tile(1, 8, 512, 4, 1, form="row"),
)
# Behind a centred norm, likewise within 2 %; either takes up to 17 % less than the other.
_CENTRED = (Tile(1, 8, 512, 4, 1, form="row"), Tile(1, 16, 256, 4, 3, form="row"))
_NAMED = {tile.name: tile for tile in (*_PAIR, *_ONE, *_CENTRED)}
_WIDEST = 16384  # row of a centred norm: each program holds all of it


def refuses(
    x: Tensor,
    weights: Sequence[Tensor],
    operands: Sequence[Tensor],
    norm: Norm,
    epilogues: Sequence[Epilogue],
) -> str | None:
    """Why the kernel cannot compute some products, or None. Takes fake tensors too."""
    if x.dtype not in HALF:
        return "the kernel multiplies bf16 or fp16"
    rows: Any = x.shape[0]
    if not isinstance(rows, int) or rows != 1:
        return "it has more than one row"
    if any(weight.stride(0) != 1 for weight in weights):
        return "a weight is not contiguous along K"
    if any(epilogue.reduced for epilogue in epilogues):
        return "a result is reduced"
    k: Any = x.shape[1]
    if norm.centred and (not isinstance(k, int) or k > _WIDEST):
        return f"its row is not known to have at most {_WIDEST} numbers"
    rest = operands[norm.vectors :]
    if len(epilogues) == len(weights):
        return sibling_gemms.refuses(x, weights, rest, epilogues)
    return op.refuses(x, weights, rest, epilogues[0])


def choices(norm: Norm, epilogues: Sequence[Epilogue]) -> tuple[Tile, ...]:
    """The tiles worth timing, the likeliest first."""
    if norm.centred:
        return _CENTRED
    return _PAIR if epilogues[0].products == 2 else _ONE


def in_cuda(
    norm: Norm,
    epilogues: Sequence[Epilogue],
    weights: Sequence[Tensor],
    vectors: Sequence[Tensor],
    tile: Tile,
) -> RowKernel | None:
    """How the kernel in CUDA C++ is told of products; None where it computes none of them.

    Args:
        norm: of x.
        epilogues: one of all products, or one for each.
        weights: of the products; fake tensors, too.
        vectors: the norm's gain, and its shift if it has one; likewise.
        tile: any; there is a kernel for the one of form ``ring``.
    """
    cut, dtypes = tile.cuda, [str(one.dtype).removeprefix("torch.") for one in vectors]
    sizes = [weights[0].stride(1), *(size for weight in weights for size in weight.shape)]
    if not isinstance(cut, RowKernel) or not all(isinstance(size, int) for size in sizes):
        return None
    if not all(tile.takes(1, weights, one) for one in epilogues):
        return None
    if not all(one in TYPES and one != "bool" for one in dtypes):
        return None
    if any(one.dim() != 1 or one.stride(0) != 1 for one in vectors):
        return None
    widths = tuple(weight.shape[1] for weight in weights) if len(epilogues) > 1 else ()
    return replace(cut, norm=norm.text(), vector_dtypes=tuple(dtypes), widths=widths)


def _tile_of(epilogues: Sequence[Epilogue], name: str) -> Tile | None:
    """The tile of that name."""
    found = ring_of(epilogues[0])
    return found if found is not None and found.name == name else _NAMED.get(name)


# --- kernel ---------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def kernel(text: str, tile: Tile, whole: int, direct: bool = False, leads: bool = False) -> Any:
    """The Triton kernel of a norm and some epilogues with one tile.

    Args:
        text: as the operator is given it.
        tile: of form ``row``.
        whole: a power of two that is K at least (:func:`whole_row`).
        direct: for Inductor's code, to be launched as Inductor's kernels are.
        leads: whether it lets a launch behind it begin, where all products share an epilogue.
    """
    import triton

    norm, epilogues = parse_text(text)
    constants = {"BM": tile.m, "BN": tile.n, "BK": tile.k, "STAGES": tile.stages}
    if norm.centred:
        constants["WHOLE"] = whole
    if len(epilogues) == 1:
        source = skinny_source(epilogues[0], tile.form, norm, leads=leads)
        made = function_of(source, "fusepass_gemm")
    else:
        constants["GROUP"] = tile.group
        made = function_of(sibling_source(epilogues, tile.form, norm), NAME)
    config = triton.Config(constants, num_warps=tile.warps, num_stages=tile.stages)
    return with_single_config(made, config, direct=direct)


def whole_row(x: Tensor, norm: Norm) -> int:
    """What a kernel is given for the length of x's row; 0 where it goes through it in steps."""
    return 1 << (int(x.shape[1]) - 1).bit_length() if norm.centred else 0


def _arguments(
    x: Any,
    weights: Sequence[Any],
    operands: Sequence[Any],
    outputs: Sequence[Any],
    norm: Norm,
    epilogues: Sequence[Epilogue],
    values: Sequence[Tensor],
    tile: Tile,
) -> dict[str, Any]:
    """The kernel's arguments, by name; ``values`` are tensors of all inputs' sizes and strides."""
    vectors, rest = operands[: norm.vectors], operands[norm.vectors :]
    count = 1 + len(weights)
    fakes = (*values[:count], *values[count + norm.vectors :])
    given: dict[str, Any]
    if len(epilogues) == 1:
        (epilogue,) = epilogues
        given = op.arguments(x, weights, rest, outputs, epilogue, fakes, tile, 0)
    else:
        given = sibling_gemms.arguments(x, weights, rest, outputs, epilogues, fakes)
    return given | dict(zip(("gain_ptr", "shift_ptr"), vectors, strict=False))


def _programs(weights: Sequence[Tensor], epilogues: Sequence[Epilogue], tile: Tile) -> int:
    read = weights[:1] if len(epilogues) == 1 else weights
    return sum(-(-int(weight.shape[1]) // tile.n) for weight in read)


def _output_specs(
    weights: Sequence[Tensor], epilogues: Sequence[Epilogue]
) -> list[tuple[torch.dtype, tuple[Any, Any]]]:
    """Dtype and shape of each output."""
    return [
        (getattr(torch, output.dtype), (1, weight.shape[1]))
        for weight, epilogue in zip(weights, epilogues, strict=False)
        for output in epilogue.outputs
    ]


def launch(
    x: Tensor, weights: Sequence[Tensor], operands: Sequence[Tensor], text: str, tile: Tile
) -> list[Tensor]:
    """Run the kernel now; for timing, and for tests."""
    norm, epilogues = parse_text(text)
    cut = in_cuda(norm, epilogues, weights, operands[: norm.vectors], tile)
    if cut is not None:
        return hopper_launch.launch(x, weights, operands, text.partition(" ")[2], cut)
    outputs = [
        x.new_empty(shape, dtype=dtype) for dtype, shape in _output_specs(weights, epilogues)
    ]
    values = x, *weights, *operands
    given = _arguments(x, weights, operands, outputs, norm, epilogues, values, tile)
    kernel(text, tile, whole_row(x, norm))[(_programs(weights, epilogues, tile),)](**given)
    return outputs


# --- operator -------------------------------------------------------------------------------------


@torch.library.custom_op(
    "fusepass::normed_gemms",
    mutates_args=(),
    schema="(Tensor x, Tensor[] weights, Tensor[] operands, str text, str tile) -> Tensor[]",
)
def normed_gemms(
    x: Tensor, weights: Sequence[Tensor], operands: Sequence[Tensor], text: str, tile: str
) -> list[Tensor]:
    """Epilogues of the products of a normalised x; see the module.

    Raises:
        ValueError: a malformed norm or epilogue.
    """
    return reference(x, weights, operands, *parse_text(text))


@normed_gemms.register_fake
def _(
    x: Tensor, weights: Sequence[Tensor], operands: Sequence[Tensor], text: str, tile: str
) -> list[Tensor]:
    made = _output_specs(weights, parse_text(text)[1])
    return [x.new_empty((x.shape[0], shape[1]), dtype=dtype) for dtype, shape in made]


OPERATOR = torch.ops.fusepass.normed_gemms.default


def plan(
    values: Sequence[Tensor], products: int, text: str, name: str
) -> KernelCall | HostCall | None:
    """How Inductor should compile one call; None for the operator itself.

    Args:
        values: fake tensors of x, the weights and the operands.
        products: how many weights there are.
        text: as the operator is given it.
        name: likewise, its tile.
    """
    x, weights, operands = values[0], values[1 : 1 + products], values[1 + products :]
    norm, epilogues = parse_text(text)
    tile = _tile_of(epilogues, name)
    if tile is None or x.device.type != "cuda" or refuses(x, weights, operands, norm, epilogues):
        return None
    if tile.cuda is not None:
        cut = in_cuda(norm, epilogues, weights, operands[: norm.vectors], tile)
        if cut is None:
            return None
        behind = text.partition(" ")[2]
        return hopper_launch.host_call(values, products, behind, with_early_launch(cut))

    def given(tensors: Sequence[Any], outputs: Sequence[Any]) -> dict[str, Any]:
        rest = tensors[1 + products :]
        read = tensors[1 : 1 + products]
        return _arguments(tensors[0], read, rest, outputs, norm, epilogues, values, tile)

    programs, made = _programs(weights, epilogues, tile), _output_specs(weights, epilogues)
    function = kernel(text, tile, whole_row(x, norm), direct=True, leads=lets_next_begin_early())
    return KernelCall(function, programs, made, given)


def install_lowering() -> None:
    """Tell Inductor how to compile ``fusepass::normed_gemms``, if Inductor is loaded."""
    lower_to_kernel(OPERATOR, plan)
