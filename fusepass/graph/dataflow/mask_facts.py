"""What the outcome of a predicate says about the masks it was reduced from.

``mask.any()`` is false exactly when no element of ``mask`` is true. From there by the rules of
logic: ``not``, ``and``, ``or``, ``all``, counts compared with zero, and reshaped, expanded or
sliced copies of a mask. A fact is about a mask at the moment at which the predicate read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from fusepass.graph.dataflow.memory import is_nonempty
from fusepass.graph.dataflow.recursion import Steps
from fusepass.graph.dataflow.value_numbering import ValueAt, ValueNumbering
from fusepass.graph.dataflow.write_history import WriteHistory
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.torch_private.fx.graphs import known_equal

_SAME_ELEMENTS = frozenset(
    """H T bool broadcast_to clone contiguous detach expand expand_as flatten flip getitem
    __getitem__ mT movedim narrow permute repeat reshape reshape_as select squeeze t to transpose
    type unflatten unsqueeze view view_as""".split()
)
_MIRRORED = {"gt": "lt", "lt": "gt", "ge": "le", "le": "ge", "eq": "eq", "ne": "ne"}
_NOT = frozenset({"logical_not", "bitwise_not", "__invert__"})
_OR = frozenset({"logical_or", "bitwise_or", "__or__"})
_AND = frozenset({"logical_and", "bitwise_and", "__and__"})
_Outcome = tuple[fx.Node, int, bool]  # what a node, read at a moment, came out as
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # which have infinities


@dataclass(frozen=True, eq=False)
class MaskFacts:
    """Masks of which every element is known.

    Attributes:
        values: compares values of the graph they are in.
        false: no element is true.
        true: every element is true.
    """

    values: ValueNumbering
    false: dict[ValueAt, None] = field(default_factory=dict)
    true: dict[ValueAt, None] = field(default_factory=dict)

    def all_equal(self, value: bool, mask: fx.Node, moment: int) -> Steps:
        """Step function: whether all elements of a mask, read at a moment, have a value."""
        known = self.true if value else self.false
        if (mask, moment) in known:
            return True
        for fact in known:
            if (yield (self.values.nodes_are_same, (mask, moment), fact)):
                return True
        if not self.values.history.holds_value(mask, moment):
            return False
        name, moment = op_name(mask), self.values.history.moments[mask]
        if mask.kwargs and name not in _SAME_ELEMENTS:
            return False  # an operand may be among them
        parts = mask.args if name in _AND | _OR else mask.args[:1]
        one_is_enough = name in _OR if value else name in _AND
        if name in _NOT:
            value = not value
        elif name not in _AND | _OR | _SAME_ELEMENTS:
            return False
        for part in parts:
            follows = _is_bool(part) and (yield (self.all_equal, value, part, moment))
            if bool(follows) is one_is_enough:
                return one_is_enough
        return not one_is_enough and bool(parts)


def facts_of(predicate: fx.Node, outcome: bool, values: ValueNumbering, moment: int) -> MaskFacts:
    """What is known where a 0-d predicate, read at a moment, came out as ``outcome``."""
    facts = MaskFacts(values)
    todo, met = [(predicate, moment, outcome)], set[_Outcome]()
    while todo:
        known = todo.pop()
        if known not in met and tensor_value(known[0]) is not None:
            met.add(known)
            todo += _learn(*known, facts)
    return facts


def _learn(node: fx.Node, moment: int, outcome: bool, facts: MaskFacts) -> Iterator[_Outcome]:
    """Note what a node came out as; what follows from it at once."""
    if _is_bool(node):
        (facts.true if outcome else facts.false)[node, moment] = None
    history = facts.values.history
    if not node.args or not history.holds_value(node, moment):
        return
    name, args, moment = op_name(node), node.args, history.moments[node]
    operands: list[Any] = [arg for arg in args if isinstance(arg, fx.Node)]
    if name in _NOT:
        if name == "logical_not" or _is_bool(args[0]):  # ~1 is -2, which is true
            yield operands[0], moment, not outcome
    elif (name in _OR and not outcome) or (name in _AND and outcome):
        for operand in operands:
            yield operand, moment, outcome
    elif name in _SAME_ELEMENTS and (_is_repeated(node, args[0]) or _is_whole_mask(node, args[0])):
        yield operands[0], moment, outcome
    elif (
        name in ("any", "max", "amax")
        and _reduces_all_dims(node)
        and not outcome
        and _is_bool(args[0])
    ):
        yield operands[0], moment, False
    elif (
        name in ("all", "min", "amin") and _reduces_all_dims(node) and outcome and _is_bool(args[0])
    ):
        yield operands[0], moment, True
    elif name in _MIRRORED and len(args) == 2:
        if isinstance(args[0], (int, float)):  # torch 2.11 records ``0 < count`` as it stands
            name, args = _MIRRORED[name], args[::-1]
        mask = _empty_by_count(str(name), args[0], args[1], moment, outcome, history)
        if mask is not None:
            yield *mask, False


def _empty_by_count(
    name: str, count: Any, number: Any, moment: int, outcome: bool, history: WriteHistory
) -> ValueAt | None:
    """``mask.sum() > 0`` and its relatives: comparisons that tell no true element from some."""
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return None
    some = (name, number) in (("gt", 0), ("ne", 0), ("ge", 1))
    none = (name, number) in (("eq", 0), ("le", 0), ("lt", 1))
    if not (some and not outcome) and not (none and outcome):
        return None
    if tensor_value(count) is None or not history.holds_value(count, moment):
        return None
    return (
        (count, history.moments[count])
        if _is_bool(count)
        else _counted_mask(count, moment, history)
    )


def _counted_mask(node: fx.Node, moment: int, history: WriteHistory) -> ValueAt | None:
    """The mask a number counts, and when it does: one that is 0 only if no element is true."""
    dtypes: list[torch.dtype] = []
    while history.holds_value(node, moment) and node.args:
        value, source = tensor_value(node), tensor_value(node.args[0])
        if value is None or source is None:
            return None
        dtypes.append(value.dtype)
        name, moment = op_name(node), history.moments[node]
        if name in ("sum", "count_nonzero"):
            counts = (
                _reduces_all_dims(node)
                and _is_bool(node.args[0])
                and _counts_exactly(dtypes, source)
            )
            return (node.args[0], moment) if counts else None  # type: ignore[return-value]
        if name not in _SAME_ELEMENTS or not _is_repeated(node, node.args[0]):
            return None
        node = node.args[0]  # type: ignore[assignment]
    return None


def _counts_exactly(dtypes: list[torch.dtype], mask: torch.Tensor) -> bool:
    """Whether a mask's count, cast to these dtypes in turn, is 0 only where it was 0 before.

    256 elements are none in eight bits, and a negative number of them in fewer. A float may be
    rounded up, which matters only to an integer that is made of it. The last dtype comes first.
    """
    while dtypes and dtypes[0] in _FLOATS:
        dtypes = dtypes[1:]
    if any(dtype.is_complex for dtype in dtypes):
        return False
    if all(dtype is torch.int64 for dtype in dtypes):
        return True
    elements: Any = mask.numel()
    return isinstance(elements, int) and all(
        elements <= _largest_exact_integer(dtype) for dtype in dtypes
    )


def _largest_exact_integer(dtype: torch.dtype) -> float:
    """The number up to which a dtype has every one."""
    if dtype is torch.bool:
        return 0
    if dtype.is_floating_point:
        return 2 / torch.finfo(dtype).eps if dtype in _FLOATS else 0
    return torch.iinfo(dtype).max


def _reduces_all_dims(node: fx.Node) -> bool:
    """Whether a reduction takes all dimensions."""
    return len(node.args) == 1 and not (set(node.kwargs) - {"dtype"})


def _is_repeated(view: fx.Node, source: Any) -> bool:
    """Whether a view or a copy has the only element of its source, once or more."""
    return _is_scalar(source) and is_nonempty(view)


def _is_whole_mask(view: fx.Node, source: Any) -> bool:
    """Whether a view of a mask, or a copy, has all its elements."""
    a, b = tensor_value(view), tensor_value(source)
    if a is None or b is None or not (_is_bool(view) and _is_bool(source)):
        return False
    if op_name(view) in ("getitem", "__getitem__"):
        return False  # by a tensor, one element may be taken for another
    return known_equal(a.numel(), b.numel())


def _is_bool(node: Any) -> bool:
    value = tensor_value(node)
    return value is not None and value.dtype is torch.bool


def _is_scalar(node: Any) -> bool:
    value = tensor_value(node)
    return value is not None and all(known_equal(n, 1) for n in value.shape)
