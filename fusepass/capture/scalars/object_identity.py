"""Answer ``is``, ``in`` and torch's questions for numbers that are not read yet.

For a truth value ``b``, ``b is True`` is ``b``. ``n in numbers`` says whether ``n`` equals one of
the numbers, or is the same object. Which object any other number is, is known only once the number
is read.

In eager ``n`` is a number of Python, and ``statically_known_true(n == 3)`` gives ``n == 3``. Dynamo
answers such a question while it traces, and so wrongly for a number that is not read. Where eager's
answer is not known, the number is read.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch
from torch import fx

from fusepass.capture.frame_state import Frame, frame_of
from fusepass.capture.masks.selection_count import selection_of
from fusepass.capture.restarts import restart_without
from fusepass.capture.scalars.arm_scalars import NUMBER, is_choice
from fusepass.capture.scalars.item_hooks import on_not
from fusepass.capture.scalars.scalar import kind_of
from fusepass.graph.dataflow.reached import reached
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.deferred_values import late_parts
from fusepass.torch_private.dynamo.identity import (
    IdentityHandlers,
    decided,
    equal,
    may_be_number,
    other_number,
    parts_of,
)
from fusepass.torch_private.dynamo.scalars.unbacked_sizes import (
    asked_symbols,
    linear_size,
    unknown_sizes,
)
from fusepass.torch_private.dynamo.stack import (
    break_graph,
    constant,
    constant_of,
    is_any_tensor,
    is_unused,
    node_of,
    number_node,
    realized,
    traced_operator,
)

_IS = "Python asks which object it is"
_KIND = "Python asks for its type"
_IN = "Python looks for it in a container, or for something in one with it"
_NO_NUMBERS = (type(None), str, bytes)  # equal to no number


def on_same(translator: Any, left: Any, right: Any, negated: bool) -> Any:
    """The result of ``left is right``, or None where Dynamo knows it."""
    frame = frame_of(translator.output)
    if frame is None:
        return None
    if left is right:
        return constant(not negated) if is_unknown(frame, left) else None
    for value, other in ((left, right), (right, left)):
        if is_unknown(frame, value):
            return _compared(translator, frame, value, realized(other), negated)
    for value, other in ((left, right), (right, left)):
        if _is_small(other) and _is(value, torch.SymInt):
            same = _equal(translator, frame, value, other)
            return constant(constant_of(same)[1] is not negated)
        if number_node(value) is not None and not may_be_number(other):
            return constant(negated)
        if late_parts(value) is not None and not _is_none(other):
            break_graph("Value that is computed after the graph", _IS)
    return None


def _compared(translator: Any, frame: Frame, value: Any, other: Any, negated: bool) -> Any:
    known, python = constant_of(other)
    if known and isinstance(python, bool) and _is(value, torch.SymBool):
        truth = value if python is not negated else on_not(translator, value)
        if truth is not None:
            return truth
    tensors = all(map(is_any_tensor, (value, other)))
    if tensors or may_be_number(other) or is_unknown(frame, other):
        restart_knowing(frame, [value, other], _IS)
    return constant(negated)  # they are of different types


def on_equal(translator: Any, left: Any, right: Any) -> list[Any]:
    """The operands that ``left == right`` is to compare: an enum member as its number.

    To Dynamo such a member is an object, which equals no number that varies or is not known.
    """
    if frame_of(translator.output) is None:
        return [left, right]
    sides = [left, right]
    for place, value in enumerate(sides):
        if number_node(sides[1 - place]) is not None:
            number = other_number(value)
            sides[place] = value if number is None else constant(number)
    return sides


def _may_hold_unknown(frame: Frame) -> bool:
    """Whether anything in the frame may be a number that is not known; tells most apart at once."""
    left = any(site.leaves_numbers for site in frame.sites)
    return bool(frame.items or frame.selections or left)


def on_kind(translator: Any, value: Any) -> None:
    """``type(value)`` or ``isinstance(value, …)`` of what is of another type in either arm."""
    frame = frame_of(translator.output)
    if frame is not None and differs(frame, value) and len(kinds(value)) > 1:
        restart_knowing(frame, [value], _KIND)


def on_test(frame: Frame, value: Any) -> None:
    """A jump on a number that differs between arms, or on what is made of one."""
    if not is_unused(value) and differs(frame, value):
        restart_knowing(frame, [value], "a branch tests it")


def on_asked(frame: Frame, error: BaseException) -> None:
    """Dynamo asks for the value of a number, which may be one that differs between arms."""
    numbers = [site.branch.site for site in frame.sites if site.leaves_numbers]
    if numbers and asked_symbols(error):
        text = "a Python number differs between the arms, and its value is asked for afterwards"
        restart_without(frame, dict.fromkeys(numbers, (Reason.PYTHON_VALUE, text)))


def _is_none(value: Any) -> bool:
    return constant_of(realized(value)) == (True, None)


def _is_small(value: Any) -> bool:
    """Whether it is an integer of which Python has but one object.

    So has a size that equals it, or an integer that varies, for which Dynamo does not look.
    """
    known, python = constant_of(value)
    return known and type(python) is int and -5 <= python <= 256


def on_contains(translator: Any, items: list[Any], searched: Any) -> Any:
    """The result of ``searched in items``, or None where Dynamo knows it."""
    frame = frame_of(translator.output)
    if frame is None:
        return None
    values = [searched, *items]
    parts = _all_parts(values) if _may_hold_unknown(frame) else []
    if any(late_parts(part) is not None for part in parts):
        break_graph("Value that is computed after the graph", _IN)
    unknown = [v for v in parts if is_unknown(frame, v)]
    symbolic = any(number_node(v) is not None for v in values)
    if not unknown and not symbolic:
        return None
    values = [realized(value) for value in values]
    numbers = [other_number(value) for value in values]
    pairs = zip(values, numbers, strict=True)
    values = [v if number is None else constant(number) for v, number in pairs]
    searched, *items = values
    plain = all(map(_is_plain, values)) and not any(differs(frame, v) for v in unknown)
    if not plain and unknown:
        restart_knowing(frame, unknown, _IN)
    return _is_one_of(translator, frame, items, searched) if plain else None


def _is_one_of(translator: Any, frame: Frame, items: list[Any], searched: Any) -> Any:
    found = None
    for item in items:
        same = _equal(translator, frame, item, searched)
        known, python = constant_of(same)
        if known and python:
            return same
        if not known:
            found = (
                same if found is None else traced_operator(translator, operator.or_, [found, same])
            )
    return constant(False) if found is None else found


def _is(value: Any, kind: type) -> bool:
    """Whether a tracked value is a symbol of a kind."""
    node = number_node(value)
    return node is not None and isinstance(node.meta.get("example_value"), kind)


def _all_parts(values: list[Any]) -> list[Any]:
    """Tracked values and what the containers among them hold, however deep."""
    found: dict[int, Any] = {}
    todo = list(values)
    while todo:
        value = todo.pop()
        if id(value) not in found:
            found[id(value)] = value
            todo += parts_of(value)
    return list(found.values())


def _is_plain(value: Any) -> bool:
    """Whether Python compares a value with a number by its own rules for numbers."""
    known, python = constant_of(value)
    if known:
        return type(python) in (bool, int, float, *_NO_NUMBERS)
    return number_node(value) is not None


def _equal(translator: Any, frame: Frame, item: Any, searched: Any) -> Any:
    """Whether a value is, or equals, the one searched for."""
    nodes = [number_node(value) for value in (item, searched)]
    if nodes[0] is nodes[1] is not None:
        return constant(True)  # NaN, too
    known, values = zip(*map(constant_of, (item, searched)), strict=True)
    if all(known):
        return constant(values[0] is values[1] or values[0] == values[1])
    if any(k and isinstance(v, _NO_NUMBERS) for k, v in zip(known, values, strict=True)):
        return constant(False)
    same = equal(translator, item, searched)
    symbolic = number_node(same) is not None
    return decided(same) if symbolic and not is_unknown(frame, same) else same


IDENTITY = IdentityHandlers(on_same, on_equal, on_kind, on_contains)


_NUMBER = "bool int float"
# What a function of torch gives, and for which kinds of numbers: the number itself, a constant, the
# negation, or whether all or any of its arguments hold. For other kinds it raises, or what it gives
# is not known.
_ANSWERS: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(
        """
        expect_true guard_bool guard_or_false guard_or_true guard_size_oblivious
        statically_known_true definitely_true
        """.split(),
        (operator.pos, "bool"),
    ),
    "statically_known_false": (operator.not_, "bool"),
    "definitely_false": (operator.not_, "bool"),
    "guard_float": (operator.pos, "float"),
    "guard_int": (operator.pos, "int"),
    "guard_scalar": (operator.pos, _NUMBER),
    "guarding_hint_or_throw": (operator.pos, "bool int"),
    "hint_int": (operator.pos, "int"),
    "optimization_hint": (operator.pos, "int"),
    "has_guarding_hint": (True, _NUMBER),
    "has_hint": (True, _NUMBER),
    "has_static_value": (True, _NUMBER),
    "is_concrete_bool": (True, "bool"),
    "is_concrete_float": (True, "float"),
    "is_concrete_int": (True, "bool int"),
    "has_free_symbols": (False, _NUMBER),
    "has_free_unbacked_symbols": (False, _NUMBER),
    "is_nested_int": (False, _NUMBER),
    "is_symbolic": (False, _NUMBER),
    "sym_and": (operator.and_, "bool"),
    "sym_or": (operator.or_, "bool"),
}
_ASIDE = ("optimization_hint",)  # what comes with the number is for one that is not known


def answered(
    translator: Any,
    frame: Frame,
    name: str,
    args: list[Any],
    kwargs: dict[str, Any],
    call: Callable[[], Any],
) -> Any:
    """The tracked result of a function that asks what torch knows about a number."""
    given = [realized(value) for value in (*args, *kwargs.values())]
    unknown = [value for value in given if left_unknown(frame, value)]
    if not unknown:
        return _of_known(name, given, call)
    asked = given[:1] if name in _ASIDE else given
    answer, kinds = _ANSWERS.get(name, (None, ""))
    known = answer is not None and all(_kind(value) in kinds.split() for value in asked)
    if known and answer in (operator.and_, operator.or_):
        return functools.reduce(lambda a, b: traced_operator(translator, answer, [a, b]), asked)
    if known and len(asked) == 1:
        if answer is operator.pos:
            return asked[0]
        if answer is operator.not_:
            negated = on_not(translator, asked[0])
            return traced_operator(translator, answer, asked) if negated is None else negated
        return constant(answer)
    return restart_knowing(frame, unknown, f"{name} asks for what is known of it")


def _of_known(name: str, given: list[Any], call: Callable[[], Any]) -> Any:
    """The negation of a known truth value: Dynamo's ``statically_known_false`` forgets it."""
    if name == "statically_known_false" and len(given) == 1:
        known, value = constant_of(given[0])
        if known and isinstance(value, bool):
            return constant(not value)
    return call()


