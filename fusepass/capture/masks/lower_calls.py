"""Compute pointwise and row-by-row calls on ``x[mask]`` for all elements.

Such a call is made for all elements with the same arguments. What it is given besides must be the
same for every element selected, or selected by the same mask. An element that eager does not
compute may be anything, but it must not fail: partial calls are kept.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from fusepass.capture.masks.lowering_state import (
    SPREADS,
    FullTensor,
    MaskLowering,
    check_variance_warning,
)
from fusepass.capture.masks.masked_store import GETITEM, is_basic, is_whole, parts_of_index
from fusepass.capture.refusal import Refusal
from fusepass.graph.dataflow.effects import is_random
from fusepass.graph.dataflow.memory import memory_of
from fusepass.graph.ops.normal_call import NormalCall, default_of, normal_call
from fusepass.graph.ops.op_names import IN_PLACE_OPERATORS, display_name, op_name, tensor_value
from fusepass.graph.safety.totality import POINTWISE, partial_reason
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.scalars.unbacked_sizes import sizes_from_data
from fusepass.torch_private.fx.graphs import has_unbacked_size, known_equal

# Correctly rounded, or a choice: exp, say, rounds otherwise at the end of a vector on some CPUs.
_EXACT = frozenset(
    """
    __radd__ __rmul__ __rsub__ __rtruediv__ abs add bfloat16 bitwise_and bitwise_not bitwise_or
    bitwise_xor bool ceil clamp clamp_max clamp_min clone copysign detach div double eq float floor
    ge gt half int isfinite isinf isnan le logical_and logical_not logical_or logical_xor long lt
    max maximum min minimum mul nan_to_num ne neg reciprocal relu round rsub sgn sign sqrt square
    sub to trunc type where
    """.split()
)
_EXACT_KEYWORDS = frozenset("dtype input max min nan neginf other posinf".split())
# Not of one shape with their operands, or views of memory in another way.
_NOT_POINTWISE = frozenset(
    """
    complex conj fill glu imag polar prelu real resolve_conj resolve_neg view_as_complex
    view_as_real zero
    """.split()
)
_CASTS = frozenset(
    """
    bfloat16 bool byte char clone contiguous detach double float half int long short to type
    """.split()
)
_CHECKED = frozenset("div floor_divide fmod max min remainder".split())  # for some operands
_ELEMENTWISE = (POINTWISE - _NOT_POINTWISE) | _CASTS | _CHECKED
_LIKE = frozenset("full_like ones_like zeros_like".split())
# Along dimensions given by an argument, which must not be the one selected along.
_ALONG = frozenset(
    """
    all amax amin any cosine_similarity cumsum linalg_vector_norm log_softmax logsumexp mean norm
    normalize softmax std sum var
    """.split()
)
_LAID_OUT = frozenset(
    """
    chunk flatten permute reshape select split squeeze stack t transpose unbind unsqueeze view
    """.split()
)


def lower_call(low: MaskLowering, node: fx.Node) -> FullTensor | None:
    """Lower a call on what a mask selected to all elements; None for any other call."""
    name = str(op_name(node))
    source: Any = node.args[0] if node.args else None
    if name in GETITEM and source in low.parts:
        made, parts = low.parts[source]
        place: Any = node.args[1]
        part: FullTensor = parts[place]
        return replace(part, node=low.add(node, operator.getitem, made, place))
    held = {n: low.whole[n] for n in node.all_input_nodes if n in low.whole}
    if not held:
        return None
    selected = {n: whole.node for n, whole in held.items()}
    in_place = node.target in IN_PLACE_OPERATORS or (name.endswith("_") and not name.endswith("__"))
    plain = name.removesuffix("_") if in_place else name
    first = _alike(low, [*held.values()])
    if plain in _ELEMENTWISE and (plain not in ("max", "min") or _is_of_two(node)):
        made, exact = _elementwise(low, node, plain, first, selected, in_place=in_place)
    elif in_place:
        raise _unsupported_call(node)
    elif plain in _LIKE or _keeps_rows(low, node, plain, first):
        target = "reshape" if plain == "view" else node.target  # rows may lie further apart
        made, exact = low.again(node, target, selected), plain in _LAID_OUT or plain in GETITEM
    else:
        raise _unsupported_call(node)
    like = replace(first, node=made, exact=exact and all(whole.exact for whole in held.values()))
    traced, value = node.meta.get("example_value"), made.meta["example_value"]
    if isinstance(traced, (tuple, list)):
        pairs = zip(traced, value, strict=True)
        low.parts[node] = made, [_check_shape(node, *pair, like) for pair in pairs]
        low.seen[node] = first.selection
        return None
    whole = _check_shape(node, traced, value, like)
    if in_place:
        _rebind(low, node, whole)
    return whole


def _unsupported_call(node: fx.Node) -> Refusal:
    if is_random(node):
        text = f"random numbers are drawn for what a mask selected ({op_name(node)})"
        return Refusal(Reason.RANDOM_OP, text)
    name = op_name(node)
    text = f"a tensor whose size only the data know is used by {display_name(name)}"
    if name in ("sym_size", "sym_numel"):
        text = "the program asks how large a tensor is whose size only the data know"
    return Refusal(Reason.SIZE, text)


def _alike(low: MaskLowering, wholes: list[FullTensor]) -> FullTensor:
    first = wholes[0]
    for other in wholes[1:]:
        if not low.same_selection(first.selection, other.selection):
            raise Refusal(Reason.SIZE, "what two masks selected meets, in sizes that may differ")
        if other.after != first.after:
            raise Refusal(Reason.SIZE, "what a mask selected is broadcast along what it selected")
    return first


def _is_of_two(node: fx.Node) -> bool:
    call = normal_call(node)
    return call is not None and tensor_value(dict(call.args).get("other")) is not None


def _elementwise(
    low: MaskLowering,
    node: fx.Node,
    name: str,
    first: FullTensor,
    selected: dict[fx.Node, fx.Node],
    *,
    in_place: bool,
) -> tuple[fx.Node, bool]:
    why = partial_reason(node)
    if why is not None:
        raise Refusal(Reason.PARTIAL_OP, f"for an element that is not selected, {why}")
    if in_place and node.args[0] not in low.whole:
        raise _unsupported_call(node)
    traced = tensor_value(node)
    trained = torch.is_grad_enabled() and traced is not None and traced.requires_grad
    gates: dict[fx.Node, fx.Node] = {}
    for operand in node.all_input_nodes:
        value = tensor_value(operand)
        if operand in low.whole:
            continue
        if value is None or not broadcasts(value, first.after):
            raise _unsupported_call(node)
        if trained and value.requires_grad:
            gates[operand] = low.gate_gradient(node, operand, first.selection, first.after)
    target = _out_of_place(node) if in_place else node.target
    made = low.again(node, target, gates | selected)
    if in_place and traced is not None and made.meta["example_value"].dtype != traced.dtype:
        made = low.add(node, "to", made, traced.dtype)  # what is written keeps its dtype
    operands = [tensor_value(operand) for operand in node.all_input_nodes]
    whole_number = (
        traced is not None
        and not traced.dtype.is_floating_point
        and traced.dtype is not torch.bool
        and any(v is not None and v.dtype.is_floating_point for v in operands)
    )  # a number too large for an integer becomes any
    known = name in _EXACT or (name == "pow" and node.args[1:] == (2,) and not node.kwargs)
    exact = known and not gates and not whole_number and not set(node.kwargs) - _EXACT_KEYWORDS
    return made, exact


def broadcasts(value: torch.Tensor, after: int) -> bool:
    """Whether an operand is the same for everything that is selected."""
    if has_unbacked_size(value):
        return False
    along = value.dim() - after - 1
    return along < 0 or known_equal(value.shape[along], 1)


def _out_of_place(node: fx.Node) -> Any:
    if node.target in IN_PLACE_OPERATORS:
        return getattr(operator, str(node.target.__name__)[1:])  # type: ignore[union-attr]
    if node.op == "call_method":
        return str(node.target)[:-1]
    return getattr(torch, str(node.target.__name__)[:-1])  # type: ignore[union-attr]


def _keeps_rows(low: MaskLowering, node: fx.Node, name: str, first: FullTensor) -> bool:
    """Whether a call works on each row of what was selected alone."""
    if any(n not in low.whole for n in node.all_input_nodes):
        return False
    if name in GETITEM:
        return _keeps_rows_of_index(node.args[1], first)
    call = normal_call(node)
    if call is None or call.inplace or partial_reason(node) is not None:
        return False
    if name in ("view", "reshape"):
        return first.front == 0
    if name in ("stack", "cat") or (name in _LAID_OUT and name != "squeeze"):
        return True  # the shape of the result tells
    without_dim = name == "squeeze" and "dim" not in dict(call.args)
    if without_dim or name not in (*_ALONG, "squeeze"):
        return False  # of one element selected a squeeze would take that dimension, too
    if name in SPREADS:
        check_variance_warning(node)
    dims = reduced_dims(call, first.value.dim())
    return dims is not None and first.front not in dims


def reduced_dims(call: NormalCall, count: int) -> list[int] | None:
    """The dimensions of ``count`` that a call reduces or works along, all where it names none."""
    given = dict(call.args)
    if type(given.get("unbiased")) is int:  # x.var(0) has two meanings, of which torch takes this
        given["dim"] = given["unbiased"]
    dims = given.get("dim", default_of(call.op, "dim") if call.op in _ONE_DIM else None)
    if dims is None:
        return None if call.op in _ONE_DIM else list(range(count))
    each = dims if isinstance(dims, tuple) else (dims,)
    if not each or not all(type(dim) is int for dim in each):
        return None
    return [dim % count for dim in each]


_ONE_DIM = frozenset("cosine_similarity cumsum log_softmax normalize softmax".split())


def _keeps_rows_of_index(index: Any, first: FullTensor) -> bool:
    """Whether a basic index takes everything along what was selected."""
    parts = parts_of_index(index)
    basic = all(part is None or is_basic(part) for part in parts)
    if not basic or parts.count(Ellipsis) > 1:
        return False
    taken = sum(part is not None and part is not Ellipsis for part in parts)
    if Ellipsis not in parts:
        parts.append(Ellipsis)
    at = parts.index(Ellipsis)
    whole_dims = [slice(None)] * (first.value.dim() - taken)
    every = [part for part in (*parts[:at], *whole_dims, *parts[at + 1 :]) if part is not None]
    return is_whole(every[first.front])


def _check_shape(node: fx.Node, traced: Any, value: Any, whole: FullTensor) -> FullTensor:
    """Check that a result has the traced shape but for the dimension that is selected along.

    ``whole`` says what is known of ``value``, the fake result for all elements.
    """
    if not isinstance(traced, torch.Tensor) or not isinstance(value, torch.Tensor):
        raise _unsupported_call(node)
    along = sizes_from_data(traced)
    if len(along) != 1 or value.dim() != traced.dim():
        raise _unsupported_call(node)
    kind = (value.dtype, value.device, value.requires_grad)
    sizes = list(traced.shape)
    sizes[along[0]] = whole.selection.flat.meta["example_value"].shape[0]
    alike = all(map(known_equal, value.shape, sizes))
    if not alike or kind != (traced.dtype, traced.device, traced.requires_grad):
        raise _unsupported_call(node)
    return replace(whole, front=along[0])


def _rebind(low: MaskLowering, node: fx.Node, whole: FullTensor) -> None:
    """After a write in place: who shares the memory holds the new value, or is not known."""
    written = node.args[0]
    low.parts.clear()
    for held in [n for n in low.whole if memory_of(n) == memory_of(node)]:
        if _geometry(held) == _geometry(written):
            low.whole[held] = whole
        else:
            del low.whole[held]


def _geometry(node: Any) -> Any:
    value = tensor_value(node)
    if value is None:
        return None
    return (str(value.shape), str(value.stride()), str(value.storage_offset()), value.requires_grad)
