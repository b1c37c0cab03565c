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
from fusepass.torch_private import compilation_metrics

# The name under which Dynamo's frame evaluation shows each compiled frame to the profiler.
REGION = "Torch-Compiled Region"


def regions_entered(call: Callable[[], Any]) -> int:
    """How many compiled frames one call enters."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        call()
    return sum(event.name.startswith(REGION) for event in profile.events() or ())


def graph_facts(call: Callable[[], Any]) -> GraphFacts:
    """Graphs compiled since the metrics were last cleared, and the regions one call enters.

    Dynamo keeps its last 64 records; a program with more frames than that is reported short.
    """
    frames = compilation_metrics()
    operations = [frame.graph_op_count for frame in frames if frame.graph_op_count]
    return GraphFacts(
        graphs=len(operations),
        operations=operations,
        regions_per_call=regions_entered(call),
        frames_given_up=sum(frame.fail_reason is not None for frame in frames),
    )
