"""Several GEMMs of one operand, each with the pointwise work after it, in one launch.

    ``fusepass::sibling_gemms(x, weights, operands, epilogues, tile) -> outputs``

``epilogues`` holds the text of one :class:`fusepass.fusion.kernel_ir.epilogue.Epilogue` of ``x @
w`` for each weight, with spaces in between. Shapes: ``x`` (M, K) with K contiguous; weights (K, N),
contiguous along K, of any widths N and the same stride from one column to the next; operands, those
of the first product first, broadcastable to its (M, N); outputs likewise in order, (M, N) and
contiguous. ``x`` and weights are bf16, fp16 or, for who allows that, fp32 multiplied as TF32 (of
one row in full single precision, as by cuBLAS); products accumulate in fp32.

The operator computes its reference. Under Inductor it becomes a launch of the Triton kernel of
``sibling_source.py``. For graphs after autograd: no backward formula.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fusepass.fusion.kernel_ir.epilogue import Epilogue, parse
from fusepass.kernels.codegen.inductor_source import with_single_config
from fusepass.kernels.gemm import op
from fusepass.kernels.gemm.op import function_of
from fusepass.kernels.gemm.sibling_source import NAME, sibling_source
from fusepass.kernels.gemm.tiles import Tile
from fusepass.torch_private.fx.graphs import known_equal
from fusepass.torch_private.inductor.kernel_call import KernelCall, lower_to_kernel

MOST = 8
"""Products in one launch."""
TIMED = 3
"""Tiles that are timed outside max-autotune."""

# --- reference ------------------------------------------------------------------------------------


def reference(
    x: Tensor, weights: Sequence[Tensor], operands: Sequence[Tensor], epilogues: Sequence[Epilogue]
) -> list[Tensor]:
    """The outputs in plain PyTorch: accumulated in fp32 (fp64 stays), rounded once, at the end."""
    return [
        output
        for weight, given, epilogue in split_operands(weights, operands, epilogues)
        for output in op.reference(x, [weight], given, epilogue)
    ]


def split_operands(
    weights: Sequence[Any], operands: Sequence[Any], epilogues: Sequence[Epilogue]
) -> Iterator[tuple[Any, Sequence[Any], Epilogue]]:
    """Each weight with the operands of its product's epilogue, and that."""
    start = 0
    for weight, epilogue in zip(weights, epilogues, strict=True):
        stop = start + len(epilogue.operands)
        yield weight, operands[start:stop], epilogue
        start = stop


def text_of(epilogues: Sequence[Epilogue]) -> str:
    """What the operator is given: one line, as Inductor writes it into comments of its code."""
    return " ".join(one.text() for one in epilogues)


def parse_texts(epilogues: str) -> list[Epilogue]:
    """The epilogues of such a text.

    Raises:
        ValueError: one is malformed.
    """
    return [parse(one) for one in epilogues.split()]


# --- what it can compute --------------------------------------------------------------------------


def _rows(m: int, n: int, k: int, warps: int, stages: int) -> Tile:
    return Tile(m, n, k, warps, stages, form="rows")


