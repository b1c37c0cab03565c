"""What the outcome of a predicate says about the masks it was reduced from.

``mask.any()`` is false exactly when no element of ``mask`` is true. From there by the rules of
logic: ``not``, ``and``, ``or``, ``all``, counts compared with zero, and reshaped, expanded or
sliced copies of a mask. A fact is about a mask at the moment at which the predicate read it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from fusepass import torch_private
from fusepass.graph.canonical import op_name, tensor_value
from fusepass.graph.history import History
from fusepass.graph.same_value import Held, same_value

_SAME_ELEMENTS = frozenset(
    """H T bool broadcast_to clone contiguous detach expand expand_as flatten flip getitem
    __getitem__ mT movedim narrow permute repeat reshape reshape_as select squeeze t to transpose
    type unflatten unsqueeze view view_as""".split()
)
_MIRRORED = {"gt": "lt", "lt": "gt", "ge": "le", "le": "ge", "eq": "eq", "ne": "ne"}
_NOT = frozenset({"logical_not", "bitwise_not", "__invert__"})
_OR = frozenset({"logical_or", "bitwise_or", "__or__"})
_AND = frozenset({"logical_and", "bitwise_and", "__and__"})


# Whether all elements of a mask, read at a moment, have a value: asked once, masks are used twice.
_Answers = dict[tuple[bool, fx.Node, int], bool]


@dataclass(frozen=True)
class MaskFacts:
    """Masks of which every element is known.

    Attributes:
        history: of the graph they are in.
        false: no element is true.
        true: every element is true.
        source: gives what a node is known to hold.
    """

    history: History
    false: list[Held] = field(default_factory=list)
    true: list[Held] = field(default_factory=list)
    source: Callable[[Held], Held] = lambda held: held

    def is_false(self, mask: Any, moment: int) -> bool:
        """Whether no element of a mask, read at a moment, is true."""
        return mask is False or self._is_all(False, mask, moment, {})

    def is_true(self, mask: Any, moment: int) -> bool:
        """Whether every element of a mask, read at a moment, is true."""
        return mask is True or self._is_all(True, mask, moment, {})

    def _is_all(self, value: bool, mask: Any, moment: int, known: _Answers) -> bool:
        if not _is_bool(mask):
            return False
        asked = (value, mask, moment)
        if asked not in known:
            known[asked] = self._follows(value, mask, moment, known)
        return known[asked]

    def _follows(self, value: bool, mask: Any, moment: int, answers: _Answers) -> bool:
        for known, read in self.true if value else self.false:
            if same_value(mask, known, self.history, (moment, read), self.source):
                return True
        if not self.history.holds(mask, moment):
            return False
        name, moment = op_name(mask), self.history.moments[mask]
        if name in _SAME_ELEMENTS:
            return self._is_all(value, mask.args[0], moment, answers)
        if name in _NOT:
            return self._is_all(not value, mask.args[0], moment, answers)
        if name in _AND or name in _OR:
            one_is_enough = (name in _OR) is value
            known_parts = (self._is_all(value, part, moment, answers) for part in mask.args)
            return any(known_parts) if one_is_enough else all(known_parts)
        return False


def facts_of(predicate: fx.Node, outcome: bool, history: History, moment: int) -> MaskFacts:
    """What is known where a 0-d predicate, read at a moment, came out as ``outcome``."""
    facts = MaskFacts(history)
    _learn(predicate, moment, outcome, facts)
    return facts


def _learn(node: Any, moment: int, outcome: bool, facts: MaskFacts) -> None:
    if tensor_value(node) is None or (node, moment) in (facts.true if outcome else facts.false):
        return
    if _is_bool(node):
        (facts.true if outcome else facts.false).append((node, moment))
    if not facts.history.holds(node, moment):
        return
    name, args, moment = op_name(node), node.args, facts.history.moments[node]
    if name in _NOT:
        _learn(args[0], moment, not outcome, facts)
    elif (name in _OR and not outcome) or (name in _AND and outcome):
        for arg in args:
            _learn(arg, moment, outcome, facts)
    elif name in _SAME_ELEMENTS and (_is_scalar(args[0]) or _is_whole_mask(node, args[0])):
        _learn(args[0], moment, outcome, facts)
    elif name in ("any", "max", "amax") and _whole(node) and not outcome and _is_bool(args[0]):
        _learn(args[0], moment, False, facts)
    elif name in ("all", "min", "amin") and _whole(node) and outcome and _is_bool(args[0]):
        _learn(args[0], moment, True, facts)
    elif name in _MIRRORED and len(args) == 2:
        if isinstance(args[0], (int, float)):  # torch 2.11 records ``0 < count`` as it stands
            name, args = _MIRRORED[name], args[::-1]
        _learn_from_count(str(name), args[0], args[1], moment, outcome, facts)


def _learn_from_count(
    name: str, count: Any, number: Any, moment: int, outcome: bool, facts: MaskFacts
) -> None:
    """``mask.sum() > 0`` and its relatives: comparisons that tell no true element from some."""
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return
    some = (name, number) in (("gt", 0), ("ne", 0), ("ge", 1))
    none = (name, number) in (("eq", 0), ("le", 0), ("lt", 1))
    if not (some and not outcome) and not (none and outcome):
        return
    if tensor_value(count) is None or not facts.history.holds(count, moment):
        return
    read = facts.history.moments[count]
    if _is_bool(count):
        _learn(count, moment, False, facts)
        return
    if not count.args or not _counts_exactly(count):
        return
    if op_name(count) in ("sum", "count_nonzero") and _whole(count) and _is_bool(count.args[0]):
        _learn(count.args[0], read, False, facts)
    elif op_name(count) in _SAME_ELEMENTS and _is_scalar(count.args[0]):
        _learn_from_count(name, count.args[0], number, read, outcome, facts)


def _counts_exactly(node: fx.Node) -> bool:
    """Whether a count other than zero cannot come out as zero (256 does in eight bits)."""
    value, counted = tensor_value(node), tensor_value(node.args[0])
    if value is None or counted is None:
        return False
    if value.dtype is torch.int64 or value.dtype.is_floating_point:
        return True
    most = 0 if value.dtype is torch.bool else torch.iinfo(value.dtype).max
    return isinstance(counted.numel(), int) and counted.numel() <= most


def _whole(node: fx.Node) -> bool:
    """Whether a reduction takes all dimensions."""
    return len(node.args) == 1 and not (set(node.kwargs) - {"dtype"})


def _is_whole_mask(view: fx.Node, source: Any) -> bool:
    """Whether a view of a mask, or a copy, has all its elements."""
    a, b = tensor_value(view), tensor_value(source)
    if a is None or b is None or not (_is_bool(view) and _is_bool(source)):
        return False
    if op_name(view) in ("getitem", "__getitem__"):
        return False  # by a tensor, one element may be taken for another
    return torch_private.known_equal(a.numel(), b.numel())


def _is_bool(node: Any) -> bool:
    value = tensor_value(node)
    return value is not None and value.dtype is torch.bool


def _is_scalar(node: Any) -> bool:
    value = tensor_value(node)
    return value is not None and all(torch_private.known_equal(n, 1) for n in value.shape)
