"""A depthwise convolution with everything element-wise around its result as one operation.

    ``fusepass::depthwise(x, weight, operands, epilogue, stride, padding, dilation, patch)``

Each channel is convolved with a kernel of its own. ``epilogue`` is the text of a
:class:`fusepass.graph.epilogue.Epilogue` of that result as a matrix, one row for each pixel.
Shapes: ``x`` (B, C, H, W), channels last; ``weight`` (C, 1, h, w); operands broadcastable to
(M, C), where M are the pixels of the result's images; outputs (M, C), contiguous. ``x`` and
``weight`` are bf16, fp16 or fp32; sums are in fp32.

The operator computes its reference on any device but CUDA's, where it launches the kernel of
``depthwise_source.py``. Under Inductor it becomes a call of what :func:`filler` gives, with outputs
in memory that Inductor plans. For graphs after autograd: no backward formula.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusepass.graph.epilogue import Epilogue, Output, evaluate, parse
from fusepass.kernels.depthwise_source import (
    NAME,
    Patch,
    Shape,
    depthwise_source,
    lanes,
    patches,
    rows,
)
from fusepass.torch_private import nvrtc
from fusepass.torch_private.host_call import HostCall, lower_to_host_call
from fusepass.torch_private.kernel_call import kernel_calls_tested

Pair = Sequence[int]
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


def choices(shape: Shape) -> tuple[Patch, ...]:
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
        Patch(vector, across[kind], down)
        for vector, down, kind in (_PATCHES if shape.stride[1] == 1 else _PATCHES_OF_STRIDES)
        if shape.channels % vector == 0 and down <= shape.result[0]
    ]
    plain = [Patch(1, across[0], 1)] * (shape.channels % 2)
    return tuple(dict.fromkeys([*made, *plain]))


def shape_of(
    image: Sequence[int],
    weight: Sequence[int],
    dtype: torch.dtype,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
) -> Shape:
    """What a call with an x of the sizes ``image`` computes; only its batch may vary."""
    sides = zip(image[2:], weight[2:], stride, padding, dilation, strict=True)
    result = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sides]

    def pair(sizes: Pair) -> tuple[int, int]:
        height, width = map(int, sizes)
        return height, width

    return Shape(
        channels=int(image[1]),
        image=pair(image[2:]),
        result=pair(result),
        kernel=pair(weight[2:]),
        stride=pair(stride),
        padding=pair(padding),
        dilation=pair(dilation),
        dtype=str(dtype).removeprefix("torch."),
    )


# --- kernel ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
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
def _compiled(shape: Shape, text: str, patch: Patch, device: int) -> Any:
    """The kernel and the type of its parameter; the batch is none of its constants."""
    epilogue = parse(text)
    numbers = max(len(epilogue.operands) + len(epilogue.outputs), 1)
    fields = [("x", ctypes.c_uint64), ("w", ctypes.c_uint64)]
    fields += [("p", ctypes.c_uint64 * numbers), ("batch", ctypes.c_uint32)]  # type: ignore[list-item]
    table = type("Table", (ctypes.Structure,), {"_fields_": fields})
    with torch.cuda.device(device):
        return nvrtc.compiled(depthwise_source(shape, epilogue, patch), NAME), table


@functools.lru_cache(maxsize=1024)
def _plan(
    sizes: tuple[int, ...],
    dtype: str,
    kernel: tuple[int, ...],
    steps: tuple[tuple[int, int], ...],
    text: str,
    patch: Patch,
    device: int,
) -> _Plan:
    """How to compute a call with an x and a weight of these sizes, on a device of this number."""
    known: torch.dtype = getattr(torch, dtype)
    shape, epilogue = shape_of(sizes, kernel, known, *steps), parse(text)
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
    return _Plan(
        made,
        table,
        blocks,
        wide * high,
        max(pixels, 0),
        shape.channels,
        tuple(getattr(torch, out.dtype) for out in epilogue.outputs),
        tuple((place, size * patch.vector - 1) for place, size in vectors if patch.vector > 1),
    )


def prepare(shape: Shape, epilogue: Epilogue, patch: str, device: torch.device) -> None:
    """Compile what calls of this kind will launch.

    Raises:
        Exception: there is no NVRTC, or it refuses.
    """
    _compiled(shape, epilogue.text(), _named(patch), device.index or 0)


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
    plan = _plan(x.shape, dtype, weight.shape, steps, epilogue, _named(patch), device)
    results = [nvrtc.empty_matrix(plan.pixels, plan.channels, out) for out in plan.dtypes]
    fill = filler(sizes, dtype, tuple(weight.shape), steps, epilogue, patch, device)
    fill(x.shape[0], x, weight, *operands, *results)
    return results


@functools.lru_cache(maxsize=512)
def filler(
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
    wanted = _named(patch)
    narrow = Patch(1, wanted.across, wanted.down)
    plans: dict[tuple[int, bool], _Plan] = {}

    def planned(batch: int, aligned: bool) -> _Plan:
        if len(plans) > _MOST_PLANS:
            plans.clear()
        used = wanted if aligned else narrow
        made = _plan((batch, *sizes), dtype, kernel, steps, epilogue, used, device)
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
def _named(name: str) -> Patch:
    return Patch(*map(int, name.removeprefix("cuda ").split("x")))


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


def _on_any_device(
    x: Tensor, weight: Tensor, operands: Sequence[Tensor], epilogue: str, *rest: Any
) -> list[Tensor]:
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


def _product(x: Tensor, weight: Tensor, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
    """The result alone, in x's dtype; stands in a graph while a site is looked at, never longer."""
    (made,) = reference(x, weight, [], ALONE, stride, padding, dilation)
    return made.to(x.dtype)


def _fake_product(x: Tensor, weight: Tensor, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
    return x.new_empty(_result(x, weight, stride, padding, dilation))


_library.impl("depthwise", _on_any_device, "CompositeExplicitAutograd")
_library.impl("depthwise", launch, "CUDA")
torch.library.register_fake("fusepass::depthwise", _fake, lib=_library)
_library.impl("depthwise_product", _product, "CompositeExplicitAutograd")
torch.library.register_fake("fusepass::depthwise_product", _fake_product, lib=_library)
OPERATOR = torch.ops.fusepass.depthwise.default
PRODUCT = torch.ops.fusepass.depthwise_product.default


def _call(
    x: Tensor, weight: Tensor, operands: Sequence[Tensor], epilogue: str, *rest: Any
) -> HostCall | None:
    """What generated code calls, for fake operands; None for the operator itself."""
    *steps, patch = rest
    sizes = tuple(x.shape[1:])
    known = all(isinstance(size, int) for size in (*sizes, *weight.shape))
    if x.device.type != "cuda" or patch == "reference" or not kernel_calls_tested() or not known:
        return None
    rows, channels = _result(x, weight, *steps)
    outputs = [
        (getattr(torch, out.dtype), (rows, channels), (channels, 1))
        for out in parse(epilogue).outputs
    ]
    dtype = str(x.dtype).removeprefix("torch.")
    given = sizes, dtype, tuple(weight.shape), tuple(map(tuple, steps)), epilogue, patch
    return HostCall(__name__, "filler", (*given, x.device.index or 0), outputs, x.shape[:1])


def install_lowering() -> None:
    """Tell Inductor how to compile ``fusepass::depthwise``, if Inductor is loaded."""
    lower_to_host_call(OPERATOR, _call)
