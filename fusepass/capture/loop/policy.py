"""Decide whether a loop is captured as a loop, and where it begins.

Python loops are unrolled while they are traced, and that stays so where it ends: a ``for`` over a
few items, a counter with a bound. A loop is captured as a loop if nothing but tensors can end it,
if it may make more rounds than are unrolled, or if unrolling it has failed. It begins at its head,
so if that is found out in the middle of a round, the frame is traced again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import fx

from fusepass.capture.bytecode.control_flow import facts_of
from fusepass.capture.bytecode.instructions import successors
from fusepass.capture.bytecode.natural_loops import Loop, find_loops, loops_of
from fusepass.capture.frame_state import Frame, Place, frame_of
from fusepass.capture.loop.capture_loop import capture_loop
from fusepass.capture.loop.counters import rounds_left
from fusepass.capture.loop.round_code import exits_of, followed
from fusepass.capture.loop.trace_round import Start
from fusepass.capture.nodes.predicate import as_bool_scalar
from fusepass.capture.refusal import Refusal, refusal_after
from fusepass.capture.restarts import restart_leaving, why_kept
from fusepass.capture.scalars.arm_scalars import NUMBER, is_choice
from fusepass.capture.source_position import here
from fusepass.graph.dataflow.reached import reached
from fusepass.graph.ops.op_names import tensor_value
from fusepass.report import log
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.dynamo.helpers_in_code import range_of_iterator
from fusepass.torch_private.dynamo.hooks import Attempts, jump_kind

MOST_UNROLLED = 32
_FILLS = ("LIST_APPEND", "SET_ADD", "MAP_ADD")
_WANTED, _REFUSED, _FOUND = "loop", "loop refused", "loop found"


def starts_at_jump(translator: Any, frame: Frame, place: Place, tested: Any) -> bool:
    """At a jump on a tensor: capture the loop that it leads into; say whether that was done.

    The frame may start again, to capture the loop that the jump is in at its head.

    Raises:
        Refusal: the loop has to stay, and cannot be unrolled.
    """
    at = translator.instruction_pointer - 1
    loop = guarded_loop(translator, at)
    met = loop or _loop_left_at(translator, at)
    known = (translator.f_code, at) in frame.known_tests
    if met is not None and tested is not None and not known:
        key = translator.f_code, met.head
        frame.tensor_tests.setdefault(key, set()).add(_place(translator, at))
    if loop is not None:
        return _starts_at_guard(translator, frame, place, tested, loop, at)
    loop = _loop_left_at(translator, at) or _flagged_around(translator, at)
    if loop is None or tested is None:
        return False
    key = translator.f_code, loop.head
    if why_kept(frame, _WANTED, key) or why_kept(frame, _REFUSED, key):
        return False
    if _exceeds(translator, frame, loop) or at not in loop.tests:
        _want(translator, frame, loop, place, tested)
    return False


def _flagged_around(translator: Any, at: int) -> Loop | None:
    """The ``while`` around a jump that a flag ends (``while not done``)."""
    instructions = translator.instructions
    for loop in loops_of(translator.f_code, instructions):
        tested = {
            instructions[test - 1].argval
            for test in loop.tests
            if _asks_name(instructions[test - 1])
        }
        bound = {
            instructions[i].argval for i in loop.members if instructions[i].opname == "STORE_FAST"
        }
        if not loop.iterates and at in loop.members and tested & bound:
            return loop
    return None


def _asks_name(instruction: Any) -> bool:
    return bool(instruction.opname == "LOAD_FAST")


def _starts_at_guard(
    translator: Any, frame: Frame, place: Place, tested: Any, loop: Loop, at: int
) -> bool:
    key = translator.f_code, loop.head
    refused = why_kept(frame, _REFUSED, key)
    only_tensors = _ended_by_one_test(translator, loop)
    if refused is not None:
        if only_tensors:
            raise Refusal(*refused)
        return False
    wanted = why_kept(frame, _WANTED, key) is not None
    if tested is None or not (wanted or only_tensors or _exceeds(translator, frame, loop)):
        return False
    if at in loop.tests and not wanted:  # a round has been made, with a condition that was known
        _want(translator, frame, loop, place, tested)
    predicate = as_bool_scalar(translator, stack.realized(translator.stack[-1]))
    jumps_if, keeps = jump_kind(translator.instructions[at].opname)
    if keeps:
        return False
    leads: Any = successors(translator.instructions)[at]
    enters = jumps_if if leads[1] == loop.head else not jumps_if
    stack_before = list(translator.stack)
    translator.stack.pop()
    if not enters:
        args = (predicate.as_proxy(),)
        predicate = stack.wrap_call(translator, "call_function", torch.logical_not, args, {})
    past = leads[0] if leads[1] == loop.head else leads[1]
    device = tensor_value(predicate.as_proxy().node).device  # type: ignore[union-attr]
    number = _exit_number(translator.instructions, loop, past)
    start = Start(
        loop, frame.new_id(), predicate, None, device, place, may_skip=True, skips_to=number
    )
    try:
        _capture(translator, frame, start, place)
    except Refusal:
        translator.stack = stack_before
        raise
    return True


def starts_at_head(translator: Any) -> bool:
    """At an instruction about to be traced: capture the loop that begins there, if it is to be."""
    frame = frame_of(translator.output)
    at = translator.instruction_pointer
    if frame is None or at is None:
        return False
    key = translator.f_code, at
    if why_kept(frame, _WANTED, key) is None or why_kept(frame, _REFUSED, key) is not None:
        return False
    place, device = frame.attempts.kept[_FOUND, key]
    loops = loops_of(translator.f_code, translator.instructions)
    loop = next(one for one in loops if one.head == at)
    items = None
    if loop.iterates:
        items = range_of_iterator(stack.realized(translator.stack[-1]))
        if items is None:
            _refuse(frame, key, Reason.LOOP, "the loop is over something else than a range")
        if items[1] == 0:
            return False
    start = Start(loop, frame.new_id(), None, items, device, place)
    _capture(translator, frame, start, place)
    return True


def heads_wanted(translator: Any) -> frozenset[int]:
    """Where loops begin that are to be captured in the code that a translator traces."""
    kept = Attempts(translator.output).kept  # asked of every frame, also of those of others
    marks = (key for rule, key in kept if rule == _WANTED)
    return frozenset(at for code, at in marks if code is translator.f_code)


def _capture(translator: Any, frame: Frame, start: Start, place: Place) -> None:
    key = translator.f_code, start.loop.head
    try:
        sites = capture_loop(translator, frame, start, place)
    except stack.RESTART_ERRORS:
        raise
    except Exception as error:  # noqa: BLE001  # our error costs speed, never the program
        why = refusal_after(error, "the loop", (place.file, place.line))
        _refuse(frame, key, why.code, why.text)
    for site in sites:
        site.speculation = _Attempt(frame, key, place)


class _Attempt:
    """Takes a captured loop back, as Dynamo's checkpoint takes back a branch."""

    def __init__(self, frame: Frame, key: Any, place: Place) -> None:
        self.frame, self.key, self.place = frame, key, place

    def fail_and_restart_analysis(self, _: bool) -> NoReturn:
        """Start the frame again without the loop."""
        kept = log.log_of(self.frame.compiler).kept.get(self.place.position)
        why = (Reason.LOOP, "the loop is kept")
        _refuse(self.frame, self.key, *((kept.reason_code, kept.reason) if kept else why))


