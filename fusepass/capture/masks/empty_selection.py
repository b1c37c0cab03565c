"""Raise eager's error if ``x[mask].max()`` or another extremum has no elements.

Such a call is traced as if the program had said ``if not mask.any(): raise RuntimeError(…)`` in
front of it: a sink, whose exception is raised after the graph. Then the extremum can be computed
for all elements (graph/selected_extrema.py). Where the exception could not wait, nothing is left
in front of the call, and the selection stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fusepass.capture.branch.raise_arm import check_site, user_stack
from fusepass.capture.bytecode import exception_handlers
from fusepass.capture.effects.message_trace import autocast_now
from fusepass.capture.frame_state import Frame
from fusepass.capture.masks.lower_reductions import NEVER_EMPTY
from fusepass.capture.masks.selection_count import mask_now, selection_of
from fusepass.capture.nodes.raise_node import SINK, Sink, sink
from fusepass.capture.nodes.value_recipe import CallValue, KnownValue
from fusepass.capture.refusal import Refusal
from fusepass.capture.source_position import location
from fusepass.graph.ops.op_names import tensor_value
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.dynamo.errors.raising import random_call_count
from fusepass.torch_private.dynamo.scalars.unbacked_sizes import linear_size
from fusepass.torch_private.dynamo.stack import node_of, proxy_of
from fusepass.torch_private.fx.graphs import known_equal

_TEXT = (
    "{}(): Expected reduction dim to be specified for input.numel() == 0. "
    "Specify the reduction dim with the 'dim' argument."
)


def extremum(
    translator: Any, frame: Frame, name: str, args: list[Any], call: Callable[[], Any]
) -> Any:
    """Trace ``max()`` or the like of one tensor, behind a sink if a mask selected that tensor.

    Args:
        translator: Dynamo's.
        frame: of capture.
        name: of the operation.
        args: the tracked tensor.
        call: traces the call itself.
    """
    root = _root(frame, args[0])
    if root is None or not _leave_sink(translator, frame, name, root):
        return call()
    made = call()
    node = node_of(made)
    if node is not None:
        node.meta[NEVER_EMPTY] = True
    return made


def _root(frame: Frame, tracked: Any) -> fx.Node | None:
    """The selection that decides whether a tensor is empty, if it alone does."""
    node = node_of(tracked) if frame.selections else None
    value = tensor_value(node)
    if node is None or value is None:
        return None
    size = linear_size(value.numel())
    if size is None or size[1] < 1 or size[2]:
        return None
    root = selection_of(node.graph, size[0])
    return root if root in frame.selections else None


def _leave_sink(translator: Any, frame: Frame, name: str, root: fx.Node) -> bool:
    """Record a sink for an empty selection; False where the exception cannot wait."""
    mask = mask_now(root)
    held = tensor_value(mask)
    if mask is None or held is None or held.dtype is not torch.bool:
        return False
    # The extremum of a mask without elements would raise while the graph runs.
    if frame.arms or not known_equal(held.numel() > 0, True):
        return False
    if exception_handlers.who_sees(translator, RuntimeError) is not None:
        return False
    try:
        check_site(translator, frame)
    except Refusal:
        return False
    tracked = proxy_of(translator, mask)
    some = stack.wrap_call(translator, "call_method", "any", (tracked,), {})
    bad = stack.wrap_call(translator, "call_function", torch.logical_not, (some.as_proxy(),), {})
    file, line = location(translator, translator.current_instruction)
    site = frame.new_id()
    proxy = translator.output.create_proxy("call_function", sink, (bad.as_proxy(),), {})
    proxy.node.meta["example_value"] = None
    proxy.node.meta[SINK] = Sink(
        site=site,
        recipe=CallValue(RuntimeError, (KnownValue(_TEXT.format(name)),)),
        stack=tuple(user_stack(translator)),
        without_context=False,
        shows_grad=frozenset(),
        shows_whole=frozenset(),
        grad_enabled=torch.is_grad_enabled(),
        autocast=autocast_now(),
        random_calls=random_call_count(translator.output),
        file=file,
        line=line,
    )
    frame.empties[site] = frame.selections[root]
    return True
