"""What torch keeps for each thread, carried over to another one.

A loader sees in its thread what it would see in the loop: modes of autograd, autocast, the default
device, and the current CUDA device and streams. Modes of ``__torch_function__`` and
``__torch_dispatch__`` and functorch's levels are not carried over, nor is the profiler.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch

AUTOCAST = ("cpu", "cuda")


def surroundings() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """The calling thread's state, as a context that another thread can enter."""
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    casts = {
        kind: torch.get_autocast_dtype(kind) for kind in AUTOCAST if torch.is_autocast_enabled(kind)
    }
    keeps_casts = torch.is_autocast_cache_enabled()
    default = torch.get_default_device()
    current, streams = _of_cuda()

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(inference))
            stack.enter_context(torch.set_grad_enabled(grad))
            for kind, dtype in casts.items():
                cast = torch.autocast(kind, dtype=dtype, cache_enabled=keeps_casts)
                stack.enter_context(cast)
            if default.type != "cpu":
                stack.enter_context(default)
            for stream in streams:
                stack.enter_context(torch.cuda.stream(stream))
            if current is not None:  # last: a stream takes its device along
                stack.enter_context(torch.cuda.device(current))
            yield

    return around


def _of_cuda() -> tuple[int | None, list[torch.cuda.Stream]]:
    """The current device, and of each device a current stream that is not the default one."""
    if not torch.cuda.is_initialized():
        return None, []
    pairs = [
        (torch.cuda.current_stream(index), torch.cuda.default_stream(index))
        for index in range(torch.cuda.device_count())
    ]
    return torch.cuda.current_device(), [one for one, default in pairs if one != default]
