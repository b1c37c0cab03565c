"""Launches of the kernel for many independent pointwise members.

Calls are to be quick for the host, which has hundreds of addresses to give: what a program and the
shapes of its operands say is read off once, and a table whose addresses are those of the call
before is not filled again.
"""

from __future__ import annotations

import ctypes
import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusepass.fusion.kernel_ir.epilogue import Epilogue
from fusepass.fusion.kernel_ir.pointwise_program import parse
from fusepass.kernels.codegen import cubin_cache
from fusepass.kernels.codegen.workspace import Kind, ResultCache
from fusepass.kernels.pointwise.horizontal_source import NAME, STEP, THREADS, rounds_for, source
from fusepass.torch_private.cuda import nvrtc

# Members and addresses of one launch: parameters of 4 KiB, which every driver takes, or of 32.
_SMALL, _LARGE = (64, 376), (512, 2048)


@functools.cache
def _table(members: int, addresses: int) -> type[ctypes.Structure]:
    u32 = ctypes.c_uint32 * members
    u16 = ctypes.c_uint16 * members
    fields = [("address", ctypes.c_uint64 * addresses), ("start", u32), ("size", u32)]
    fields += [("inner", u32), ("at", u16), ("body", u16), ("count", ctypes.c_uint32)]
    return type("Table", (ctypes.Structure,), {"_fields_": fields})


@functools.cache
def _kernel(
    bodies: tuple[Epilogue, ...], members: int, addresses: int, rounds: int, device: int
) -> Any:
    with torch.cuda.device(device):
        return cubin_cache.load_or_compile(source(bodies, members, addresses, rounds), NAME)


@dataclass
class _Launch:
    """One launch, all but its addresses filled in: they are new in each call.

    Attributes:
        kernel: the driver's.
        table: its parameter.
        blocks: of the launch.
        picked: gives the addresses of its members, operands and results of one after the other,
            out of those of all operands and then all results.
        count: how many these are.
    """

    kernel: Any
    table: ctypes.Structure
    blocks: int
    picked: Callable[[Sequence[int]], tuple[int, ...]]
    count: int


@dataclass(frozen=True)
class ProgramPlan:
    """What a program says about its calls, read off once: calls are to be quick for the host.

    Attributes:
        likes: for each member, which operand its results are laid out as.
        columns: likewise, which operand says how many columns there are; -1 for none.
        dtypes: of the results.
        starts, result_starts: as the program's.
    """

    likes: tuple[int, ...]
    columns: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    starts: tuple[int, ...]
    result_starts: tuple[int, ...]

    @property
    def of(self) -> list[int]:
        """For each result, which member's it is."""
        ends = zip(self.result_starts, self.result_starts[1:], strict=False)
        return [m for m, (first, last) in enumerate(ends) for _ in range(first, last)]


@functools.lru_cache(maxsize=256)
def plan_of(text: str) -> ProgramPlan:
    """What a program says, read off its text."""
    program = parse(text)
    starts, bodies = program.starts, program.bodies
    kinds = [[operand.kind for operand in body.operands] for body in bodies]
    full = [kind.index("full") for kind in kinds]
    column = [kind.index("column") if "column" in kind else None for kind in kinds]
    dtypes = [[getattr(torch, output.dtype) for output in body.outputs] for body in bodies]
    pairs = list(zip(starts, program.members, strict=False))
    return ProgramPlan(
        tuple(start + full[body] for start, body in pairs),
        tuple(-1 if (at := column[body]) is None else start + at for start, body in pairs),
        tuple(dtype for body in program.members for dtype in dtypes[body]),
        starts,
        program.result_starts,
    )