def _kind(value: Any) -> str | None:
    node = number_node(value)
    return kind_of(constant_of(value)[1] if node is None else node)


def is_unknown(frame: Frame, value: Any) -> bool:
    """Whether a tracked value is a number that capture left unknown, or may be one."""
    node = number_node(value)
    if node is not None:
        return bool(unknown_sizes(node.meta.get("example_value")))
    return differs(frame, value)


def left_unknown(frame: Frame, value: Any) -> bool:
    """Whether a tracked value is a number made of one that capture left unknown."""
    node = number_node(value) or node_of(value)
    return node is not None and any(
        n in frame.items or NUMBER in n.meta or _counted(n) in frame.selections
        for n in _made_of(node)
    )


def differs(frame: Frame, value: Any) -> bool:
    """Whether a tracked value is a number in one arm of a branch: of another value in the other."""
    if not any(site.leaves_numbers for site in frame.sites):
        return False
    node = number_node(value) or node_of(value)
    return node is not None and any(NUMBER in n.meta for n in _made_of(node))


def kinds(value: Any) -> set[type]:
    """The Python types that a value may be of which differs between arms, arithmetic left aside."""
    node = number_node(value) or node_of(value)
    numbers = reached([] if node is None else _made_of(node), lambda one: _sides(one, inner=True))
    ends = [side for one in numbers for side in _sides(one, inner=False)]
    return {type(e.meta.get("example_value") if isinstance(e, fx.Node) else e) for e in ends}


