"""Decide whether a custom ``autograd.Function`` in an arm is total, forward and backward.

In training Dynamo records one as a call of a higher-order operator with two graphs. The arm not
taken runs both, the backward with a zero gradient; what comes out of that the gates of its operands
keep back, as they do for any operation.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from fusepass.graph.dataflow.effects import is_random, is_state_change, written_nodes
from fusepass.graph.ops.op_names import op_name
from fusepass.graph.safety.totality import KNOWN_TOTAL, partial_reason
from fusepass.torch_private.dynamo.calls import subgraph_of
from fusepass.torch_private.fx.graphs import tree_flatten


def mark_total_functions(translator: Any, nodes: list[fx.Node]) -> None:
    """Mark the calls among ``nodes`` whose bodies hold nothing but total operations."""
    for node in nodes:
        if op_name(node) == "autograd_function_apply":
            bodies = [subgraph_of(translator, arg) for arg in node.args[:2]]
            if all(body is not None and _is_total(body.graph) for body in bodies):
                backward: Any = bodies[1]
                if _has_all_gradients(backward.graph):
                    node.meta[KNOWN_TOTAL] = True


def _is_total(graph: fx.Graph) -> bool:
    return not any(
        node.op in ("call_module", "get_attr")
        or is_random(node)
        or (is_state_change(node) and op_name(node) != "_set_grad_enabled")
        or written_nodes(node)
        or partial_reason(node) is not None
        for node in graph.nodes
    )


def _has_all_gradients(backward: fx.Graph) -> bool:
    """Whether no operand gets None: eager leaves that out, and a selection would send a zero."""
    output = next(node for node in backward.nodes if node.op == "output")
    return all(isinstance(part, fx.Node) for part in tree_flatten(output.args)[0])
