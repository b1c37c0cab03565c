"""Where an instruction looks at a value that is one of two, by a predicate on a tensor.

Where the predicate is known, the value is known. An operation on known values is done for both. A
jump on such a value tests the predicate again. Any other instruction is traced once for each of the
two, and the results are joined right behind it, where the states agree again.

What cannot be captured there gives back the branch that left the value: the frame starts again, and
that branch is a graph break.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from fusepass.capture.branch.fork import fork, fork_operands
from fusepass.capture.branch.known_outcomes import outcomes, resolved, tested_now
from fusepass.capture.branch.phi_numbers import put_numbers
from fusepass.capture.branch.phi_truth import (
    Undecided,
    compared_with_none,
    fold,
    truth_of,
)
from fusepass.capture.branch.snapshot import Bindings, OpenBranch, restore_iterators
from fusepass.capture.bytecode.control_flow import region_of
from fusepass.capture.frame_state import BranchSite, Frame, Place, frame_of
from fusepass.capture.refusal import Refusal, refusal_after
from fusepass.capture.restarts import restart_without
from fusepass.capture.scalars.object_identity import differs, restart_knowing
from fusepass.capture.source_position import here
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.dynamo.containers import iterators_among
from fusepass.torch_private.dynamo.phi import PhiAsked, PhiHandlers, PhiVariable, is_phi
from fusepass.torch_private.dynamo.phi_calls import hands_on

_FOLDED = ("BINARY_OP", "COMPARE_OP", "CONTAINS_OP", "IS_OP", "TO_BOOL")
_MOST_AGAIN = 3  # times the straight line
_SLACK = 4096  # instructions
_MOST_INSIDE = 4  # forks of one instruction inside one another: two to that power of values
_FORK = 32  # instructions that are as much work as to trace both ways and join them
_MOST_OF_TENSORS = 32  # uses of two tensors that no select joins: each runs for both of them


def _on_step(translator: Any) -> None:
    """Bound the instructions that are traced a second time.

    Raises:
        Refusal: they are too many.
    """
    frame = frame_of(translator.output)
    if frame is None:
        return
    _spend(frame, 1)


def _spend(frame: Frame, work: int) -> None:
    frame.steps += work
    if frame.arms_of_uses:
        frame.steps_again += work
        straight = frame.steps - frame.steps_again
        if frame.steps_again > _MOST_AGAIN * straight + _SLACK:
            text = "what follows would be traced more than four times, once for each value"
            raise Refusal(Reason.PYTHON_VALUE, text)


def _on_asked(phi: PhiVariable, what: str) -> Any:
    translator = stack.current_translator()
    frame = None if translator is None else frame_of(translator.output)
    known = phi if frame is None else resolved(phi, outcomes(frame))
    if known is phi:
        if frame is not None and frame.in_message and what == "is_python_constant":
            return None  # its text is put together later
        raise PhiAsked(phi)
    return known


def _on_use(
    translator: Any, instruction: Any, places: list[int], original: Callable[[], None]
) -> None:
    frame = frame_of(translator.output)
    held = translator.stack
    if frame is None:
        return original()
    phis = _phi_places(translator, places)
    if phis:
        known = outcomes(frame)
        for place in phis:
            held[place] = resolved(held[place], known)
        phis = _phi_places(translator, phis)
    if frame.in_message:
        return _in_message(original)
    if phis and not hands_on(translator, instruction, phis):
        return _use(translator, instruction, frame, held[phis[0]], places, original)
    before = list(held), translator.instruction_pointer
    try:
        advanced = iterators_among([held[place] for place in places if -place <= len(held)])
    except ValueError:  # one cannot be copied: what advances it cannot be traced twice
        advanced = None
    try:
        return original()
    except PhiAsked as asked:
        phi = asked.phi
        if advanced is None:
            text = f"{phi.told}, and an iterator that cannot be put back asks about it"
            raise Refusal(Reason.PYTHON_VALUE, text) from None
        translator.stack, translator.instruction_pointer = before
        restore_iterators(advanced)
    return _use(translator, instruction, frame, phi, places, original)


def _phi_places(translator: Any, places: list[int]) -> list[int]:
    """Those places of the stack where a value is one of two."""
    held = translator.stack
    return [place for place in places if -place <= len(held) and is_phi(held[place])]


def _in_message(original: Callable[[], None]) -> None:
    """Trace on in a message, where a value that is one of two is chosen when the message is made.

    Raises:
        Refusal: more is asked about it than its text.
    """
    try:
        return original()
    except PhiAsked as asked:
        text = f"{asked.phi.told}, and a message looks at it"
        raise Refusal(Reason.PYTHON_VALUE, text) from None


def _use(
    translator: Any,
    instruction: Any,
    frame: Frame,
    phi: PhiVariable,
    places: list[int],
    original: Callable[[], None],
) -> None:
    """Trace an instruction that looks at a value that is one of two, or give the branch back."""
    place, held = here(translator, "branch"), list(translator.stack)
    try:
        if stack.is_generator_frame(translator):
            raise Refusal(Reason.GENERATOR, "it is used in a generator")
        name = instruction.opname
        if "JUMP" in name and "_IF_" in name and is_phi(translator.stack[-1]):
            return _jump(translator, instruction, frame, original)
        if (name in _FOLDED or name.startswith("UNARY_")) and fold(translator, original):
            return None
        if put_numbers(translator, frame, _phi_places(translator, places)):
            return original()
        return _fork(translator, frame, phi)
    except (*stack.RESTART_ERRORS, PhiAsked):
        raise
    except Exception as error:  # noqa: BLE001  # our error costs speed, never the program
        why = refusal_after(error, "an arm", (place.file, place.line))
        beside = [value for value in map(held.__getitem__, places) if not is_phi(value)]
        unknown = [value for value in beside if differs(frame, value)]
        if unknown:
            restart_knowing(frame, unknown, why.text)
        _keep(frame, phi, f"; it is used in line {place.line}: {why.text}")


def _jump(translator: Any, jump: Any, frame: Frame, original: Callable[[], None]) -> None:
    """Jump on the truth of a value that is one of two, or on whether it is None."""
    phi = translator.stack[-1]
    asked = compared_with_none if jump.opname.endswith("NONE") else truth_of
    try:
        truth = asked(translator, phi)
    except Undecided:
        return _fork(translator, frame, phi)
    if isinstance(truth, bool):
        none = jump.opname.endswith("NONE")
        known = (None if truth else 0) if none else truth
        if jump.opname.endswith("_OR_POP"):
            return _fork(translator, frame, phi)
        translator.stack[-1] = stack.constant(known)
        return original()
    translator.stack[-1] = truth
    place = _use_at(translator)
    frame.active.append(place.instruction)
    try:
        region = region_of(translator.f_code, translator.instructions)
        site = fork(translator, jump, region, frame, place, phi, origin_of(frame, phi))
    finally:
        frame.active.pop()
    _note(frame, site, place)
    return None


def _fork(translator: Any, frame: Frame, phi: PhiVariable) -> None:
    """Trace the instruction at hand with the values of either arm, and join behind it."""
    place = _use_at(translator)
    if frame.active.count(place.instruction) >= _MOST_INSIDE:
        raise Refusal(Reason.PYTHON_VALUE, "there it may be one of many values")
    index = translator.instruction_pointer - 1
    before = Bindings(translator)
    predicate = tested_now(frame, phi)
    site = frame.new_branch(origin_of(frame, phi))
    starts = {arm: (index, _stack(frame, translator, predicate, arm)) for arm in (True, False)}
    join = _join(translator, index)
    branch = OpenBranch(translator, frame, site, before, starts, predicate, join, place)
    with _counted(frame, place.instruction):
        _spend(frame, _FORK)
        made = fork_operands(branch)
    _note(frame, made, place)
    if stack.is_any_tensor(phi.taken) and stack.is_any_tensor(phi.other):
        _bound_tensors(frame, origin_of(frame, phi), made)


def _bound_tensors(frame: Frame, origin: int, made: BranchSite) -> None:
    """Bound what two tensors of one name cost, which a graph break would not: work, and waits.

    Raises:
        Refusal: they are used too often.
    """
    frame.tensor_uses[origin] += 1
    frame.tensor_waits[origin] += made.branch.treatment == "cond"
    if frame.tensor_waits[origin] > 1:
        raise Refusal(Reason.COST, "more than one host round trip would be needed to choose")
    if frame.tensor_uses[origin] > _MOST_OF_TENSORS:
        raise Refusal(Reason.COST, f"more than {_MOST_OF_TENSORS} operations would run for both")


def _use_at(translator: Any) -> Place:
    """The place of a use: the report has a line for the branch that left the value, not for it."""
    return dataclasses.replace(here(translator, "branch"), line=0)


def _join(translator: Any, index: int) -> int:
    """Where the states agree again: behind the instruction, or where its ways meet."""
    name = translator.instructions[index].opname
    if ("JUMP" in name and "_IF_" in name) or name == "FOR_ITER":
        region = region_of(translator.f_code, translator.instructions)
        return region.join_of(index)
    return index + 1


def _stack(frame: Frame, translator: Any, predicate: Any, arm: bool) -> list[Any]:
    known = outcomes(frame, [(predicate.as_proxy().node, arm)])
    return [resolved(value, known) for value in translator.stack]


@contextlib.contextmanager
def _counted(frame: Frame, key: tuple[Any, int]) -> Iterator[None]:
    frame.active.append(key)
    frame.arms_of_uses += 1
    try:
        yield
    finally:
        frame.active.pop()
        frame.arms_of_uses -= 1


def _note(frame: Frame, site: BranchSite, place: Any) -> None:
    site.place, site.asks = place, True
    frame.sites.append(site)


def origin_of(frame: Frame, phi: PhiVariable) -> int:
    """The branch of the program that left a value."""
    return frame.stands_for.get(phi.site, phi.site)


def _keep(frame: Frame, phi: PhiVariable, use: str) -> NoReturn:
    """Start the frame again without the branch that left a value."""
    origin = origin_of(frame, phi)
    why = Reason.PYTHON_VALUE, phi.told + use
    restart_without(frame, {origin: why})
    if frame.arms:
        raise Refusal(*why)
    stack.break_graph("Value that differs between arms", why[1])


PHIS = PhiHandlers(_on_asked, _on_step, _on_use)
