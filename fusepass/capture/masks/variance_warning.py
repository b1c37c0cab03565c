"""Give ``x[mask].std()`` and ``var()`` eager's warning about too few elements.

``x[mask].std()`` of nothing, or of one element, is NaN with a warning. Such a call is traced as if
the program had said ``if mask.sum() <= 1: warnings.warn(…)`` behind it: a line, written after the
graph, that is about the line of the call. Then the variance can be computed for all elements
(capture/masks/lower_reductions.py). Where the line could not wait, the selection stays.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fusepass.capture.effects import print_hooks
from fusepass.capture.effects.print_recipe import warning
from fusepass.capture.frame_state import Frame
from fusepass.capture.masks.lower_calls import reduced_dims
from fusepass.capture.masks.lowering_state import WARNED
from fusepass.capture.masks.selection_count import mask_now, record_count, selection_of
from fusepass.capture.refusal import Refusal
from fusepass.graph.ops.normal_call import normal_call
from fusepass.graph.ops.op_names import tensor_value
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.dynamo.scalars.unbacked_sizes import linear_size, sizes_from_data
from fusepass.torch_private.dynamo.stack import node_of
from fusepass.torch_private.fx.graphs import known_equal


def spread(translator: Any, frame: Frame, name: str, call: Callable[[], Any]) -> Any:
    """Trace ``std`` or ``var``, and eager's warning if a mask decides whether there is one.

    Args:
        translator: Dynamo's.
        frame: of capture.
        name: of the operation.
        call: traces the call itself.
    """
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
    source = given.get("self")
    value = tensor_value(source)
    if call is None or value is None:
        return None
    along = sizes_from_data(value)
    dims = reduced_dims(call, value.dim())
    correction = given.get("correction", int(given.get("unbiased", True) is not False))
    if len(along) != 1 or dims is None or not isinstance(correction, (int, float)):
        return None
    size: Any = value.shape[along[0]]
    others = [n for dim, n in enumerate(value.shape) if dim != along[0]]
    known = linear_size(size)
    if known is None or known[1:] != (1, 0) or not all(_holds(n > 0) for n in others):
        return None
    root = selection_of(node.graph, known[0])
    each = math.prod(value.shape[dim] for dim in dims if dim != along[0])
    if root is None or not math.isfinite(correction):
        return None
    if along[0] in dims and type(each) is int:
        return root, math.floor(correction / each)
    # Else one element along what is selected is enough: of none eager warns.
    return (root, 0 if correction >= 0 else -1) if _holds(each > correction) else None


def _holds(condition: Any) -> bool:
    return known_equal(condition, True)


def _warn(translator: Any, frame: Frame, name: str, root: fx.Node, most: int) -> bool:
    """Record the line; False where it cannot wait."""
    text, mask = _text(name), mask_now(root)
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
def _text(name: str) -> str | None:
    """What eager warns of, with the place in torch's sources that differs between builds."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        getattr(torch.empty(0, dtype=torch.float32, device="cpu"), name)()
    return str(heard[0].message) if heard else None