def _sides(number: fx.Node, *, inner: bool) -> list[Any]:
    """The values of a number in the two arms: those that differ themselves, or the others."""
    sides = number.args[1:] if NUMBER in number.meta else ()
    return [s for s in sides if (isinstance(s, fx.Node) and NUMBER in s.meta) is inner]


def restart_knowing(frame: Frame, values: list[Any], what: str) -> NoReturn:
    """Start the frame again, these values known."""
    nodes = [number_node(v) or node_of(v) for v in values]
    behind = dict.fromkeys(n for node in nodes if node is not None for n in _made_of(node))
    text = f"a Python number differs between the arms, and {what}"
    left = reached((node for node in behind if NUMBER in node.meta), _left_before)
    sites = [node.meta[NUMBER].site for node in left if NUMBER in node.meta]
    why_known = Reason.PYTHON_VALUE, text
    restart_without(frame, dict.fromkeys(sites, why_known), together=True)
    counted = [frame.selections[n] for n in map(_counted, behind) if n in frame.selections]
    why = Reason.SIZE, f"{what}: how many the mask selects"
    restart_without(frame, dict.fromkeys(counted, why))
    read = [frame.items[node] for node in behind if node in frame.items]
    restart_without(frame, dict.fromkeys(read, (Reason.PYTHON_VALUE, what)))
    break_graph("Number that is not known", what)  # none of ours


def _left_before(number: fx.Node) -> Iterable[fx.Node]:
    """The numbers that one in an arm is made of, which must be known where that one is."""
    return filter(_is_number, number.all_input_nodes)


def _made_of(node: fx.Node) -> list[fx.Node]:
    """A number and those it is computed from, up to what left them unknown."""

    def before(one: fx.Node) -> Iterable[fx.Node]:
        return () if NUMBER in one.meta else filter(_is_number, one.all_input_nodes)

    return list(reached(filter(_is_number, [node]), before))


def _is_number(node: fx.Node) -> bool:
    held = node.meta.get("example_value")
    return isinstance(held, (torch.SymInt, torch.SymFloat, torch.SymBool)) or is_choice(node)


def _counted(node: fx.Node) -> fx.Node | None:
    """The call that selects as many elements as a number says, if it is made of one such count."""
    size = linear_size(node.meta.get("example_value"))
    return None if size is None else selection_of(node.graph, size[0])
