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
    KeptSelection,
    MaskLowering,
    check_variance_warning,
    gate_gradient,
    same_selection,
)
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
_INDEXING = ("getitem", "__getitem__")
_LIKE = frozenset("full_like ones_like zeros_like".split())
# Along dimensions given by an argument, which must not be the one selected along.
_ALONG = {
    "all": "dim",
    "amax": "dim",
    "amin": "dim",
    "any": "dim",
    "cosine_similarity": "dim",
    "cumsum": "dim",
    "linalg_vector_norm": "dim",
    "log_softmax": "dim",
    "logsumexp": "dim",
    "mean": "dim",
    "norm": "dim",
    "normalize": "dim",
    "softmax": "dim",
    "std": "dim",
    "sum": "dim",
    "var": "dim",
}
_LAID_OUT = frozenset(
    """
    chunk flatten permute reshape select split squeeze stack t transpose unbind unsqueeze view
    """.split()
)


def lower_call(low: MaskLowering, node: fx.Node) -> FullTensor | None:
    """A call that gives a selected tensor, made for all elements; None for anything else.

    Raises:
        KeptSelection: it cannot be made for all elements.
    """
    name = str(op_name(node))
    source: Any = node.args[0] if node.args else None
    if name in _INDEXING and source in low.parts:
        made, parts = low.parts[source]
        place: Any = node.args[1]
        part: FullTensor = parts[place]
        return replace(part, node=low.add(node, operator.getitem, made, place))
    wholes = [low.whole[n] for n in node.all_input_nodes if n in low.whole]
    if not wholes:
        return None
    in_place = node.target in IN_PLACE_OPERATORS or (name.endswith("_") and not name.endswith("__"))
    plain = name.removesuffix("_") if in_place else name
    first = _alike(low, wholes)
    if plain in _ELEMENTWISE and (plain not in ("max", "min") or _is_of_two(node)):
        made, exact = _elementwise(low, node, plain, first, in_place=in_place)
    elif in_place:
        raise _unsupported_call(node)
    elif plain in _LIKE or _keeps_rows(low, node, plain, first):
        target = "reshape" if plain == "view" else node.target  # rows may lie further apart
        made, exact = _same_call(low, node, target), plain in _LAID_OUT or plain in _INDEXING
    else:
        raise _unsupported_call(node)
    exact = exact and all(whole.exact for whole in wholes)
    traced = node.meta.get("example_value")
    if isinstance(traced, (tuple, list)):
        made_parts = made.meta["example_value"]
        low.parts[node] = (
            made,
            [
                _check_shape(node, part, value, replace(first, node=made, exact=exact))
                for part, value in zip(traced, made_parts, strict=True)
            ],
        )
        low.seen[node] = first.selection
        return None
    whole = _check_shape(
        node, traced, made.meta["example_value"], replace(first, node=made, exact=exact)
    )
    if in_place:
        _rebind(low, node, whole)
    return whole


def _unsupported_call(node: fx.Node) -> KeptSelection:
    if is_random(node):
        text = f"random numbers are drawn for what a mask selected ({op_name(node)})"
        return KeptSelection(Reason.RANDOM_OP, text)
    name = op_name(node)
    text = f"a tensor whose size only the data know is used by {display_name(name)}"
    if name in ("sym_size", "sym_numel"):
        text = "the program asks how large a tensor is whose size only the data know"
    return KeptSelection(Reason.SIZE, text)


def _alike(low: MaskLowering, wholes: list[FullTensor]) -> FullTensor:
    first = wholes[0]
    for other in wholes[1:]:
        if not same_selection(low, first.selection, other.selection):
            raise KeptSelection(
                Reason.SIZE, "what two masks selected meets, in sizes that may differ"
            )
        if other.after != first.after:
            raise KeptSelection(
                Reason.SIZE, "what a mask selected is broadcast along what it selected"
            )
    return first


def _is_of_two(node: fx.Node) -> bool:
    call = normal_call(node)
    return call is not None and tensor_value(dict(call.args).get("other")) is not None


def _elementwise(
    low: MaskLowering, node: fx.Node, name: str, first: FullTensor, *, in_place: bool
) -> tuple[fx.Node, bool]:
    why = partial_reason(node)
    if why is not None:
        raise KeptSelection(Reason.PARTIAL_OP, f"for an element that is not selected, {why}")
    if in_place and node.args[0] not in low.whole:
        raise _unsupported_call(node)
    trained = torch.is_grad_enabled() and _requires_grad(node)
    gates: dict[fx.Node, fx.Node] = {}
    for operand in node.all_input_nodes:
        value = tensor_value(operand)
        if operand in low.whole:
            continue
        if value is None or not broadcasts(value, first.after):
            raise _unsupported_call(node)
        if trained and value.requires_grad:
            gates[operand] = gate_gradient(low, node, operand, first.selection, first.after)
    target = _out_of_place(node) if in_place else node.target
    made = _same_call(low, node, target, gates)
    traced = tensor_value(node)
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


def _requires_grad(node: fx.Node) -> bool:
    value = tensor_value(node)
    return value is not None and value.requires_grad


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
    if name in _INDEXING:
        return _keeps_rows_of_index(node.args[1], first)
    call = normal_call(node)
    if call is None or call.inplace or partial_reason(node) is not None:
        return False
    if name == "squeeze":  # of one element selected it would take that dimension, too
        dims = reduced_dims(call, first.value.dim()) if "dim" in dict(call.args) else None
        return dims is not None and first.front not in dims
    if name in ("stack", "cat") or (name in _LAID_OUT and name not in ("view", "reshape")):
        return True  # the shape of the result tells
    if name in ("view", "reshape"):
        return first.front == 0
    if name not in _ALONG:
        return False
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
    parts = list(index) if isinstance(index, (tuple, list)) else [index]
    basic = all(
        part is None
        or part is Ellipsis
        or (isinstance(part, int) and not isinstance(part, bool))
        or (isinstance(part, slice) and _is_plain(part))
        for part in parts
    )
    if not basic or parts.count(Ellipsis) > 1:
        return False
    taken = sum(part is not None and part is not Ellipsis for part in parts)
    if Ellipsis not in parts:
        parts.append(Ellipsis)
    at = parts.index(Ellipsis)
    whole_dims = [slice(None)] * (first.value.dim() - taken)
    every = [part for part in (*parts[:at], *whole_dims, *parts[at + 1 :]) if part is not None]
    along = every[first.front]
    return isinstance(along, slice) and (along.start, along.stop, along.step) == (None, None, None)


def _is_plain(part: slice) -> bool:
    return all(end is None or isinstance(end, int) for end in (part.start, part.stop, part.step))


def _same_call(
    low: MaskLowering, node: fx.Node, target: Any, instead: dict[fx.Node, fx.Node] | None = None
) -> fx.Node:
    """The call with what was selected replaced by what was computed for all elements."""

    def operand(n: fx.Node) -> fx.Node:
        return low.whole[n].node if n in low.whole else (instead or {}).get(n, n)

    args, kwargs = fx.map_arg((node.args, node.kwargs), operand)
    return low.add(node, target, *args, **kwargs)


def _check_shape(node: fx.Node, traced: Any, value: Any, whole: FullTensor) -> FullTensor:
    """What was computed, if it has the shape of the traced result but for the elements it is of.

    Args:
        node: the call.
        traced: its fake result.
        value: the fake result for all elements.
        whole: what is known of the latter, as of what it was computed from.

    Raises:
        KeptSelection: it does not.
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
