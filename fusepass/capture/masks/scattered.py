"""Trace ``masked_scatter`` behind a check so that it cannot fail, and defer its own error.

Behind a sink everything still runs, and ``x.masked_scatter(mask, source)`` fails where the mask has
more true elements than there are in the source. So behind a sink the call is traced as a sink with
eager's error and as a computation that fails for no value. Both exceptions share one read-back.

Each true element gets the element of the source at its running count, from a source with padding,
so that every count is a place. Where all elements of a row have one value of the mask, as after
``expand``, rows are counted and moved.

If the source requires grad, its rows are written to the places of the true rows instead. These are
unique, so the backward gathers, and adds up nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusepass.capture.branch.raise_arm import error_may_wait, user_stack
from fusepass.capture.branch.snapshot import last_node, recorded_since
from fusepass.capture.bytecode.own_handlers import is_in_subclass
from fusepass.capture.frame_state import Frame
from fusepass.capture.masks import scatter_forms
from fusepass.capture.nodes.events import Modes, Sink, is_sink, record_event
from fusepass.capture.nodes.value_recipe import CallValue, KnownValue
from fusepass.capture.source_position import here
from fusepass.graph.dataflow.memory import memories, memory_of
from fusepass.graph.ops.op_names import tensor_value
from fusepass.graph.safety.totality import KNOWN_TOTAL, has_internal_overlap
from fusepass.report.decision import Outcome, Reason
from fusepass.torch_private.dynamo.calls import inlined
from fusepass.torch_private.dynamo.errors.raising import random_call_count
from fusepass.torch_private.dynamo.stack import constant, is_plain_tensor, node_of, realized
from fusepass.torch_private.fx.graphs import known_equal

SCATTERS = ("masked_scatter", "masked_scatter_")
_TOO_FEW = "Number of elements of source < number of ones in mask"
_NAMES = ("self", "mask", "source")


class _Call(NamedTuple):
    """One call, with tracked operands.

    Attributes:
        inplace: whether it writes its first operand.
        operands: tensor, mask and source.
        values: their fake tensors.
        shape: of the result.
        row_dims: how many of the last dimensions have one value of the mask.
    """

    inplace: bool
    operands: tuple[Any, Any, Any]
    values: tuple[Tensor, Tensor, Tensor]
    shape: torch.Size
    row_dims: int


def masked_scatter(
    translator: Any,
    frame: Frame,
    name: str,
    args: list[Any],
    kwargs: dict[str, Any],
    call: Callable[[], Any],
) -> Any:
    """Trace a call; the tracked tensor it gives."""
    found = _read(translator, name, args, kwargs) if _is_behind_sink(translator, frame) else None
    if found is None or not error_may_wait(translator, frame, RuntimeError):
        return call()
    place = here(translator, "masked")
    last = last_node(translator.output.graph)
    bad = inlined(translator, scatter_forms.is_too_few, [*found.operands, *_constants(found)])
    sink = Sink(
        site=frame.new_id(),
        recipe=CallValue(RuntimeError, (KnownValue(_TOO_FEW),)),
        stack=tuple(user_stack(translator)),
        modes=Modes.now(),
        random_calls=random_call_count(translator.output),
    )
    record_event(translator, bad.as_proxy(), (), sink)
    trained = found.values[2].requires_grad and torch.is_grad_enabled()
    compute = scatter_forms.by_writing if trained else scatter_forms.by_reading
    made = inlined(translator, compute, [*found.operands, *_constants(found)])
    if found.inplace:
        made = realized(found.operands[0]).call_method(translator, "copy_", [made], {})
    for node in recorded_since(translator.output.graph, last):
        node.meta.setdefault(KNOWN_TOTAL, True)
    text = "its own error is raised after the graph, like that of the check before it"
    decision = place.decided(Outcome.APPLIED, Reason.RAISES, text, "sink")
    frame.round_trips[place.position] = decision
    return made


def _is_behind_sink(translator: Any, frame: Frame) -> bool:
    """Whether something in front may have raised; else the call is best left as it is."""
    if frame.arms or frame.rounds or frame.in_message or not frame.options.rule_on("masked"):
        return False
    return any(map(is_sink, translator.output.graph.nodes))


def _read(translator: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> _Call | None:
    """Read a call; None where it fails whatever the values are, or is not known well enough."""
    given = dict(zip(_NAMES, args, strict=False)) | kwargs
    given["self"] = given.pop("input", given.get("self"))
    if len(args) > len(_NAMES) or given.keys() != set(_NAMES) or is_in_subclass(translator):
        return None
    tracked = realized(given["self"]), realized(given["mask"]), realized(given["source"])
    if not all(map(is_plain_tensor, tracked)):
        return None
    nodes = [node_of(one) for one in tracked]
    x, mask, source = (tensor_value(node) for node in nodes)
    if x is None or mask is None or source is None:
        return None
    same_kind = x.dtype == source.dtype and x.device == mask.device == source.device
    if not same_kind or mask.dtype is not torch.bool or x.layout is not torch.strided:
        return None
    try:
        shape = torch.broadcast_shapes(mask.shape, x.shape)
    except RuntimeError:
        return None
    inplace = name.endswith("_")
    if inplace and not (_same_shape(shape, x.shape) and _is_own(*nodes)):
        return None
    rows = _row_dims(translator, mask, shape)
    return _Call(inplace, tracked, (x, mask, source), shape, rows)


def _same_shape(a: torch.Size, b: torch.Size) -> bool:
    return len(a) == len(b) and all(map(known_equal, a, b))


def _is_own(target: Any, mask: Any, source: Any) -> bool:
    """Whether nobody outside sees what a failing call has written, and it reads nothing of it."""
    given = (node for node in target.graph.nodes if node.op in ("placeholder", "get_attr"))
    key = memory_of(target)
    apart = key is not None and key not in {memory_of(mask), memory_of(source)}
    return apart and key not in memories(given) and not has_internal_overlap(target)


def _row_dims(translator: Any, mask: Tensor, shape: torch.Size) -> int:
    """How many of the last dimensions of the result have one value of the mask."""
    with translator.fake_mode:
        whole = mask.expand(shape)
    count = 0
    for size, stride in zip(reversed(whole.shape), reversed(whole.stride()), strict=True):
        one = known_equal(stride, 0) or known_equal(size, 1)
        if not one or type(size) is not int or size == 0:
            break
        count += 1
    return count


def _constants(call: _Call) -> list[Any]:
    width = math.prod(call.shape[len(call.shape) - call.row_dims :])
    return [constant(call.row_dims), constant(width)]
