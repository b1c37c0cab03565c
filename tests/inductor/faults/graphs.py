"""ATen graphs of programs, as Inductor gets them before its own decompositions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor import lowering  # noqa: F401 - a decomposition of pooling names it
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx


def traced(program: Callable[..., Any], *given: Tensor, decomposed: bool = False) -> fx.GraphModule:
    table = select_decomp_table() if decomposed else {}
    functional = torch.func.functionalize(program, remove="mutations")
    made: fx.GraphModule = make_fx(functional, table, tracing_mode="fake")(*given)
    return made


def names(gm: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in gm.graph.nodes if node.op == "call_function"]
