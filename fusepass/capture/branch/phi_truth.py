"""Fold what is asked of values that are one of two, where all they may be is known.

``ok = True; if t.any(): ok = False`` leaves a truth value that is the predicate itself, negated.
Asking such values, and combining them, gives tensors: twenty flags in a row are twenty logical
operations. For other known values, as in ``mode == "fast"``, the answer is worked out for each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fusepass.capture.branch.known_outcomes import outcomes, resolved, tested_now
from fusepass.capture.branch.nesting import room_for_values
from fusepass.capture.frame_state import Frame, frame_of
from fusepass.capture.nodes.predicate import as_bool_scalar, held_predicate
from fusepass.capture.nodes.select_node import ARM
from fusepass.capture.refusal import Refusal
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.dynamo.phi import PhiVariable, is_phi, leaves_of, make_phi

_MOST = 256  # combinations of known values that are worked out
Leaf = Callable[[Any], Any]


class Undecided(Exception):
    """The answer is not known for all that a value may be."""


def truth_of(translator: Any, phi: Any) -> Any:
    """The truth of a value that is one of two: a truth value, or a tracked 0-d bool tensor.

    Raises:
        Undecided: something that it may be has no known truth value.
    """

    def leaf(value: Any) -> Any:
        constant, python = stack.constant_of(value)
        if constant:
            return bool(python)
        if not stack.is_any_tensor(value):
            raise Undecided
        try:
            return as_bool_scalar(translator, value)
        except Refusal:
            raise Undecided from None

    return _asked(translator, phi, leaf)


def compared_with_none(translator: Any, phi: Any) -> Any:
    """Whether a value that is one of two is None: a truth value, or a tracked 0-d bool tensor."""
    return _asked(translator, phi, _is_none)


def _is_none(value: Any) -> bool:
    return stack.constant_of(stack.realized(value)) == (True, None)


def _asked(translator: Any, phi: Any, leaf: Leaf) -> Any:
    frame = frame_of(translator.output)
    assert frame is not None
    made: dict[int, Any] = {}

    def answer(value: Any) -> Any:
        if not is_phi(value):
            return leaf(stack.realized(value))
        if id(value) not in made:
            sides = answer(value.taken), answer(value.other)
            tested = tested_now(frame, value)
            made[id(value)] = logical_choice(translator, tested, *sides)
        return made[id(value)]

    with room_for_values(frame):
        return answer(phi)


def logical_choice(translator: Any, tested: Any, taken: Any, other: Any) -> Any:
    """``taken`` if ``tested`` holds, else ``other``: truth values, or tracked 0-d bool tensors."""
    if isinstance(taken, bool) and isinstance(other, bool):
        if taken is other:
            return taken
        return tested if taken else _call(translator, torch.logical_not, tested)
    if taken is True:
        return _call(translator, torch.logical_or, tested, other)
    if other is False:
        return _call(translator, torch.logical_and, tested, taken)
    if taken is False:
        negated = _call(translator, torch.logical_not, tested)
        return _call(translator, torch.logical_and, negated, other)
    if other is True:
        negated = _call(translator, torch.logical_not, tested)
        return _call(translator, torch.logical_or, negated, taken)
    if taken is other:
        return taken
    return _call(translator, torch.where, tested, taken, other)


def _call(translator: Any, function: Any, *args: Any) -> Any:
    """Record an operation on truth values, once: each test of a counter asks much of it again."""
    proxies = tuple(arg.as_proxy() for arg in args)
    frame = frame_of(translator.output)
    if frame is None or frame.in_message or frame.due is not None or frame.rounds:
        return stack.wrap_call(translator, "call_function", function, proxies, {})
    key = torch.is_inference_mode_enabled(), function, *(proxy.node for proxy in proxies)
    known = frame.truths.get(key)
    if known is None or not _is_as_it_was(translator, frame, known.as_proxy().node):
        known = stack.wrap_call(translator, "call_function", function, proxies, {})
        frame.truths[key] = known
    return known


def _is_as_it_was(translator: Any, frame: Frame, node: fx.Node) -> bool:
    """Whether what a node gave is still what it would give, and has been made on the way here."""
    here = not node._erased and node.graph is translator.output.graph
    if not here or node.meta.get(ARM) not in (None, *frame.arms):
        return False
    return not any(map(frame.written.contain, (node, *node.all_input_nodes)))


def is_truth(value: Any) -> bool:
    """Whether a value that is one of two is a truth value."""
    if not is_phi(value):
        return False
    return _is_bool(value.taken) and _is_bool(value.other)


def may_be_truth(value: Any) -> bool:
    """Whether a value is a truth value, known or not."""
    return is_truth(value) or _is_bool(value)


def truth_phi(translator: Any, truth: Any, like: PhiVariable) -> Any:
    """A tracked truth value for what is one, or a tensor that says which."""
    if isinstance(truth, bool):
        return stack.constant(truth)
    held = held_predicate(translator, truth)
    sides = stack.constant(True), stack.constant(False)
    return make_phi(translator, truth, held, *sides, like.site, like.told)


def fold(translator: Any, original: Callable[[], None]) -> bool:
    """Work out an operation on known values for each that its operands may be.

    Returns:
        Whether that could be done; if not, the stack is as it was.
    """
    frame = frame_of(translator.output)
    assert frame is not None
    before = list(translator.stack)
    try:
        made = _Folding(translator, frame, original).run()
    except Undecided:
        translator.stack = before
        return False
    translator.stack = made
    return True


class _Folding:
    """The work on one instruction."""

    def __init__(self, translator: Any, frame: Frame, original: Callable[[], None]) -> None:
        self.translator, self.frame, self.original = translator, frame, original
        self.before = list(translator.stack)
        self.pointer = translator.instruction_pointer
        self.known = outcomes(frame)
        self.done: dict[tuple[int, ...], Any] = {}

    def run(self) -> list[Any]:
        phi = next(value for value in reversed(self.before) if is_phi(value))
        result = self._of(self.before)
        depth = self.depth
        if all(map(_is_bool, leaves_of(result))):
            result = truth_phi(self.translator, truth_of(self.translator, result), phi)
        return [*self.before[: depth - 1], result]

    def _of(self, values: list[Any]) -> Any:
        """The result for these operands: a constant, or a value that is one of two."""
        key = tuple(id(value) for value in values[-2:])
        if key not in self.done:
            if len(self.done) >= _MOST:
                raise Undecided
            self.done[key] = self._result(values)
        return self.done[key]

    def _result(self, values: list[Any]) -> Any:
        operands = range(-1, -min(len(values), 2) - 1, -1)
        for place in operands:
            value = values[place]
            if is_phi(value) and self._is_operand(place):
                sides = []
                for side in (value.taken, value.other):
                    with_side = list(values)
                    with_side[place] = resolved(side, self.known)
                    sides.append(self._of(with_side))
                if stack.constant_of(sides[0])[0] and sides[0] is sides[1]:
                    return sides[0]
                same = [stack.constant_of(side) for side in sides]
                if same[0][0] and same[1][0] and _equal(same[0][1], same[1][1]):
                    return sides[0]
                return self._choice(value, sides)
        return self._leaf(values)

    def _choice(self, like: PhiVariable, sides: list[Any]) -> Any:
        """One of two results, by the predicate of an operand; the same object for equal results."""
        tested = tested_now(self.frame, like)  # the predicate may be another one by now
        key = id(tested), *map(_identity, sides)
        parts = like.predicate, like.held, *sides, like.site, like.told
        if key not in self.frame.folded:
            self.frame.folded[key] = make_phi(self.translator, *parts), parts  # which stay alive
        return self.frame.folded[key][0]

    def _is_operand(self, place: int) -> bool:
        name = self.translator.current_instruction.opname
        return place == -1 or not (name == "TO_BOOL" or name.startswith("UNARY_"))

    def _leaf(self, values: list[Any]) -> Any:
        count = 2 if self._is_operand(-2) else 1
        if not all(stack.constant_of(stack.realized(value))[0] for value in values[-count:]):
            raise Undecided
        translator = self.translator
        translator.stack, translator.instruction_pointer = list(values), self.pointer
        try:
            self.original()
        except stack.RESTART_ERRORS:
            raise
        except Exception:  # noqa: BLE001  # it is traced for either arm, then
            raise Undecided from None
        self.depth = len(translator.stack)
        result = stack.realized(translator.stack[-1])
        if self.depth != len(values) - count + 1 or not stack.constant_of(result)[0]:
            raise Undecided
        return result


def _identity(side: Any) -> Any:
    constant, python = stack.constant_of(side)
    told = constant and isinstance(python, (bool, int, str, type(None)))
    return (type(python), python) if told else id(side)


def _equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and isinstance(a, (bool, int, str, type(None))) and a == b


def _is_bool(value: Any) -> bool:
    constant, python = stack.constant_of(value)
    return constant and isinstance(python, bool)