def _refuse(frame: Frame, key: Any, code: Reason, text: str) -> NoReturn:
    restart_leaving(frame, {(_REFUSED, key): (code, text)})


def instead_of_keeping(
    translator: Any, frame: Frame, place: Place, tested: Any, why: Refusal, at: int
) -> Refusal:
    """The reason why a branch is kept, if the loop that it is in cannot be captured either.

    The frame starts again if that has not been tried.
    """
    for loop in loops_of(translator.f_code, translator.instructions):
        if not _is_about(translator, loop, at):
            continue
        key = translator.f_code, loop.head
        refused = why_kept(frame, _REFUSED, key)
        if refused is not None:
            told = why.code in (Reason.LOOP, Reason.UNTRACEABLE)
            return Refusal(*refused) if told else why
        if why_kept(frame, _WANTED, key) is None and tested is not None:
            _want(translator, frame, loop, place, tested)
        return why
    return why


def untried(
    translator: Any, frame: Frame, place: Place, tested: Any, at: int
) -> Callable[[], None] | None:
    """What starts the frame again to capture the loop around a branch; None if it was tried."""
    for loop in loops_of(translator.f_code, translator.instructions):
        if _is_about(translator, loop, at):
            key = translator.f_code, loop.head
            known = why_kept(frame, _WANTED, key) or why_kept(frame, _REFUSED, key)
            if known is None and tested is not None:
                return functools.partial(_want, translator, frame, loop, place, tested)
            return None
    return None


def note_long_loop(translator: Any, frame: Frame, place: Place, tested: Any) -> None:
    """Note what captures the loop around a branch, if it is not tried and has many rounds."""
    at = translator.instruction_pointer - 1
    fed = [found for found in map(range_of_iterator, translator.stack) if found is not None]
    if any(found[1] >= MOST_UNROLLED for found in fed):
        again = untried(translator, frame, place, tested, at)
        if again is not None:
            frame.long_loops[place.instruction] = again


def _is_about(translator: Any, loop: Loop, at: int) -> bool:
    """Whether a jump is in a loop, or leads to its head, that tensors end or a range feeds."""
    if _fills_what_is_below(translator, loop):
        return False
    if at in loop.members:
        fed = loop.iterates and any(map(range_of_iterator, translator.stack))
        return bool(loop.tests) or fed
    return guarded_loop(translator, at) == loop


