"""Facts about the compiled program: how many graphs, how large, and how many regions a call enters.

Dynamo skips a frame whose loop has a break in it, so the number of graphs alone misleads: one graph
per layer, compiled once, looks like a single graph. What a call costs is the number of compiled
regions it enters; how much Inductor can fuse is the number of operations per graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fusepass.bench.records import GraphFacts
from fusepass.torch_private.inductor.compile import compilation_metrics

# The name under which Dynamo's frame evaluation shows each compiled frame to the profiler.
REGION = "Torch-Compiled Region"
# The autograd node that AOTAutograd gives each compiled frame that needs gradients.
BACKWARD = "CompiledFunctionBackward"


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
