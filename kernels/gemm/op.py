"""A GEMM, or a gated pair of GEMMs, with the pointwise work around its result in one kernel.

    ``fusepass::gemm_region(x, weights, operands, epilogue, tile) -> outputs``

``epilogue`` is the text of a :class:`fusepass.fusion.kernel_ir.epilogue.Epilogue` of ``x @ w`` for
each of the one or two weights. Shapes: ``x`` (M, K) with K contiguous; weights (K, N), of the same
strides, of which one is 1; operands broadcastable to (M, N); outputs (M, N) and contiguous, or
partial results of a reduction, which the caller reduces along the first of their two dimensions. Of
batches, x is (B, M, K), weights are (B, K, N), and M of the operands and outputs is B * M. ``x``
and weights are bf16, fp16 or, for who allows that, fp32, which is rounded to TF32 as by cuBLAS;
products accumulate in fp32.

The operator computes its reference, on any device. Under Inductor it becomes one launch of the
kernel whose tile was chosen, like Inductor's own kernels (``triton_source.py``, for few rows
``few_rows_source.py``, for Hopper ``gluon_source.py``), or a call of a function that launches one
in CUDA C++ (``launch.py``).
"""

from __future__ import annotations

import contextvars
import functools
import hashlib
import linecache
import math
import types
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fusepass.fusion.kernel_ir.epilogue import Epilogue, evaluate, parse
from fusepass.kernels.codegen.inductor_source import with_direct_launch
from fusepass.kernels.gemm.batches import per_batch, programs_each
from fusepass.kernels.gemm.few_rows_source import skinny_source
from fusepass.kernels.gemm.hopper import launch as hopper_launch
from fusepass.kernels.gemm.hopper.gluon_source import NAME as HOPPER_KERNEL
from fusepass.kernels.gemm.hopper.gluon_source import hopper_source
from fusepass.kernels.gemm.hopper.gluon_stub import gluon_stub
from fusepass.kernels.gemm.hopper.programmatic_launch import (
    lets_next_begin_early,
    with_early_launch,
)
from fusepass.kernels.gemm.hopper.tma_plan import by_host, places, prefetched, tma_operands
from fusepass.kernels.gemm.tiles import Tile, multiprocessors, programs, tiles
from fusepass.kernels.gemm.triton_source import source
from fusepass.torch_private.cuda.tma_descriptors import Matrix, descriptor, round_to_tf32
from fusepass.torch_private.fx.graphs import known_equal
from fusepass.torch_private.inductor.host_call import HostCall
from fusepass.torch_private.inductor.kernel_call import KernelCall, lower_to_kernel

HALF = (torch.bfloat16, torch.float16)
MULTIPLIED = (*HALF, torch.float32)

# --- reference ------------------------------------------------------------------------------------


def reference(
    x: Tensor, weights: Sequence[Tensor], operands: Sequence[Tensor], epilogue: Epilogue
) -> list[Tensor]:
    """The outputs in plain PyTorch: accumulated in fp32 (fp64 stays), rounded once, at the end."""
    wide = torch.promote_types(x.dtype, torch.float32)
    products = [(x.to(wide) @ weight.to(wide)).flatten(0, -2) for weight in weights]
    return evaluate(epilogue, products, operands)


# --- what it can compute -------------------------------------------------------------------------


