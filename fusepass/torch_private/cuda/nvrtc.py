"""Compile CUDA C++ with NVRTC, and launch it with parameters by value.

Run on 2.11; from 2.13 on only imported, since no device with it was at hand.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_INVALID_CONTEXT = 201
_MOST_DYNAMIC_SHARED = 8  # CUfunction_attribute
_BEGINS_EARLY = 6  # CUlaunchAttributeID, programmatic stream serialization
_Parameter = ctypes.c_void_p * 1
_EMPTY = torch._C._dynamo.guards._empty_strided_cuda  # type: ignore[attr-defined]


def binary_of(source: str, name: str, architecture: str) -> tuple[bytes, str]:
    """A kernel compiled, and what it is called in there.

    Args:
        source: text of CUDA C++.
        name: the kernel's.
        architecture: what to compile for, as ``80`` or ``90a``.

    Raises:
        OSError: NVRTC is not there.
        RuntimeError: it refuses the source.
    """
    library = _library()
    program = ctypes.c_void_p()

    def call(function: str, *given: Any) -> None:
        result = getattr(library, function)(*given)
        if result:
            raise RuntimeError(f"{function} of NVRTC: error {result}{_said(library, program)}")

    def taken(what: str) -> bytes:
        size = ctypes.c_size_t()
        call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        room = ctypes.create_string_buffer(size.value)
        call(f"nvrtcGet{what}", program, room)
        return room.raw

    # Not by torch's helper: that one looks for headers of a toolkit, which need not be there.
    create = ctypes.byref(program), source.encode(), f"{name}.cu".encode(), 0, None, None
    call("nvrtcCreateProgram", *create)
    try:
        call("nvrtcAddNameExpression", program, name.encode())
        option = (ctypes.c_char_p * 1)(f"--gpu-architecture=sm_{architecture}".encode())
        call("nvrtcCompileProgram", program, 1, option)
        entry = ctypes.c_char_p()
        call("nvrtcGetLoweredName", program, name.encode(), ctypes.byref(entry))
        return taken("CUBIN"), (entry.value or b"").decode()
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


@functools.cache
def is_there() -> bool:
    """Whether NVRTC can be loaded."""
    try:
        _library()
    except (OSError, RuntimeError):
        return False
    return True


def _library() -> Any:
    """NVRTC, as torch loads it.

    Raises:
        OSError: it is not there.
        RuntimeError: this torch is for other devices.
    """
    if torch.version.cuda is None:
        raise RuntimeError("NVRTC compiles for CUDA only")
    from torch.cuda._utils import _get_gpu_rtc_library

    return _get_gpu_rtc_library()


def _said(library: Any, program: ctypes.c_void_p) -> str:
    """The compiler's log, if there is one."""
    size = ctypes.c_size_t()
    if program.value is None or library.nvrtcGetProgramLogSize(program, ctypes.byref(size)):
        return ""
    room = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, room)
    return f"\n{room.value.decode(errors='replace')}"


def loaded(binary: bytes, entry: str) -> Any:
    """The driver's kernel in the current device's context.

    Raises:
        RuntimeError: the driver refuses.
    """
    from torch.cuda._utils import _cuda_load_module

    _ensure_context(_driver(), torch.cuda.current_device())
    return _cuda_load_module(binary, [entry])[entry].func  # type: ignore[index]


def give_shared_memory(kernel: Any, size: int) -> None:
    """Let blocks of a kernel share more memory than 48 KiB.

    Raises:
        RuntimeError: the device has not as much.
    """
    driver_call("cuFuncSetAttribute", kernel, _MOST_DYNAMIC_SHARED, size)


def launch(kernel: Any, blocks: int, threads: int, table: ctypes.Structure, device: int) -> None:
    """Start a kernel on the device's current stream; its parameter is copied before this returns.

    Raises:
        RuntimeError: the driver refuses.
    """
    given = _Parameter(ctypes.addressof(table))
    stream = torch._C._cuda_getCurrentRawStream(device)
    launch_with(kernel, (blocks, 1, 1), threads, 0, stream, given)


