"""Record the tensor that a branch tests as a 0-d bool tensor, and copy it if it is written later.

Python's truth of a one-element tensor is "not equal to zero": NaN and infinities are true,
whatever the dtype and whatever the number of dimensions. Zero or several elements raise in eager,
so they are refused and the ordinary graph break raises the same error.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fusepass.capture.nodes.select_node import ARM, BRANCH, Branch, sites_around
from fusepass.capture.refusal import Refusal
from fusepass.capture.scalars.arm_scalars import NUMBER
from fusepass.graph.dataflow.memory import memories
from fusepass.graph.dataflow.write_history import WriteHistory
from fusepass.graph.ops.op_names import tensor_value
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.fx.graphs import known_equal
from fusepass.torch_private.fx.tensor_kinds import why_not_plain

HELD = "fusepass_held"  # meta key of a copy of a tested tensor that is read behind the graph


def as_bool_scalar(translator: Any, tested: Any) -> Any:
    """Record the conversion of a tracked tensor to a 0-d bool; refuse all but one element."""
    why = why_not_plain(tested)
    if why is not None:
        raise Refusal(Reason.PREDICATE, f"the tensor tested {why}")
    fake = tensor_value(tested.as_proxy().node)
    if fake is None or not all(known_equal(size, 1) for size in fake.shape):
        shape = "unknown" if fake is None else tuple(fake.shape)
        raise Refusal(Reason.PREDICATE, f"the tensor tested has shape {shape}, not one element")
    if fake.is_quantized:
        raise Refusal(Reason.PREDICATE, f"a tensor of dtype {fake.dtype} is tested")
    if fake.dtype is not torch.bool:
        tested = stack.wrap_call(translator, "call_function", torch.ne, (tested.as_proxy(), 0), {})
    if fake.dim() > 0:
        tested = stack.wrap_call(translator, "call_method", "reshape", (tested.as_proxy(), ()), {})
    return tested


def held_predicate(translator: Any, predicate: Any) -> Any:
    """A tested tensor as it is now, to be read behind the graph."""
    held = stack.wrap_call(translator, "call_method", "clone", (predicate.as_proxy(),), {})
    held.as_proxy().node.meta[HELD] = True
    return held


def settle_held(graph: fx.Graph) -> list[int]:
    """Take out copies of tested tensors that nothing reads, or that are as the tensor is.

    Returns:
        The positions of outputs that are tested behind the graph, and nothing else.
    """
    held = [node for node in graph.nodes if HELD in node.meta]
    outputs: Any = graph.output_node().args[0]
    positions = [i for i, node in enumerate(outputs) if node in held]
    history = WriteHistory(graph) if held else None
    for node in held:
        tested: Any = node.args[0]
        if history is not None and node.users:
            if history.next_write(memories([tested]), history.moments[node]) is not None:
                continue
            node.replace_all_uses_with(tested)
        graph.erase_node(node)
    return positions


def copy_predicates(graph: fx.Graph, fake_mode: Any) -> None:
    """Copy, in front of its branch, each tested tensor that is written afterwards.

    ``if not self.ready: …; self.ready.fill_(True)``. Selections read the predicate where the arms
    meet, and backward reads it again.
    """
    nodes, keys = list(graph.nodes), (BRANCH, NUMBER)
    joins = [(node, node.meta[key]) for node in nodes for key in keys if key in node.meta]
    if not joins:
        return
    history = WriteHistory(graph)
    branches: dict[int, Branch] = {branch.site: branch for _, branch in joins}
    first: dict[int, fx.Node] = {}
    for node in nodes:
        own = [node.meta[key].site for key in keys if key in node.meta]
        for site in (*own, *sites_around(node, branches)):
            first.setdefault(site, node)
    copies: dict[int, fx.Node] = {}
    for join, branch in joins:
        tested: Any = join.args[0]
        start = history.moments[first[branch.site]]
        if not history.is_written(tested, start, len(nodes)):
            continue
        if branch.site not in copies:
            with graph.inserting_before(first[branch.site]):
                copy = graph.call_method("clone", (tested,))
            copy.meta = {} if branch.outer is None else {ARM: branch.outer}
            with fake_mode:
                copy.meta["example_value"] = tensor_value(tested).clone()  # type: ignore[union-attr]
            copies[branch.site] = copy
        join.update_arg(0, copies[branch.site])