def refuses(
    x: Tensor, weights: Sequence[Tensor], operands: Sequence[Tensor], epilogue: Epilogue
) -> str | None:
    """Why the kernel cannot compute a region, or None. Takes fake tensors too."""
    first = weights[0]
    if x.dtype not in MULTIPLIED or {w.dtype for w in weights} != {x.dtype}:
        return "the kernel multiplies bf16, fp16 or fp32 as TF32"
    if any(w.stride() != first.stride() for w in weights):
        return "the weights of a pair have different strides"
    if x.stride(-1) != 1 or 1 not in first.stride()[-2:]:
        return "an operand is contiguous in no dimension"
    if not known_equal(x.shape[-1], first.shape[-2]):
        return "the operands do not fit"
    if x.dim() == 3 and (epilogue.reduced or not isinstance(x.shape[0], int)):
        return "results of batches are reduced, or their number varies"
    rows = [x.stride(-2), first.stride(-1 if first.stride(-2) == 1 else -2)]
    offsets = [tensor.storage_offset() for tensor in (x, *weights)]
    aligned = 16 // x.dtype.itemsize
    for size in (*rows, *offsets, *first.shape[-2:]):
        if not isinstance(size, int) or size % aligned or size >= 1 << 31:
            return "rows do not start at multiples of 16 bytes"
    apart = (*x.stride()[:-2], *first.stride()[:-2])  # of batches; they vary with their rows
    if not all(known_equal(size % aligned, 0) for size in apart):
        return "batches do not start at multiples of 16 bytes"
    if 0 in first.shape:
        return "the product is empty"
    for operand, value in zip(epilogue.operands, operands, strict=True):
        if operand.kind in ("full", "column") and _other_rows(value, x):
            return "what is read beside the product has other rows"
        starts = value.storage_offset(), *value.stride()[:-1]
        if (
            operand.kind == "full"
            and value.dtype in (*HALF, x.dtype)
            and any(not isinstance(one, int) or one * value.itemsize % 16 for one in starts)
        ):
            return "rows of what is read beside the product do not start at multiples of 16 bytes"
    if any(o.dim() == 2 and o.shape[1] != 1 and o.stride(1) != 1 for o in operands):
        return "what is read beside the product is not contiguous along its rows"
    return None


def _other_rows(one: Tensor, other: Tensor) -> bool:
    """Whether the rows of all batches are known and differ; what varies is as the graph says."""
    rows = math.prod(one.shape[:-1]), math.prod(other.shape[:-1])
    return all(isinstance(count, int) for count in rows) and rows[0] != rows[1]


# --- kernel ---------------------------------------------------------------------------------------


@functools.cache
def kernel(
    epilogue: str, tile: Tile, batches: bool = False, hosted: bool = False, leads: bool = False
) -> Any:
    """The Triton kernel of an epilogue with one tile, for one product (of a pair) or batches.

    Where ``hosted`` it is given descriptors; see ``gluon_source.py``. Where it
    ``lets_next_begin_early`` it lets a launch behind it begin; see ``programmatic_launch.py``.
    """
    import triton

    parsed = parse(epilogue)
    constants: dict[str, Any] = {"BM": tile.m, "BN": tile.n, "BK": tile.k}
    if tile.groups:
        text, name = _hopper(parsed, tile, hosted), HOPPER_KERNEL
        constants |= {"GROUP": tile.group, "STAGES": tile.stages}
        constants |= {"STAGED": places(parsed, tile.form, tile.itemsize)}
        constants |= {"AHEAD": prefetched(parsed, tile.form), "TAIL": tile.tail(parsed)}
    elif tile.plain:
        text, name = skinny_source(parsed, tile.form, leads=leads), "fusepass_gemm"
        constants["STAGES"] = tile.stages
    else:
        text, name = source(parsed), "fusepass_gemm"
        constants["GROUP"] = tile.group
        if parsed.products == 1:
            constants["SPLIT"] = tile.split
    if batches:
        text = per_batch(text, parsed, "gl" if tile.groups else "tl")
    made = function_of(text, name)
    config = triton.Config(constants, num_warps=tile.warps, num_stages=tile.stages)
    return triton.autotune([config], key=[])(made)


@functools.cache
def inductor_kernel(
    epilogue: str,
    tile: Tile,
    batches: bool = False,
    hosted: bool = False,
    transposed: bool = True,
    leads: bool = False,
) -> Any:
    """The same for Inductor's code, which takes kernels in Triton's language only."""
    import triton

    tuned = kernel(epilogue, tile, batches, hosted, leads)
    if not tile.groups:
        return triton.autotune(tuned.configs, key=[])(with_direct_launch(tuned.fn.fn))
    names = list(tuned.fn.arg_names)
    outputs = [name for name in names if name.startswith("o")]
    fixed = {"TRANSPOSED", *tuned.configs[0].kwargs}
    parsed = parse(epilogue)
    text = _hopper(parsed, tile, hosted)
    text = per_batch(text, parsed, "gl") if batches else text
    of = tma_operands(parsed, tile.m, tile.n, tile.k, transposed) if hosted else {}
    stub = gluon_stub(text, HOPPER_KERNEL, names, fixed, outputs, of)
    return triton.autotune(tuned.configs, key=[])(stub)


def _hopper(epilogue: Epilogue, tile: Tile, hosted: bool) -> str:
    return hopper_source(epilogue, tile.form, hosted=hosted, tail=tile.tail(epilogue) > 0)