# By the most rows of x that they are for; the fastest on an H200 first, but TIMED of different use.
# For one row: those that together come within 2 % of the best of 56 tiles, for five models, on an
# H100 and an H200.
_TILES: dict[float, tuple[Tile, ...]] = {
    1: (
        Tile(1, 4, 512, 4, 1, form="row"),
        Tile(1, 8, 1024, 8, 1, form="row"),
        Tile(1, 8, 512, 4, 3, form="row"),
    ),
    16: (_rows(16, 32, 256, 2, 4), _rows(16, 64, 128, 4, 4), _rows(16, 16, 512, 2, 3)),
    32: (_rows(32, 32, 256, 4, 4), _rows(32, 64, 128, 4, 4), _rows(32, 16, 256, 2, 4)),
    64: (_rows(64, 32, 128, 4, 6), _rows(64, 32, 64, 4, 8), _rows(64, 64, 64, 4, 5)),
    256: (
        _rows(64, 64, 64, 4, 5),
        _rows(64, 32, 64, 4, 6),
        _rows(64, 32, 128, 4, 4),
        _rows(64, 64, 64, 8, 4),
        _rows(32, 64, 128, 4, 4),
        _rows(128, 128, 64, 8, 4),
    ),
    math.inf: (
        _rows(64, 64, 64, 4, 3),
        _rows(64, 64, 64, 4, 5),
        _rows(128, 128, 64, 4, 3),
        _rows(128, 128, 64, 8, 4),
        _rows(128, 64, 64, 4, 4),
        _rows(128, 256, 64, 8, 3),
    ),
}
_IN_TF32 = {
    most: tuple(replace(tile, k=tile.k // 2, itemsize=4) for tile in some)
    for most, some in _TILES.items()
}
"""Tiles of as many bytes; not measured."""
_NAMED = {
    tile.name: tile for tiles in (_TILES, _IN_TF32) for some in tiles.values() for tile in some
}


def refuses(
    x: Tensor, weights: Sequence[Tensor], operands: Sequence[Tensor], epilogues: Sequence[Epilogue]
) -> str | None:
    """Why the kernel cannot compute some products, or None. Takes fake tensors too."""
    if any(weight.stride(0) != 1 for weight in weights):
        return "a weight is not contiguous along K"
    apart = [weight.stride(1) for weight in weights]
    if not all(known_equal(one, apart[0]) for one in apart):
        return "the rows of the weights lie at different distances"
    each = split_operands(weights, operands, epilogues)
    reasons = (op.refuses(x, [weight], given, one) for weight, given, one in each)
    return next((why for why in reasons if why is not None), None)


def choices(m: int, itemsize: int = 2) -> tuple[Tile, ...]:
    """The tiles worth timing for that many rows, the likeliest first.

    Args:
        m: rows of x.
        itemsize: of the operands, in bytes: 4 of those that are multiplied as TF32.
    """
    every = _IN_TF32 if itemsize == 4 else _TILES
    return next(tiles for most, tiles in every.items() if m <= most)


# --- kernel ---------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def kernel(epilogues: str, tile: Tile, direct: bool = False) -> Any:
    """The Triton kernel of some epilogues with one tile.

    Args:
        epilogues: as the operator is given them.
        tile: of each product's result.
        direct: for Inductor's code, to be launched as Inductor's kernels are.
    """
    import triton

    constants = {"BM": tile.m, "BN": tile.n, "BK": tile.k, "STAGES": tile.stages}
    made = function_of(sibling_source(parse_texts(epilogues), tile.form), NAME)
    config = triton.Config(
        constants | {"GROUP": tile.group}, num_warps=tile.warps, num_stages=tile.stages
    )
    return with_single_config(made, config, direct=direct)


def arguments(
    x: Any,
    weights: Sequence[Any],
    operands: Sequence[Any],
    outputs: Sequence[Any],
    epilogues: Sequence[Epilogue],
    values: Sequence[Tensor],
) -> dict[str, Any]:
    """The kernel's arguments, by name; ``values`` are tensors of all inputs' sizes and strides."""
    fake_x, fake_weights = values[0], values[1 : 1 + len(weights)]
    fakes = split_operands(fake_weights, values[1 + len(weights) :], epilogues)
    given: dict[str, Any] = {"x_ptr": x}
    made = iter(outputs)
    for i, (weight, read, epilogue) in enumerate(split_operands(weights, operands, epilogues)):
        fake_weight, fake_read, _ = next(fakes)
        given |= {f"w{i}_ptr": weight, f"N{i}": fake_weight.shape[1]}
        for j, (operand, fake) in enumerate(zip(read, fake_read, strict=True)):
            given[f"p{j}_{i}"] = operand
            if epilogue.operands[j].kind == "full":
                given[f"s{j}_{i}"] = fake.stride(0)
        given |= {f"o{j}_{i}": next(made) for j in range(len(epilogue.outputs))}
    given |= {"M": fake_x.shape[0], "K": fake_x.shape[1]}
    return given | {"sx": fake_x.stride(0), "sw": fake_weights[0].stride(1)}


def _programs(x: Tensor, weights: Sequence[Tensor], tile: Tile) -> Any:
    across = sum(-(-int(weight.shape[1]) // tile.n) for weight in weights)
    return (x.shape[0] + tile.m - 1) // tile.m * across


def _output_specs(
    x: Tensor, weights: Sequence[Tensor], epilogues: Sequence[Epilogue]
) -> list[tuple[torch.dtype, tuple[Any, Any]]]:
    """Dtype and shape of each output."""
    return [
        (getattr(torch, output.dtype), (x.shape[0], weight.shape[1]))
        for weight, epilogue in zip(weights, epilogues, strict=True)
        for output in epilogue.outputs
    ]


def launch(
    x: Tensor, weights: Sequence[Tensor], operands: Sequence[Tensor], epilogues: str, tile: Tile
) -> list[Tensor]:
    """Run the kernel now; for timing, and for tests."""
    each = parse_texts(epilogues)
    outputs = [x.new_empty(shape, dtype=dtype) for dtype, shape in _output_specs(x, weights, each)]
    programs = _programs(x, weights, tile)
    if programs:
        values = x, *weights, *operands
        given = arguments(x, weights, operands, outputs, each, values)
        kernel(epilogues, tile)[(programs,)](**given)
    return outputs


# --- operator -------------------------------------------------------------------------------------


@torch.library.custom_op(
    "fusepass::sibling_gemms",
    mutates_args=(),
    schema="(Tensor x, Tensor[] weights, Tensor[] operands, str epilogues, str tile) -> Tensor[]",
)
def sibling_gemms(
    x: Tensor, weights: Sequence[Tensor], operands: Sequence[Tensor], epilogues: str, tile: str
) -> list[Tensor]:
    """An epilogue of ``x @ w`` for each weight; see the module.

    Raises:
        ValueError: a malformed epilogue.
    """
    return reference(x, weights, operands, parse_texts(epilogues))


@sibling_gemms.register_fake
def _(
    x: Tensor, weights: Sequence[Tensor], operands: Sequence[Tensor], epilogues: str, tile: str
) -> list[Tensor]:
    made = _output_specs(x, weights, parse_texts(epilogues))
    return [x.new_empty(shape, dtype=dtype) for dtype, shape in made]


OPERATOR = torch.ops.fusepass.sibling_gemms.default


def plan(values: Sequence[Tensor], products: int, epilogues: str, name: str) -> KernelCall | None:
    """How Inductor should compile one call; None for the operator itself.

    Args:
        values: fake tensors of x, the weights and the operands.
        products: how many weights there are.
        epilogues: as the operator is given them.
        name: likewise, its tile.
    """
    x, weights, operands = values[0], values[1 : 1 + products], values[1 + products :]
    each, tile = parse_texts(epilogues), _NAMED.get(name)
    if tile is None or x.device.type != "cuda" or refuses(x, weights, operands, each):
        return None

    def given(tensors: Sequence[Any], outputs: Sequence[Any]) -> dict[str, Any]:
        rest = tensors[1 + products :]
        return arguments(tensors[0], tensors[1 : 1 + products], rest, outputs, each, values)

    programs, made = _programs(x, weights, tile), _output_specs(x, weights, each)
    function = kernel(epilogues, tile, direct=True)
    return KernelCall(function, programs, made, given)


def install_lowering() -> None:
    """Tell Inductor how to compile ``fusepass::sibling_gemms``, if Inductor is loaded."""
    lower_to_kernel(OPERATOR, plan)