def launch_with(
    kernel: ctypes.c_void_p,
    grid: tuple[int, int, int],
    threads: int,
    shared: int,
    stream: int,
    parameters: ctypes.Array[ctypes.c_void_p],
) -> None:
    """Start a kernel; what its parameters point to is copied before this returns.

    Args:
        kernel: the driver's.
        grid: blocks in each direction.
        threads: of a block.
        shared: bytes of memory that the block's threads share.
        stream: of the current device, as the driver names it.
        parameters: where each of them is.

    Raises:
        RuntimeError: the driver refuses.
    """
    launch, given = _driver().cuLaunchKernel, (ctypes.c_void_p(stream), parameters, None)
    result = launch(kernel, *grid, threads, 1, 1, shared, *given)
    if result == _INVALID_CONTEXT:
        _ensure_context(_driver(), torch.cuda.current_device())
        result = launch(kernel, *grid, threads, 1, 1, shared, *given)
    if result:
        _check(result)


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("kind", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


def early(grid: tuple[int, int, int], threads: int, shared: int, stream: int) -> ctypes.Structure:
    """How :func:`launch_early` starts a kernel; arguments as those of :func:`launch_with`."""
    attribute = _Attribute(_BEGINS_EARLY, 0, (ctypes.c_int * 16)(1))
    blocks, block = (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(threads, 1, 1)
    return _Config(blocks, block, shared, stream, ctypes.pointer(attribute), 1)


def launch_early(
    kernel: ctypes.c_void_p, config: ctypes.Structure, parameters: ctypes.Array[ctypes.c_void_p]
) -> None:
    """Start a kernel that may begin as soon as the one in front of it allows.

    It waits itself for what that one writes (CUDA C++ Programming Guide, "Programmatic Dependent
    Launch").

    Raises:
        RuntimeError: the driver refuses.
    """
    driver_call("cuLaunchKernelEx", ctypes.byref(config), kernel, parameters, None)


@functools.cache
def begins_early() -> bool:
    """Whether the driver has such launches, in CUDA graphs too (from 12.3 on)."""
    if torch.version.cuda is None:
        return False
    version = ctypes.c_int()
    try:
        driver_call("cuDriverGetVersion", ctypes.byref(version))
    except (OSError, RuntimeError):
        return False
    return version.value >= 12030


def driver_call(name: str, *arguments: Any) -> None:
    """Call a function of the driver, in a thread that has no context yet, too.

    Raises:
        RuntimeError: the driver refuses.
    """
    call = getattr(_driver(), name)
    result = call(*arguments)
    if result == _INVALID_CONTEXT:
        _ensure_context(_driver(), torch.cuda.current_device())
        result = call(*arguments)
    if result:
        _check(result)


@functools.cache
def _driver() -> Any:
    """The driver's library; torch opens it anew each time it is asked."""
    from torch.cuda._utils import _get_gpu_runtime_library

    return _get_gpu_runtime_library()


def _check(result: int) -> None:
    from torch.cuda._utils import _check_cuda

    _check_cuda(result)


def _ensure_context(driver: Any, device: int) -> None:
    """Give this thread the context that torch uses; a new thread has none before it needs one.

    Raises:
        RuntimeError: the driver refuses.
    """
    context = ctypes.c_void_p()
    _check(driver.cuCtxGetCurrent(ctypes.byref(context)))
    if context.value is None:
        _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        _check(driver.cuCtxSetCurrent(context))


def stream(device: int) -> int:
    """The device's current stream, as the driver names it."""
    return int(torch._C._cuda_getCurrentRawStream(device))


def is_capturing() -> bool:
    """Whether the current stream's work becomes a CUDA graph."""
    return bool(torch._C._cuda_isCurrentStreamCapturing())


def empty(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Memory on the current device: an allocation, nothing else."""
    made: Tensor = _EMPTY(tuple(shape), tuple(strides), dtype)  # no ``torch.Size``, by name
    return made