def function_of(text: str, function: str) -> Any:
    """A function of a module made of a text; Triton reads the text back as it would a file's."""
    name = f"<fusepass gemm {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    module = types.ModuleType("fusepass_gemm")
    module.__file__ = name
    exec(compile(text, name, "exec"), vars(module))
    return vars(module)[function]


def arguments(
    x: Any,
    weights: Sequence[Any],
    operands: Sequence[Any],
    outputs: Sequence[Any],
    epilogue: Epilogue,
    values: Sequence[Tensor],
    tile: Tile,
    each: Any,
) -> dict[str, Any]:
    """The kernel's arguments, by name.

    Args:
        x: a tensor, or what stands for one; so for the next three.
        weights: one or two.
        operands: in the epilogue's order.
        outputs: likewise.
        epilogue: whose kernel it is.
        values: tensors (fake ones too) whose sizes and strides those of x, the weights and the
            operands are.
        tile: whose kernel it is.
        each: programs, for each batch.
    """
    fake_x, first, *_ = values
    fake_operands = values[1 + len(weights) :]
    transposed = first.stride(-2) == 1
    given: dict[str, Any] = {"x_ptr": x} | {f"w{i}_ptr": w for i, w in enumerate(weights)}
    for i, (operand, fake) in enumerate(zip(operands, fake_operands, strict=True)):
        given[f"p{i}"] = operand
        if epilogue.operands[i].kind == "full":
            given[f"s{i}"] = fake.stride(0)
    given |= {f"o{i}": output for i, output in enumerate(outputs)}
    given |= {"M": fake_x.shape[-2], "N": first.shape[-1], "K": fake_x.shape[-1]}
    given |= {"sx": fake_x.stride(-2), "sw": first.stride(-1 if transposed else -2)}
    if fake_x.dim() == 3:
        given |= {"EACH": each, "bx": fake_x.stride(0), "bw": first.stride(0)}
    if tile.groups or (epilogue.products == 1 and not tile.plain):
        given["TRANSPOSED"] = transposed
    return given


def launch(
    x: Tensor, weights: Sequence[Tensor], operands: Sequence[Tensor], epilogue: str, tile: Tile
) -> list[Tensor]:
    """Run the kernel now; for timing, and for tests. What is reduced comes in partial results.

    Raises:
        ValueError: the tile's descriptors would have to round, and the host cannot make them.
    """
    if tile.cuda is not None:
        return hopper_launch.launch(x, weights, operands, epilogue, tile.cuda)
    import triton

    parsed = parse(epilogue)
    shapes = _shapes(x, weights, parsed, tile)
    outputs = [
        x.new_empty(shape, dtype=getattr(torch, out.dtype))
        for shape, out in zip(shapes, parsed.outputs, strict=True)
    ]
    each, batches = _programs(x, weights[0], parsed, tile)
    if each * batches == 0:
        return outputs
    values = (x, *weights, *operands)
    given = arguments(x, weights, operands, outputs, parsed, values, tile, each)
    hosted = tile.groups > 0 and by_host(values, parsed)
    if tile.rounds_by_host and not hosted:
        raise ValueError(f"{tile.name}: only descriptors of the host's round to TF32")
    matrices: dict[str, Matrix] = {}
    if hosted:
        of = tma_operands(parsed, tile.m, tile.n, tile.k, given["TRANSPOSED"])
        matrices = {name: Matrix(*facts) for name, facts in of.items()}
        given |= {name: descriptor(given, name, one) for name, one in matrices.items()}
    launcher = kernel(epilogue, tile, x.dim() == 3, hosted)[(each * batches,)]

    def run() -> None:
        if x.is_cuda:
            triton.set_allocator(_scratch)  # of this context: the user's own stays
        made = launcher(**given)
        if tile.rounds_by_host and round_to_tf32(made, matrices):
            launcher(**given)  # the first time its descriptors did not round

    contextvars.copy_context().run(run)
    return outputs


def _programs(x: Tensor, weight: Tensor, epilogue: Epilogue, tile: Tile) -> tuple[Any, int]:
    """Programs to start for each batch, and how many batches there are."""
    sms, (m, n) = multiprocessors(x.device), (x.shape[-2], weight.shape[-1])
    count, most = programs(tile, epilogue.products, m, n, sms)
    batches = x.shape[0] if x.dim() == 3 else 1
    return (count if tile.plain else programs_each(count, most, batches)), batches


