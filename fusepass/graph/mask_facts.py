"""What the outcome of a predicate says about the masks it was reduced from.

``mask.any()`` is false exactly when no element of ``mask`` is true. From there by the rules of
logic: ``not``, ``and``, ``or``, ``all``, counts compared with zero, and reshaped, expanded or
sliced copies of a mask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from fusepass import torch_private
from fusepass.graph.canonical import op_name, tensor_value
from fusepass.graph.same_value import same_value

_SAME_ELEMENTS = frozenset(
    """H T bool broadcast_to clone contiguous detach expand expand_as flatten flip getitem
    __getitem__ mT movedim narrow permute repeat reshape reshape_as select squeeze t to transpose
    type unflatten unsqueeze view view_as""".split()
)
_NOT = frozenset({"logical_not", "bitwise_not", "__invert__"})
_OR = frozenset({"logical_or", "bitwise_or", "__or__"})
_AND = frozenset({"logical_and", "bitwise_and", "__and__"})


@dataclass(frozen=True)
class MaskFacts:
    """Masks of which every element is known.

    Attributes:
        false: no element is true.
        true: every element is true.
        source: gives the node whose value a node is known to hold.
    """

    false: list[fx.Node] = field(default_factory=list)
    true: list[fx.Node] = field(default_factory=list)
    source: Callable[[fx.Node], fx.Node] = lambda node: node

    def is_false(self, mask: Any) -> bool:
        """Whether no element of a mask is true."""
        if mask is False:
            return True
        if not _is_bool(mask):
            return False
        if any(same_value(mask, known, self.source) for known in self.false):
            return True
        name = op_name(mask)
        if name in _SAME_ELEMENTS:
            return self.is_false(mask.args[0])
        if name in _AND:
            return any(self.is_false(arg) for arg in mask.args)
        if name in _OR:
            return all(self.is_false(arg) for arg in mask.args)
        return name in _NOT and self.is_true(mask.args[0])

    def is_true(self, mask: Any) -> bool:
        """Whether every element of a mask is true."""
        if mask is True:
            return True
        if not _is_bool(mask):
            return False
        if any(same_value(mask, known, self.source) for known in self.true):
            return True
        name = op_name(mask)
        if name in _SAME_ELEMENTS:
            return self.is_true(mask.args[0])
        if name in _AND:
            return all(self.is_true(arg) for arg in mask.args)
        if name in _OR:
            return any(self.is_true(arg) for arg in mask.args)
        return name in _NOT and self.is_false(mask.args[0])


def facts_of(predicate: fx.Node, outcome: bool) -> MaskFacts:
    """What is known where a 0-d predicate came out as ``outcome``."""
    facts = MaskFacts()
    _learn(predicate, outcome, facts)
    return facts


def _learn(node: Any, outcome: bool, facts: MaskFacts) -> None:
    if tensor_value(node) is None:
        return
    name, args = op_name(node), node.args
    if _is_bool(node):
        (facts.true if outcome else facts.false).append(node)
    if name in _NOT:
        _learn(args[0], not outcome, facts)
    elif (name in _OR and not outcome) or (name in _AND and outcome):
        for arg in args:
            _learn(arg, outcome, facts)
    elif name in _SAME_ELEMENTS and _is_scalar(args[0]):
        _learn(args[0], outcome, facts)
    elif name in ("any", "max", "amax") and _whole(node) and not outcome and _is_bool(args[0]):
        _learn(args[0], False, facts)
    elif name in ("all", "min", "amin") and _whole(node) and outcome and _is_bool(args[0]):
        _learn(args[0], True, facts)
    elif name in ("gt", "ne", "ge", "eq", "lt", "le") and len(args) == 2:
        _learn_from_count(str(name), args[0], args[1], outcome, facts)


def _learn_from_count(name: str, count: Any, number: Any, outcome: bool, facts: MaskFacts) -> None:
    """``mask.sum() > 0`` and its relatives: comparisons that tell no true element from some."""
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return
    some = (name, number) in (("gt", 0), ("ne", 0), ("ge", 1))
    none = (name, number) in (("eq", 0), ("le", 0), ("lt", 1))
    if not (some and not outcome) and not (none and outcome):
        return
    if _is_bool(count):
        _learn(count, False, facts)
    elif op_name(count) in ("sum", "count_nonzero") and _whole(count) and _is_bool(count.args[0]):
        _learn(count.args[0], False, facts)
    elif op_name(count) in _SAME_ELEMENTS and count.args and _is_scalar(count.args[0]):
        _learn_from_count(name, count.args[0], number, outcome, facts)


def _whole(node: fx.Node) -> bool:
    """Whether a reduction takes all dimensions."""
    return len(node.args) == 1 and not (set(node.kwargs) - {"dtype"})


def _is_bool(node: Any) -> bool:
    value = tensor_value(node)
    return value is not None and value.dtype is torch.bool


def _is_scalar(node: Any) -> bool:
    value = tensor_value(node)
    return value is not None and all(torch_private.known_equal(n, 1) for n in value.shape)
