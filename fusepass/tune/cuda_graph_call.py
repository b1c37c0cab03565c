"""A call as a CUDA graph: its device work without what the host takes to launch it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def record(call: Callable[[], Any], calls: int = 1) -> torch.cuda.CUDAGraph:
    """Record so many calls in one CUDA graph.

    Raises:
        RuntimeError: the call does something that cannot be recorded.
    """
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):  # libraries set themselves up on first use of a stream
        call()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return graph
