"""What Inductor does by default with a GEMM region: its GEMMs, then one kernel. For timing."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fusepass.fusion.kernel_ir.epilogue import REDUCTIONS, Epilogue, parse
from fusepass.kernels.gemm.op import function_of
from fusepass.kernels.gemm.tiles import Tile
from fusepass.kernels.gemm.triton_source import pointwise_source

_CUT = Tile(4, 512, 1, 8, 1, form="rows")
_MOST = 65535  # programs along a grid's second dimension
_CUT_REDUCED = replace(_CUT, m=64, n=128)  # reductions are of partial results, as Inductor's


def unfused(
    x: Tensor, weights: Sequence[Tensor], operands: Sequence[Tensor], epilogue: str
) -> list[Tensor]:
    """The outputs of a region, by its GEMMs and one kernel for all that is behind them.

    Inductor makes a sum with one product an ``addmm``; it reads again what is only reduced.

    Args:
        x: (M, K), or batches of that.
        weights: one or two, (K, N), likewise.
        operands: broadcastable to (M, N), or to (B * M, N).
        epilogue: as text.
    """
    parsed = parse(epilogue)
    sums = [step.op for step in parsed.steps] == ["add"] and len(weights) == len(operands) == 1
    sums &= all(out.value == "%2" for out in parsed.outputs) and x.dim() == 2
    if sums and parsed.operands[0].kind in ("row", "full") and operands[0].dtype == x.dtype:
        return _reduce_values(parsed, {"%2": torch.addmm(operands[0], x, weights[0])})
    products = [(x @ weight).flatten(0, -2) for weight in weights]
    if not parsed.steps:
        return _reduce_values(parsed, {f"%{i}": product for i, product in enumerate(products)})
    return reduce_partial_results(parsed, run_epilogue(products, operands, epilogue))


def run_epilogue(
    products: Sequence[Tensor], operands: Sequence[Tensor], epilogue: str
) -> list[Tensor]:
    """What follows the products, by one kernel; what is reduced comes in partial results."""
    parsed, first = parse(epilogue), products[0]
    m, n = first.shape
    cut = _CUT_REDUCED if parsed.reduced else _cut(n)
    while m > cut.m * _MOST:
        cut = replace(cut, m=2 * cut.m)
    outputs = [
        first.new_empty(cut.shape_of(out, len(products), m, n), dtype=getattr(torch, out.dtype))
        for out in parsed.outputs
    ]
    given: dict[str, Any] = {f"q{i}": product for i, product in enumerate(products)}
    for i, (operand, kind) in enumerate(zip(operands, parsed.operands, strict=True)):
        given |= {f"p{i}": operand} | ({f"s{i}": operand.stride(0)} if kind.kind == "full" else {})
    given |= {f"o{i}": output for i, output in enumerate(outputs)}
    grid = (n + cut.n - 1) // cut.n, (m + cut.m - 1) // cut.m
    if m and n:
        _pointwise(epilogue)[grid](**given, M=m, N=n, BM=cut.m, BN=cut.n, num_warps=cut.warps)
    return outputs


def _cut(n: int) -> Tile:
    """As many elements for any width: where rows are short, more of them."""
    wide = min(_CUT.n, 1 << (n - 1).bit_length()) if n else _CUT.n
    return replace(_CUT, m=_CUT.m * _CUT.n // wide, n=wide)


@functools.cache
def _pointwise(epilogue: str) -> Any:
    return function_of(pointwise_source(parse(epilogue)), "fusepass_pointwise")


def _reduce_values(epilogue: Epilogue, values: Mapping[str, Tensor]) -> list[Tensor]:
    """The outputs that are some values as they are, or these reduced by kernels of their own."""
    return [
        REDUCTIONS[out.by](values[out.value], 0 if out.over == "rows" else 1)
        if out.over
        else values[out.value]
        for out in epilogue.outputs
    ]


def reduce_partial_results(epilogue: Epilogue, outputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of a kernel, of which those with partial results are reduced to the end."""
    return [
        REDUCTIONS[out.by](made, 0) if out.over else made
        for made, out in zip(outputs, epilogue.outputs, strict=True)
    ]