def _want(translator: Any, frame: Frame, loop: Loop, place: Place, tested: Any) -> NoReturn:
    key = translator.f_code, loop.head
    held = tensor_value(tested if isinstance(tested, fx.Node) else tested.as_proxy().node)
    device = torch.device("cpu") if held is None else held.device
    frame.attempts.kept[_FOUND, key] = (place, device)
    text = "the loop is captured as a loop"
    restart_leaving(frame, {(_WANTED, key): (Reason.LOOP, text)})


def _fills_what_is_below(translator: Any, loop: Loop) -> bool:
    """Whether it is a comprehension's: what it fills is on the stack below the iterator."""
    body = (translator.instructions[i] for i in loop.members)
    return any(one.opname in _FILLS and one.arg >= 2 for one in body)


def guarded_loop(translator: Any, at: int) -> Loop | None:
    """The loop that a jump leads to the head of, or past."""
    return facts_of(_guards, translator.f_code, translator.instructions).get(at)


def _guards(instructions: Sequence[Any]) -> dict[int, Loop]:
    """The ``while`` loops, by the jumps that lead to their heads or past them."""
    loops = find_loops(instructions)
    found: dict[int, Loop] = {}
    leads = successors(instructions) if loops else []
    for at, (after, jump, _) in enumerate(leads):
        for loop in loops:
            if loop.iterates or loop.head not in (after, jump):
                continue
            other = after if jump == loop.head else jump
            if other is not None and _exit_number(instructions, loop, other):
                found.setdefault(at, loop)
    return found


def _exit_number(instructions: Sequence[Any], loop: Loop, index: int) -> int:
    """The number of the exit that an instruction leads to; 0 if it is none."""
    exits, _ = exits_of(instructions, loop)
    place = followed(instructions, index, 1)
    found = [number for number, one in enumerate(exits, 1) if one.index == place.index]
    return found[0] if found else 0


def _loop_left_at(translator: Any, at: int) -> Loop | None:
    """The innermost loop that a conditional jump may leave."""
    loops = loops_of(translator.f_code, translator.instructions)
    return next((loop for loop in loops if at in loop.tests), None)


def _exceeds(translator: Any, frame: Frame, loop: Loop) -> bool:
    """Whether a loop may make more rounds than are unrolled, as far as can be told."""
    if not loop.iterates:
        if _ended_by_one_test(translator, loop) or _ended_by_tensors(translator, frame, loop):
            return True
        rounds = frame.rounds_left.get((translator.f_code, loop.head))
        if rounds is None:
            rounds = rounds_left(translator, loop)
        return rounds is not None and rounds > MOST_UNROLLED
    for held in reversed(translator.stack):
        found = range_of_iterator(held)
        if found is not None:
            return found[1] >= MOST_UNROLLED
    return False


def _ended_by_one_test(translator: Any, loop: Loop) -> bool:
    """Whether one test alone may end a loop; ``continue`` makes Python write it twice."""
    return len(loop.tests) == 1 or len(_places(translator, loop)) == 1


def _ended_by_tensors(translator: Any, frame: Frame, loop: Loop) -> bool:
    """Whether each test that may end a loop has been met, and was on a tensor."""
    met = frame.tensor_tests.get((translator.f_code, loop.head), set())
    return _places(translator, loop) <= met


def _places(translator: Any, loop: Loop) -> set[Any]:
    """Where in the source the tests of a loop stand; their indices, if that is not known."""
    return {_place(translator, at) for at in loop.tests}


def _place(translator: Any, at: int) -> Any:
    place = translator.instructions[at].positions
    return at if place is None or place.col_offset is None else place


def note_known_test(translator: Any, frame: Frame) -> None:
    """At a jump on a known value: see how far a counter is from the bound that ends a loop."""
    at = translator.instruction_pointer - 1
    loop = _loop_left_at(translator, at) or guarded_loop(translator, at)
    if loop is None or at < 3:
        return
    node = stack.number_on_top(translator)
    if node is not None and is_choice(node):  # two arms have left different numbers
        chosen = next(one for one in reached([node], _sources) if NUMBER in one.meta)
        predicate: Any = chosen.args[0]
        again = untried(translator, frame, here(translator, "branch"), predicate, at)
        if again is not None:
            again()
    left, right, compare = translator.instructions[at - 3 : at]
    if compare.opname != "COMPARE_OP":
        return
    a, b = (_known(translator, one) for one in (left, right))
    if a is None or b is None:
        return
    key = translator.f_code, loop.head
    gap = abs(a - b)
    before = frame.gaps.get(key)
    if before is not None and before > gap:
        frame.rounds_left[key] = gap / (before - gap)
    frame.gaps[key] = gap


def _sources(node: fx.Node) -> list[fx.Node]:
    return [] if NUMBER in node.meta else node.all_input_nodes


def _known(translator: Any, load: Any) -> float | None:
    if load.opname == "LOAD_CONST":
        value = load.argval
    elif load.opname == "LOAD_FAST":
        value = stack.constant_of(translator.symbolic_locals.get(load.argval))[1]
    else:
        return None
    return value if type(value) in (int, float) else None
