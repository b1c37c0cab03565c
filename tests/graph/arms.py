"""Arms of a branch for tests: what Dynamo records of a function, with its fake tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx


def captured(program: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> list[fx.Node]:
    """The calls of one graph that Dynamo records of a program."""
    graphs: list[fx.GraphModule] = []

    def keep(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    torch.compile(program, backend=keep, fullgraph=True, dynamic=dynamic)(*inputs)
    (gm,) = graphs
    gm.graph.owning_module = gm  # nodes do not keep their graph's module alive
    return [node for node in gm.graph.nodes if node.op.startswith("call_")]
