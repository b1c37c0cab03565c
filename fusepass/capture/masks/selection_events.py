"""Give reductions of ``x[mask]`` eager's error or warning for too few elements.

``x[mask].max()`` of nothing raises, and ``x[mask].std()`` of nothing, or of one element, is NaN
with a warning. Such a call is traced as if the program had said ``if not mask.any(): raise
RuntimeError(…)`` in front of it (a sink), or ``if mask.sum() <= 1: warnings.warn(…)`` behind it (a
line about the line of the call). Both happen after the graph. Then the reduction can be computed
for all elements (lower_reductions.py). Where the event could not wait, the selection stays.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fusepass.capture.branch.raise_arm import error_may_wait, user_stack
from fusepass.capture.effects import print_hooks
from fusepass.capture.effects.print_recipe import warning
from fusepass.capture.frame_state import Frame
from fusepass.capture.masks.lower_calls import reduced_dims
from fusepass.capture.masks.lower_reductions import NEVER_EMPTY, correction_of
from fusepass.capture.masks.lowering_state import WARNED
from fusepass.capture.masks.selection_count import linear_count, mask_now, record_count
from fusepass.capture.nodes.events import Modes, Sink, record_event
from fusepass.capture.nodes.value_recipe import CallValue, KnownValue
from fusepass.capture.refusal import Refusal
from fusepass.graph.ops.normal_call import normal_call
from fusepass.graph.ops.op_names import tensor_value
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.dynamo.errors.raising import random_call_count
from fusepass.torch_private.dynamo.scalars.unbacked_sizes import sizes_from_data
from fusepass.torch_private.dynamo.stack import node_of, proxy_of
from fusepass.torch_private.fx.graphs import known_equal

_EMPTY = (
    "{}(): Expected reduction dim to be specified for input.numel() == 0. "
    "Specify the reduction dim with the 'dim' argument."
)


def extremum(translator: Any, frame: Frame, name: str, tensor: Any, call: Callable[[], Any]) -> Any:
    """Trace ``max()`` or the like of one tensor, behind a sink if a mask selected that tensor."""
    root = _selecting(frame, tensor)
    if root is None or not _leave_sink(translator, frame, name, root):
        return call()
    made = call()
    node = node_of(made)
    if node is not None:
        node.meta[NEVER_EMPTY] = True
    return made


def _selecting(frame: Frame, tracked: Any) -> fx.Node | None:
    """The selection that decides whether a tensor is empty, if it alone does."""
    node = node_of(tracked) if frame.selections else None
    value = tensor_value(node)
    found = None if node is None or value is None else linear_count(node.graph, value.numel())
    if found is None or found[1] < 1 or found[2]:
        return None
    return found[0] if found[0] in frame.selections else None


def _leave_sink(translator: Any, frame: Frame, name: str, root: fx.Node) -> bool:
    """Record a sink for an empty selection; False where the exception cannot wait."""
    mask = mask_now(root)
    held = tensor_value(mask)
    if mask is None or held is None or held.dtype is not torch.bool:
        return False
    # The extremum of a mask without elements would raise while the graph runs.
    if frame.arms or not known_equal(held.numel() > 0, True):
        return False
    if not error_may_wait(translator, frame, RuntimeError):
        return False
    some = stack.wrap_call(translator, "call_method", "any", (proxy_of(translator, mask),), {})
    bad = stack.wrap_call(translator, "call_function", torch.logical_not, (some.as_proxy(),), {})
    sink = Sink(
        site=frame.new_id(),
        recipe=CallValue(RuntimeError, (KnownValue(_EMPTY.format(name)),)),
        stack=tuple(user_stack(translator)),
        modes=Modes.now(),
        random_calls=random_call_count(translator.output),
    )
    record_event(translator, bad.as_proxy(), (), sink)
    frame.empties[sink.site] = frame.selections[root]
    return True


def variance(translator: Any, frame: Frame, name: str, call: Callable[[], Any]) -> Any:
    """Trace ``std`` or ``var``, and eager's warning if a mask decides whether there is one."""
    made = call()
    node = node_of(made)
    if node is None or frame.in_message or not (frame.selections or frame.arms):
        return made
    found = _warning_threshold(node)
    if found is not None and (found[1] < 0 or _warn(translator, frame, name, *found)):
        node.meta[WARNED] = True
    return made


def _warning_threshold(node: fx.Node) -> tuple[fx.Node, int] | None:
    """What selects what a variance is of, and of how many it warns at most; None if not known."""
    call = normal_call(node)
    given = dict(call.args) if call is not None else {}
    value = tensor_value(given.get("self"))
    if call is None or value is None:
        return None
    along = sizes_from_data(value)
    dims, correction = reduced_dims(call, value.dim()), correction_of(given)
    if len(along) != 1 or dims is None or not isinstance(correction, (int, float)):
        return None
    others = [n for dim, n in enumerate(value.shape) if dim != along[0]]
    found = linear_count(node.graph, value.shape[along[0]])
    if found is None or found[1:] != (1, 0) or not all(known_equal(n > 0, True) for n in others):
        return None
    each = math.prod(value.shape[dim] for dim in dims if dim != along[0])
    if not math.isfinite(correction):
        return None
    if along[0] in dims and type(each) is int:
        return found[0], math.floor(correction / each)
    # Else one element along what is selected is enough: of none eager warns.
    return (
        (found[0], 0 if correction >= 0 else -1) if known_equal(each > correction, True) else None
    )


def _warn(translator: Any, frame: Frame, name: str, root: fx.Node, most: int) -> bool:
    """Record the line; False where it cannot wait."""
    text, mask = _warning_text(name), mask_now(root)
    if text is None or mask is None:
        return False
    place = print_hooks.place_of(translator, frame)
    try:
        print_hooks.check_frame(translator, frame, place)
        said = warning(translator, text)
        count = record_count(translator, mask).as_proxy()
        few = stack.wrap_call(translator, "call_function", torch.le, (count, most), {})
        print_hooks.record(translator, frame, place, said, few)
    except Refusal:
        return False
    return True


@functools.cache
def _warning_text(name: str) -> str | None:
    """What eager warns of, with the place in torch's sources that differs between builds."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        getattr(torch.empty(0, dtype=torch.float32, device="cpu"), name)()
    return str(heard[0].message) if heard else None
