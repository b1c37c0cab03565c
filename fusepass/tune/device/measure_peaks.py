"""What a device reaches, measured in a fraction of a second and without a trace in the program.

Everything runs in a thread of its own, because a fresh thread has none of what a compile has put
around the caller: fake tensors, tracing, grad mode, inference mode, autocast, a default device,
functorch transforms, memory pools. Work is queued on the caller's stream, behind what is there, so
that memory goes back to where the program finds it. Data comes from a generator of its own. Each
figure is the best of several, which is the one least disturbed by others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fusepass.torch_private.inductor.lowering import keep_device_busy

_SEED = 2026
_GPU_SIDE, _CPU_SIDE = 4096, 192  # of the square matrices: large enough to reach the peak
_GPU_BYTES, _CPU_BYTES = 256 << 20, 16 << 20  # of all operands together; well above L2
_GPU_SECONDS, _CPU_SECONDS = 0.02, 0.004  # for each figure, but at least three samples
_LAUNCHES = 50
_CYCLES_TO_QUEUE = 1_500_000  # of a waiting kernel; the host queues all launches meanwhile


# What a graph break costs the host besides reading the value back: leaving one compiled graph,
# finding and checking the code that resumes, entering the next. On the host of an H200 that
# took 22 µs in a function of three lines, 40 to 46 µs in layers of modules, 80 and more in
# training (torch 2.11). A desktop CPU took 9 to 48 µs (torch 2.13). Not measured here, because
# that takes a compile.
RESUME = 40e-6


@dataclass(frozen=True)
class Peaks:
    """What a device reaches, and what asking it costs.

    Attributes:
        flops16: floating-point operations per second of a 16-bit product of matrices.
        flops32: the same in float32, with or without TF32 as torch is set.
        bandwidth: bytes per second of a large copy, reads and writes together.
        launch: seconds from one kernel to the next on a busy device (CPU: of one small operation).
        read_back: seconds from launching a tiny kernel until the host has its 0-d result.
    """

    flops16: float
    flops32: float
    bandwidth: float
    launch: float
    read_back: float

    @property
    def round_trip(self) -> float:
        """Seconds of a graph break that reads a value back: the wait, then :data:`RESUME`."""
        return self.read_back + RESUME


def measure(device: torch.device) -> Peaks:
    """Measure a CUDA device, or the CPU; each figure rounded to two digits, beyond which is noise.

    Raises:
        Exception: whatever went wrong, too little memory included.
    """
    cuda = device.type == "cuda"
    stream = torch.cuda.current_stream(device) if cuda else None
    found: list[Peaks] = []
    failed: list[Exception] = []

    def work() -> None:
        try:
            if stream is None:
                found.append(_measured(device, _on_host))
            else:
                with torch.cuda.device(device), torch.cuda.stream(stream):
                    found.append(_measured(device, _on_device))
        except Exception as error:  # noqa: BLE001 - handed to the caller, below
            failed.append(error)

    thread = threading.Thread(target=work, name="fusepass-peaks")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


Timer = Callable[[Callable[[], object], int], float]


def _measured(device: torch.device, best: Timer) -> Peaks:
    cuda = device.type == "cuda"
    side, size = (_GPU_SIDE, _GPU_BYTES) if cuda else (_CPU_SIDE, _CPU_BYTES)
    with torch.no_grad():
        memory = torch.empty(size, dtype=torch.uint8, device=device)
        products = 2.0 * side**3
        old = cuda and torch.cuda.get_device_capability(device) < (8, 0)  # emulates bfloat16
        half_dtype = torch.float16 if old else torch.bfloat16
        flops16 = products / best(_product(memory, side, half_dtype), 1)
        flops32 = products / best(_product(memory, side, torch.float32), 1)
        half = size // 2
        copied = best(lambda: memory[:half].copy_(memory[half:]), 1)
        flag = torch.zeros((), dtype=torch.float32, device=device)
        launch = best(lambda: flag.add_(1.0), _LAUNCHES)
        read_back = _on_host(lambda: flag.add_(1.0).item(), 1)
    figures = (flops16, flops32, size / copied, launch, read_back)
    return Peaks(*(float(f"{figure:.2g}") for figure in figures))


def _product(memory: Tensor, side: int, dtype: torch.dtype) -> Callable[[], object]:
    """A product of random matrices that lie in ``memory``: with zeros it would be too fast."""
    generator = torch.Generator(memory.device).manual_seed(_SEED)
    typed, count = memory.view(dtype), side * side
    a, b, out = (typed[i * count : (i + 1) * count].view(side, side) for i in range(3))
    a.normal_(generator=generator)
    b.normal_(generator=generator)
    return lambda: torch.mm(a, b, out=out)


def _on_host(call: Callable[[], object], times: int) -> float:
    """Seconds of one ``call``, by the host's clock; the best of many."""
    call()
    best, end = float("inf"), time.perf_counter() + _CPU_SECONDS
    taken = 0
    while taken < 3 or (time.perf_counter() < end and taken < 200):
        began = time.perf_counter()
        for _ in range(times):
            call()
        best = min(best, (time.perf_counter() - began) / times)
        taken += 1
    return best


def _on_device(call: Callable[[], object], times: int) -> float:
    """Seconds of one ``call``, by the device's clock; the best of many."""
    call()
    torch.cuda.current_stream().synchronize()
    best, end = float("inf"), time.perf_counter() + _GPU_SECONDS
    taken = 0
    while taken < 3 or (time.perf_counter() < end and taken < 20):
        before = torch.cuda.Event(enable_timing=True)
        after = torch.cuda.Event(enable_timing=True)
        if times > 1:
            keep_device_busy(_CYCLES_TO_QUEUE)
        before.record()
        for _ in range(times):
            call()
        after.record()
        after.synchronize()
        best = min(best, before.elapsed_time(after) * 1e-3 / times)
        taken += 1
    return best
