"""Trace torch calls that hide a test: ``_assert``, ``_check``, ``equal``, ``allclose``, extrema.

``torch._assert`` tests and raises like the ``assert`` statement it wraps, and is traced as one;
so are ``torch._check`` and its kin where they ask for numbers that are not read. What torch asks of
a number while it is traced (scalars/object_identity.py) hides one, too. ``equal`` and ``allclose``
read a number back; where it is only tested, the comparison of all elements stays the 0-d tensor it
is on the device. Extrema raise where there is nothing, variances warn where there is too little
(masks/selection_events.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fusepass.capture.frame_state import frame_of
from fusepass.capture.masks.lower_reductions import EXTREMA
from fusepass.capture.masks.lowering_state import SPREADS
from fusepass.capture.masks.scattered import SCATTERS, masked_scatter
from fusepass.capture.masks.selection_events import extremum, variance
from fusepass.capture.refusal import Refusal
from fusepass.capture.scalars.deferred_items import FROM_ITEM
from fusepass.capture.scalars.item_hooks import is_only_tested
from fusepass.capture.scalars.object_identity import answered
from fusepass.capture.scalars.scalar import kind_of
from fusepass.capture.scalars.scalar_predicate import is_of_unknown_numbers
from fusepass.graph.dataflow.memory import memory_of
from fusepass.graph.ops.op_names import tensor_value
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.dynamo.calls import (
    CHECKS,
    KNOWN,
    SETTER,
    Check,
    check_of,
    operand_count,
    trace_check,
    traced_assert,
)
from fusepass.torch_private.dynamo.stack import (
    constant,
    constant_of,
    is_plain_tensor,
    node_of,
    number_node,
    realized,
)
from fusepass.torch_private.fx.graphs import known_equal

_KINDS = {"_check_is_size": "int"}
_TOLERANCES = {"rtol": 1e-05, "atol": 1e-08, "equal_nan": False}


def on_call(
    translator: Any,
    name: str,
    args: list[Any],
    kwargs: dict[str, Any],
    call: Callable[[], Any],
) -> Any:
    """Trace one of these calls; the tracked value it gives."""
    frame = frame_of(translator.output)
    if frame is None:
        return call()
    off = frame.options.treatment == "keep" or not frame.options.rule_on("branch")
    if name in CHECKS.values():  # of a number that is not read Dynamo would drop it: never left out
        check = check_of(name, args, kwargs)
        if check is None or not _is_unknown(check) or (off and check.of_tensor):
            return call()
        return trace_check(translator, check)
    if name.startswith(KNOWN):
        return answered(translator, frame, name.removeprefix(KNOWN), args, kwargs, call)
    if off:
        return call()
    if name == SETTER:
        if frame.arms or frame.in_message:
            raise Refusal(Reason.SIDE_EFFECT, "an arm changes a setting of torch")
        return call()
    if name in SCATTERS:
        return masked_scatter(translator, frame, name, args, kwargs, call)
    if name in SPREADS:
        return variance(translator, frame, name, call)
    if name in EXTREMA:
        alone = len(args) == 1 and not kwargs and not frame.in_message
        return extremum(translator, frame, name, args[0], call) if alone else call()
    if name == "_assert":
        return traced_assert(translator, args, kwargs)
    number = len(args) + len(kwargs)
    # One operand less in a call of a method.
    direct = operand_count(translator) in (number, number - 1)
    if frame.in_message or not direct or not is_only_tested(translator, frame):
        return call()
    compared = _comparison_predicate(translator, name, args, kwargs)
    return call() if compared is None else compared


def _is_unknown(check: Check) -> bool:
    """Whether what a check asks is for the device to say; of sizes Dynamo knows what to do."""
    condition = realized(check.condition)
    if check.of_tensor:
        held = tensor_value(node_of(condition))
        return held is not None and held.dtype is torch.bool
    node = number_node(condition)
    return (
        node is not None
        and (FROM_ITEM in node.meta or is_of_unknown_numbers(node))
        and kind_of(node) == _KINDS.get(check.name, "bool")
    )


def _comparison_predicate(
    translator: Any, name: str, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """The 0-d bool tensor such a comparison reads, or None where it cannot be told apart."""
    names = ("input", "other", *_TOLERANCES)
    given = dict(zip(names, map(realized, args), strict=False))
    given |= {key: realized(value) for key, value in kwargs.items()}
    pair = [given.pop("input", None), given.pop("other", None)]
    if not all(map(is_plain_tensor, pair)):
        return None
    options = _TOLERANCES | {key: constant_of(v)[1] for key, v in given.items()}
    nodes = [side.as_proxy().node for side in pair]
    a, b = map(tensor_value, nodes)
    if a is None or b is None or not _alike(a, b) or not _valid(options):
        return None
    if name == "equal" and _differ(a.shape, b.shape):
        return constant(False)
    if not _same(a.shape, b.shape) and (name == "equal" or not _broadcast(a.shape, b.shape)):
        return None
    if name == "equal" and _may_be_one(*nodes):
        return None
    sides = [_detached(translator, side).as_proxy() for side in pair]
    if name == "equal":
        close = stack.wrap_call(translator, "call_function", torch.eq, tuple(sides), {})
    else:
        close = stack.wrap_call(translator, "call_function", torch.isclose, tuple(sides), options)
    return stack.wrap_call(translator, "call_method", "all", (close.as_proxy(),), {})


def _valid(options: dict[str, Any]) -> bool:
    rtol, atol = options["rtol"], options["atol"]
    numbers = all(isinstance(n, (int, float)) and n >= 0 for n in (rtol, atol))
    return len(options) == len(_TOLERANCES) and numbers and options["equal_nan"] in (True, False)


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    plain = not (a.is_complex() or a.is_quantized)
    return plain and (a.dtype, a.device) == (b.dtype, b.device)


def _same(a: torch.Size, b: torch.Size) -> bool:
    return len(a) == len(b) and all(map(known_equal, a, b))


def _differ(a: torch.Size, b: torch.Size) -> bool:
    """Whether two shapes are known to differ, which ``equal`` answers without the values."""
    pairs = zip(a, b, strict=False)
    return len(a) != len(b) or any(type(x) is type(y) is int and x != y for x, y in pairs)


def _broadcast(a: torch.Size, b: torch.Size) -> bool:
    """Whether two shapes known as numbers go together."""
    if not all(type(size) is int for size in (*a, *b)):
        return False
    pairs = zip(reversed(a), reversed(b), strict=False)
    return all(x == y or 1 in (x, y) for x, y in pairs)


def _may_be_one(a: Any, b: Any) -> bool:
    """Whether NaN could equal itself: CUDA calls a tensor equal to itself without a look at it."""
    value = tensor_value(a)
    if value is None or value.device.type == "cpu" or not value.is_floating_point():
        return False
    inputs = ("placeholder", "get_attr")
    return memory_of(a) == memory_of(b) or all(_root(n).op in inputs for n in (a, b))


def _root(node: Any) -> Any:
    """The oldest node that lives in the memory of this one."""
    key = memory_of(node)
    return next((n for n in node.graph.nodes if memory_of(n) == key), node)


def _detached(translator: Any, side: Any) -> Any:
    value = tensor_value(side.as_proxy().node)
    if value is None or not value.requires_grad:
        return side
    return stack.wrap_call(translator, "call_method", "detach", (side.as_proxy(),), {})
