"""What torch.compile keeps of a program: caches on disk, graphs, and the regions a call enters.

Dynamo skips a frame whose loop has a break in it, so the number of graphs alone misleads: one graph
per layer, compiled once, looks like a single graph. What a call costs is the number of compiled
regions it enters; how much Inductor can fuse is the number of operations per graph.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from fusepass.bench.records import GraphFacts
from fusepass.torch_private.inductor.compile import (
    clear_compilation_metrics,
    clear_inductor_caches,
    compilation_metrics,
)

# The name under which Dynamo's frame evaluation shows each compiled frame to the profiler.
REGION = "Torch-Compiled Region"
# The autograd node that AOTAutograd gives each compiled frame that needs gradients.
BACKWARD = "CompiledFunctionBackward"


@contextlib.contextmanager
def cache_folder(folder: str | None) -> Iterator[None]:
    """Let Inductor and Triton keep their caches in ``folder``; None leaves them where they are."""
    own = {}
    if folder is not None:
        triton = str(Path(folder) / "triton")
        own = {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": triton}
    with mock.patch.dict(os.environ, own):
        yield


def forget_compiled_code() -> None:
    """Drop everything compiled in this process; only the caches on disk are left."""
    torch.compiler.reset()
    clear_inductor_caches()
    clear_compilation_metrics()


def regions_entered(call: Callable[[], Any]) -> tuple[int, int]:
    """How many compiled frames one call enters, and how many compiled backwards."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        call()
    names = [event.name for event in profile.events() or ()]
    return sum(name.startswith(REGION) for name in names), names.count(BACKWARD)


def graph_facts(call: Callable[[], Any]) -> GraphFacts:
    """Graphs compiled since the metrics were last cleared, and the regions one call enters.

    Dynamo keeps its last 64 records; a program with more frames than that is reported short.
    """
    frames = compilation_metrics()
    regions, backwards = regions_entered(call)
    operations = [frame.graph_op_count for frame in frames if frame.graph_op_count]
    return GraphFacts(
        graphs=len(operations),
        operations=operations,
        regions_per_call=regions,
        backwards_per_call=backwards,
        frames_given_up=sum(frame.fail_reason is not None for frame in frames),
    )