def _scratch(size: int, alignment: int, stream: int | None) -> Tensor:
    return torch.empty(size, dtype=torch.int8, device="cuda")


# --- operator -------------------------------------------------------------------------------------


@torch.library.custom_op(
    "fusepass::gemm_region",
    mutates_args=(),
    schema="(Tensor x, Tensor[] weights, Tensor[] operands, str epilogue, str tile) -> Tensor[]",
)
def gemm_region(
    x: Tensor, weights: Sequence[Tensor], operands: Sequence[Tensor], epilogue: str, tile: str
) -> list[Tensor]:
    """``epilogue`` of ``x @ w`` for each weight; see the module.

    Raises:
        ValueError: a malformed epilogue.
    """
    parsed = parse(epilogue)
    outputs = reference(x, weights, operands, parsed)
    shapes = _shapes(x, weights, parsed, tiles(parsed).get(tile))
    for i, output in enumerate(parsed.outputs):
        if output.over:  # as many partial results as the tile's kernel has
            neutral = 0.0 if output.by == "sum" else -math.inf
            outputs[i] = F.pad(outputs[i], (0, 0, 0, shapes[i][0] - 1), value=neutral)
    return outputs


@gemm_region.register_fake
def _(
    x: Tensor, weights: Sequence[Tensor], operands: Sequence[Tensor], epilogue: str, tile: str
) -> list[Tensor]:
    parsed = parse(epilogue)
    shapes = _shapes(x, weights, parsed, tiles(parsed).get(tile))
    return [
        x.new_empty(shape, dtype=getattr(torch, output.dtype))
        for shape, output in zip(shapes, parsed.outputs, strict=True)
    ]


OPERATOR = torch.ops.fusepass.gemm_region.default


def _shapes(
    x: Tensor, weights: Sequence[Tensor], epilogue: Epilogue, tile: Tile | None
) -> list[tuple[Any, Any]]:
    """Shapes of the outputs with a tile; without one, of what is reduced at once."""
    m, n = math.prod(x.shape[:-1]), weights[0].shape[-1]
    if tile is not None:
        return [tile.shape_of(output, len(weights), m, n) for output in epilogue.outputs]
    whole = {"": (m, n), "rows": (1, n), "columns": (1, m)}
    return [whole[output.over] for output in epilogue.outputs]


def plan(
    values: Sequence[Tensor], products: int, epilogue: str, tile: str
) -> KernelCall | HostCall | None:
    """How Inductor should compile one call; None for the operator itself.

    Args:
        values: fake tensors of x, the weights and the operands.
        products: how many weights there are.
        epilogue: as the operator is given it.
        tile: likewise.
    """
    x, weights, operands = values[0], values[1 : 1 + products], values[1 + products :]
    parsed = parse(epilogue)
    chosen = tiles(parsed).get(tile)
    if chosen is None or not chosen.takes(x.shape[-2], weights, parsed):
        return None
    if x.device.type != "cuda" or refuses(x, weights, operands, parsed):
        return None
    if chosen.cuda is not None:
        return hopper_launch.host_call(values, products, epilogue, with_early_launch(chosen.cuda))
    each, batches = _programs(x, weights[0], parsed, chosen)
    made = [
        (getattr(torch, output.dtype), shape)
        for output, shape in zip(parsed.outputs, _shapes(x, weights, parsed, chosen), strict=True)
    ]

    def given(tensors: Sequence[Any], outputs: Sequence[Any]) -> dict[str, Any]:
        rest = tensors[1 + products :]
        return arguments(
            tensors[0], tensors[1 : 1 + products], rest, outputs, parsed, values, chosen, each
        )

    hosted = chosen.groups > 0 and by_host(values, parsed)
    if chosen.rounds_by_host and not hosted:
        return None
    transposed = weights[0].stride(-2) == 1 or not hosted  # only descriptors made here depend on it
    first = chosen.plain and lets_next_begin_early()
    made_for = inductor_kernel(epilogue, chosen, x.dim() == 3, hosted, transposed, first)
    return KernelCall(made_for, each * batches, made, given)


def install_lowering() -> None:
    """Tell Inductor how to compile ``fusepass::gemm_region``, if Inductor is loaded."""
    lower_to_kernel(OPERATOR, plan)