@functools.lru_cache(maxsize=256)
def _launches(
    text: str, shapes: tuple[tuple[int, ...], ...], columns: tuple[int, ...], device: int
) -> list[_Launch]:
    """What to launch for members of these shapes.

    Args:
        text: of the program.
        shapes: of the members' results.
        columns: how many each has; 1 if it has none.
        device: its number.
    """
    program = parse(text)
    starts, results, made = program.starts, program.result_starts, []
    count = len(program.members)
    begin = [start + result for start, result in zip(starts, results, strict=True)]  # addresses
    most, room = _SMALL if count <= _SMALL[0] and begin[-1] <= _SMALL[1] else _LARGE
    first = 0
    while first < count:
        last = first
        while last < count and last - first < most:
            if begin[last + 1] - begin[first] > room:
                break
            last += 1
        used = sorted({program.members[i] for i in range(first, last)})
        bodies = tuple(program.bodies[body] for body in used)
        table: Any = _table(most, room)()
        sizes = [math.prod(shape) for shape in shapes[first:last]]
        rounds, blocks = rounds_for(sum(sizes)), 0
        for m, size in enumerate(sizes, first):
            i, at = m - first, begin[m] - begin[first]
            table.start[i], table.size[i], table.at[i] = blocks, size, at
            table.inner[i] = max(size // max(columns[m], 1), 1)
            table.body[i] = used.index(program.members[m])
            blocks += -(-size // (STEP * rounds))
        table.count = last - first
        kernel = _kernel(bodies, most, room, rounds, device)
        places: list[int] = []
        for m in range(first, last):
            places += range(starts[m], starts[m + 1])
            places += range(starts[-1] + results[m], starts[-1] + results[m + 1])
        if blocks:
            picked = operator.itemgetter(*places)
            made.append(_Launch(kernel, table, blocks, picked, len(places)))
        first = last
    return made


def prepare(operands: Sequence[Tensor], text: str) -> None:
    """Compile what a call with such operands, fake ones too, will launch.

    Raises:
        Exception: there is no NVRTC, or it refuses.
    """
    plan = plan_of(text)
    _launches(text, *sizes_of(operands, plan), operands[0].device.index or 0)


def sizes_of(
    operands: Sequence[Tensor], plan: ProgramPlan
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Shapes of the members' results, and how many columns these have."""
    shapes = tuple([tuple(operands[i].shape) for i in plan.likes])
    return shapes, tuple([1 if i < 0 else operands[i].numel() for i in plan.columns])


def make_launcher(
    text: str,
    shapes: tuple[tuple[int, ...], ...],
    columns: tuple[int, ...],
    device: int,
    own: tuple[tuple[int, str, tuple[int, ...]], ...] = (),
) -> Callable[..., list[Tensor]]:
    """What computes a program, with ``device`` the current one.

    It is called with the operands, and then with those results that are to be filled; it gives
    those that are its own, in memory that is the same in each call in a thread on a stream. Only
    the addresses of what it is given are asked for.

    Args:
        text: of the program.
        shapes: of the members' results.
        columns: how many these have; 1 if they have none.
        device: its number.
        own: of the results that it gives: which, dtype, strides.
    """
    plan = plan_of(text)
    operands, of = plan.starts[-1], plan.of
    mine = dict.fromkeys(i for i, *_ in own)
    order = [*(i for i in range(len(of)) if i not in mine), *mine]
    place = {result: operands + at for at, result in enumerate(order)}
    canonical = operator.itemgetter(*range(operands), *map(place.__getitem__, range(len(of))))
    kinds: list[Kind] = [(dtype, shapes[of[i]], strides) for i, dtype, strides in own]
    memory = ResultCache(kinds, torch.device("cuda", device))
    known: list[_Launch] = []  # compiled by the first call
    latest: list[_Launches] = [((), [])]  # of a call without kept results

    def fill(*tensors: Tensor) -> list[Tensor]:
        if not known:
            known[:] = _launches(text, shapes, columns, device)
        kept = None
        if kinds and not nvrtc.is_capturing():
            kept = memory.for_stream(nvrtc.stream(device))
        results = _allocate(kinds) if kept is None else kept.results
        addresses = (*map(Tensor.data_ptr, tensors), *map(Tensor.data_ptr, results))
        before = latest[0] if kept is None else kept.last
        if before is None or before[0] != addresses:
            ordered = canonical(addresses)
            before = addresses, [(one, _fill_parameters(one, ordered)) for one in known]
            if kept is None:
                latest[0] = before  # in one step: threads may call at once
            else:
                kept.last = before
        for one, table in before[1]:
            nvrtc.launch(one.kernel, one.blocks, THREADS, table, device)
        return results

    return fill


_Launches = tuple[tuple[int, ...], list[tuple[_Launch, ctypes.Structure]]]
"""Addresses of a call, and its launches with their parameters."""


def _allocate(kinds: Sequence[Kind]) -> list[Tensor]:
    return [nvrtc.empty(shape, strides, getattr(torch, dtype)) for dtype, shape, strides in kinds]


def _fill_parameters(one: _Launch, addresses: Sequence[int]) -> ctypes.Structure:
    """A launch's parameter of its own: threads may call at once."""
    table: Any = type(one.table).from_buffer_copy(one.table)
    table.address[: one.count] = one.picked(addresses)
    return table  # type: ignore[no-any-return]


def launch(operands: Sequence[Tensor], text: str) -> list[Tensor]:
    """The results, by as few launches as there can be."""
    plan = plan_of(text)
    if len(operands) != plan.starts[-1]:
        raise ValueError(f"{len(operands)} operands for members that read {plan.starts[-1]}")
    device = operands[0].device.index
    shapes, columns = sizes_of(operands, plan)
    with torch.cuda.device(device):
        likes = [operands[plan.likes[member]] for member in plan.of]
        results = [
            nvrtc.empty(like.shape, like.stride(), dtype)
            for like, dtype in zip(likes, plan.dtypes, strict=True)
        ]
        make_launcher_into(text, shapes, columns, device)(*operands, *results)
    return results


@functools.lru_cache(maxsize=256)
def make_launcher_into(
    text: str, shapes: tuple[tuple[int, ...], ...], columns: tuple[int, ...], device: int
) -> Callable[..., list[Tensor]]:
    """A :func:`make_launcher` without results of its own, of which one will do for equal calls."""
    return make_launcher(text, shapes, columns, device)
