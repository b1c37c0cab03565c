"""Keep tensors that a graph makes on the CPU and returns on the CPU, under CUDA graphs.

Read in torch 2.11, 2.13, 2.15.

There Inductor's pass over constructors makes them on the GPU, and hands out what is on the GPU: a
result on another device than eager's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx


def host_output_config(gm: fx.GraphModule, patches: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under which what ``gm`` makes on the CPU and returns stays there.

    Without graph partitions Inductor moves no output; it then leaves the CUDA graph out, which
    costs this graph time and no other.

    Args:
        gm: as Dynamo recorded it, with example values.
        patches: config changes that the graph is compiled with.
    """
    from torch._inductor import config

    if not patches.get("triton.cudagraphs", config.triton.cudagraphs):
        return {}
    devices = {value.device.type for node in gm.graph.nodes if (value := _value(node)) is not None}
    moved = "cuda" in devices and any(map(_is_moved, gm.graph.output_node().all_input_nodes))
    return {"graph_partition": False} if moved else {}


def _is_moved(node: fx.Node) -> bool:
    """Whether everything a CPU result is computed from can be made on the GPU just as well."""
    open_nodes, seen = [node], {node}
    if node.op == "placeholder" or not _on_cpu(node):
        return False
    while open_nodes:
        node = open_nodes.pop()
        inputs = [n for n in node.all_input_nodes if _value(n) is not None]
        if node.op == "placeholder" and _value(node).dim() > 0:  # type: ignore[union-attr]
            return False
        if any(not _on_cpu(one) for one in inputs) or node.op == "get_attr":
            return False
        fresh = [one for one in inputs if one not in seen]
        seen.update(fresh)
        open_nodes += fresh
    return True


def _on_cpu(node: fx.Node) -> bool:
    value = _value(node)
    return value is not None and value.device.type == "cpu"


def _value(node: fx.Node) -> torch.Tensor | None:
    value = node.meta.get("example_value")
    return value if isinstance(value, torch.Tensor) else None
