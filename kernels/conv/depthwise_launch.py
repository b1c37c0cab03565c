"""Launch the kernel for depthwise convolutions with little host overhead."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusepass.fusion.kernel_ir.epilogue import Epilogue, parse
from fusepass.kernels.codegen import cubin_cache
from fusepass.kernels.conv.depthwise_source import (
    NAME,
    DepthwisePatch,
    DepthwiseShape,
    depthwise_source,
    lanes,
    patches,
    rows,
    shape_of,
)
from fusepass.torch_private.cuda import nvrtc


@dataclass(frozen=True)
class LaunchPlan:
    """What is launched for one kind of call; calls are to be quick for the host.

    Attributes:
        kernel: the driver's.
        table: type of its parameter.
        blocks, threads: of the launch; no blocks where nothing is to be computed.
        pixels, channels: of the result.
        dtypes: of the outputs.
        aligned: for those operands that are read in vectors, where their address must have no
            bits.
    """

    kernel: Any
    table: type[ctypes.Structure]
    blocks: int
    threads: int
    pixels: int
    channels: int
    dtypes: tuple[torch.dtype, ...]
    aligned: tuple[tuple[int, int], ...]


_MOST_PLANS = 64  # of one function, for batches that vary
_WAVES = 4  # of blocks for each multiprocessor; each reads its weights anew


@functools.lru_cache(maxsize=512)
def _compiled(shape: DepthwiseShape, text: str, patch: DepthwisePatch, device: int) -> Any:
    """The kernel and the type of its parameter; the batch is none of its constants."""
    epilogue = parse(text)
    numbers = max(len(epilogue.operands) + len(epilogue.outputs), 1)
    fields = [("x", ctypes.c_uint64), ("w", ctypes.c_uint64)]
    fields += [("p", ctypes.c_uint64 * numbers), ("batch", ctypes.c_uint32)]  # type: ignore[list-item]
    table = type("Table", (ctypes.Structure,), {"_fields_": fields})
    with torch.cuda.device(device):
        return cubin_cache.load_or_compile(depthwise_source(shape, epilogue, patch), NAME), table


@functools.lru_cache(maxsize=1024)
def plan_of(
    sizes: tuple[int, ...],
    dtype: str,
    kernel: tuple[int, ...],
    steps: tuple[tuple[int, int], ...],
    text: str,
    patch: DepthwisePatch,
    device: int,
) -> LaunchPlan:
    """How to compute a call with an x and a weight of these sizes, on a device of this number."""
    known: torch.dtype = getattr(torch, dtype)
    shape, epilogue = shape_of(sizes, kernel, dtype, *steps), parse(text)
    made, table = _compiled(shape, text, patch, device)
    wide, high = lanes(shape, patch), rows(shape, patch)
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    down, across = patches(shape, patch)
    groups = shape.channels // (wide * patch.vector)
    most = max(_WAVES * processors // groups, 1)
    pixels = sizes[0] * shape.result[0] * shape.result[1]
    blocks = groups * min(-(-sizes[0] * down * across // high), most) if pixels > 0 else 0
    vectors = [(0, known.itemsize)]  # x, then the operands, behind the weight
    for place, one in enumerate(epilogue.operands, start=2):
        if one.kind == "full":
            vectors.append((place, getattr(torch, one.dtype).itemsize))
    return LaunchPlan(
        made,
        table,
        blocks,
        wide * high,
        max(pixels, 0),
        shape.channels,
        tuple(getattr(torch, out.dtype) for out in epilogue.outputs),
        tuple((place, size * patch.vector - 1) for place, size in vectors if patch.vector > 1),
    )


def prepare(shape: DepthwiseShape, epilogue: Epilogue, patch: str, device: torch.device) -> None:
    """Compile what calls of this kind will launch.

    Raises:
        Exception: there is no NVRTC, or it refuses.
    """
    _compiled(shape, epilogue.text(), patch_named(patch), device.index or 0)


@functools.lru_cache(maxsize=512)
def make_launcher(
    sizes: tuple[int, ...],
    dtype: str,
    kernel: tuple[int, ...],
    steps: tuple[tuple[int, int], ...],
    epilogue: str,
    patch: str,
    device: int,
) -> Callable[..., None]:
    """What computes a call, with ``device`` the current one.

    It is called with the batch of x, with x, weight and operands, and with outputs to be filled;
    only the addresses of these tensors are asked for.

    Args:
        sizes: of x, without the batch.
        dtype: of x; torch's name.
        kernel: the sizes of the weight.
        steps: stride, padding and dilation.
        epilogue: its text.
        patch: its name.
        device: its number.
    """
    wanted = patch_named(patch)
    narrow = DepthwisePatch(1, wanted.across, wanted.down)
    plans: dict[tuple[int, bool], LaunchPlan] = {}

    def planned(batch: int, aligned: bool) -> LaunchPlan:
        if len(plans) > _MOST_PLANS:
            plans.clear()
        used = wanted if aligned else narrow
        made = plan_of((batch, *sizes), dtype, kernel, steps, epilogue, used, device)
        return plans.setdefault((batch, aligned), made)

    def fill(batch: int, *tensors: Tensor) -> None:
        given = tuple(map(Tensor.data_ptr, tensors))
        plan = plans.get((batch, True)) or planned(batch, True)
        for place, bits in plan.aligned:
            if given[place] & bits:  # it starts between two vectors
                plan = plans.get((batch, False)) or planned(batch, False)
                break
        if plan.blocks:
            table: Any = plan.table(given[0], given[1])
            table.p[: len(given) - 2] = given[2:]
            table.batch = batch
            nvrtc.launch(plan.kernel, plan.blocks, plan.threads, table, device)

    return fill


@functools.lru_cache(maxsize=64)
def patch_named(name: str) -> DepthwisePatch:
    """The patch that a candidate's name says."""
    return DepthwisePatch(*map(int, name.removeprefix("cuda ").split("x")))
