"""Handle Dynamo's hooks: conditional jumps, complete graphs, logged graph breaks.

For a branch that cannot stay captured its checkpoint is marked failed (restarts.py): Dynamo starts
the frame again, and meets an ordinary graph break there. Inside a function being inlined Dynamo
does that by itself when the ordinary break is raised; inside an outer arm the refusal goes to the
outermost branch.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import fx

from fusepass.capture import error_recovery, fake_dtypes, graph_breaks, hidden_tests
from fusepass.capture.autograd import select_identity
from fusepass.capture.branch import any_of_tensors, phi_uses, raise_arm
from fusepass.capture.branch.any_of_tensors import joins_before_yield
from fusepass.capture.branch.fork import fork
from fusepass.capture.branch.nesting import check_nesting
from fusepass.capture.bytecode import own_handlers, try_blocks
from fusepass.capture.bytecode.control_flow import region_of
from fusepass.capture.effects import changed_state, print_hooks
from fusepass.capture.frame_state import (
    Frame,
    Place,
    any_frame_of,
    frame_of,
    in_arm,
    is_frozen,
    is_ours,
    recognise,
)
from fusepass.capture.graph_checks import settle_graph
from fusepass.capture.loop import policy
from fusepass.capture.loop.indexing import on_subscript
from fusepass.capture.masks import mask_hooks
from fusepass.capture.mutation.saved_by_arms import FAILS
from fusepass.capture.refusal import ArmStops, Refusal, refusal_after
from fusepass.capture.restarts import (
    keep_branch,
    restart_reading,
    restart_without,
    restart_without_saving,
    settle,
    why_settled,
)
from fusepass.capture.scalars import item_hooks, object_identity
from fusepass.capture.scalars.deferred_items import asked_numbers
from fusepass.capture.skipped_frames import warn_of_skipped
from fusepass.capture.source_position import here
from fusepass.errors import UnsupportedVersion
from fusepass.report import log
from fusepass.report.decision import Reason, in_short
from fusepass.torch_private.dynamo import (
    any_calls,
    calls,
    class_attributes,
    deques,
    dict_order,
    eager_frames,
    entry_numbers,
    globals_written,
    guards,
    hooks,
    identity,
    late_counts,
    open_containers,
    open_writes,
    phi,
    print_calls,
    saved_tensors,
    side_effects,
)
from fusepass.torch_private.dynamo.errors import error_hooks
from fusepass.torch_private.dynamo.scalars import scalar_quirks, unbacked_scalars, unbacked_sizes
from fusepass.torch_private.dynamo.stack import (
    RESTART_ERRORS,
    UNSUPPORTED_ERRORS,
    break_reason,
    is_generator_frame,
    node_of,
    plain_asserts,
    tensor_on_top,
)
from fusepass.torch_private.inductor import freezing
from fusepass.torch_private.patches import Patches
from fusepass.torch_private.versions import capture_supported, version_text

_INNER = "a branch in an arm is kept"
# A jump met again this often inside its own arms is a loop, not a branch.
_MAX_NESTED = policy.MOST_UNROLLED
_MAX_REPEATS = 96  # of one jump inside its own arms, however they are nested
_install_lock = threading.Lock()
_uninstall: Callable[[], None] | None = None


def install(backend: Callable[..., Any]) -> None:
    """Put capture in front of Dynamo, once per process.

    It acts on frames that are compiled for fusepass and passes every other on untouched. On a torch
    in which it cannot be put there, it stays off, with a warning.
    """
    recognise(backend)
    global _uninstall  # noqa: PLW0603  # one patch per process, guarded by the lock
    with _install_lock:
        if _uninstall is not None:
            return
        try:
            _uninstall = _put_hooks(capture=True)
        except Exception as error:  # noqa: BLE001 - the rest of fusepass works without
            problem = UnsupportedVersion(*version_text(), in_short(error))
            warnings.warn(problem, stacklevel=2)
            with contextlib.suppress(Exception):  # a report, at least
                _uninstall = _put_hooks(capture=False)


def _put_hooks(*, capture: bool) -> Callable[[], None]:
    """Put our handlers in front of Dynamo's; returns the function that takes them out again.

    Args:
        capture: also those of branches and round trips; else only those that reports and frozen
            weights need.

    Raises:
        Exception: Dynamo has nothing of the name that a hook is put in front of, as a version that
            nobody has tried may; then no hook is left behind.
    """
    with Patches() as patches:  # one may stand in front of another's
        if capture:
            _put_capture_hooks(patches)
        hooks.hook_graphs(patches, settle_graph)
        hooks.hook_breaks(patches, _on_break)
        if capture:
            error_hooks.hook_errors(
                patches, error_recovery.on_error, _on_skip, error_recovery.on_fault
            )
            error_hooks.hook_observed(patches, error_recovery.on_observed)
            error_hooks.hook_failing_calls(patches, error_recovery.on_failing_call)
            for hook in (
                saved_tensors.hook_saving,
                guards.hook_descriptors,
                guards.hook_duplicates,
                scalar_quirks.hook_tensorified,
                scalar_quirks.hook_keys,
                side_effects.hook_classes,
                eager_frames.hook_comprehensions,
            ):
                hook(patches, is_ours)
            eager_frames.hook_frames(patches, own_handlers.on_frame)
        freezing.hook_freezing(patches, is_frozen)
        return patches.pop_all().close


def _put_capture_hooks(patches: Patches) -> None:
    hooks.hook_instructions(
        patches,
        on_truth=item_hooks.on_truth,
        on_not=item_hooks.on_not,
        on_jump=_on_jump,
        on_identity=_on_identity,
        on_raise=_on_raise,
        on_import=_on_import,
        on_speaker=print_hooks.on_speaker,
        on_subscript=on_subscript,
    )
    phi.hook_phis(patches, phi_uses.PHIS)
    hooks.hook_steps(patches, policy.heads_wanted, policy.starts_at_head)
    hooks.hook_items(patches, item_hooks.on_item, item_hooks.on_list)
    entry_numbers.hook_numbers_of_inputs(patches)
    unbacked_scalars.hook_numbers(patches, item_hooks.NUMBERS)
    identity.hook_identity(patches, object_identity.IDENTITY)
    calls.hook_calls(patches, hidden_tests.on_call)
    any_calls.hook_any(patches, any_of_tensors.on_any)
    calls.hook_questions(patches, select_identity.on_identity_query)
    print_calls.hook_speech(patches, print_hooks.on_speech)
    unbacked_sizes.hook_sizes(patches, mask_hooks.on_size)
    late_counts.hook_counts(patches, in_arm)
    deques.hook_deques(patches, is_ours)
    dict_order.hook_order(patches, is_ours)
    globals_written.hook_globals(patches, is_ours)
    class_attributes.hook_class_attributes(patches, is_ours)
    open_writes.hook_writes(patches, is_ours, changed_state.on_read)
    open_containers.hook_containers(patches, is_ours, changed_state.on_asked)
    error_hooks.hook_recorded(patches, _on_recorded)


def _on_recorded(translator: Any, node: fx.Node) -> None:
    fake_dtypes.on_recorded(translator, node)
    try_blocks.on_recorded(translator, node)


def uninstall() -> None:
    """Take capture out again (for tests)."""
    global _uninstall  # noqa: PLW0603  # as above
    with _install_lock:
        if _uninstall is not None:
            _uninstall()
            _uninstall = None


@functools.cache
def _supported() -> bool:
    if capture_supported():
        return True
    warnings.warn(UnsupportedVersion(*version_text()), stacklevel=2)
    return False


def _on_jump(translator: Any, jump: Any, original: Callable[[Any, Any], None]) -> None:
    frame = frame_of(translator.output)
    if frame is None:
        return original(translator, jump)
    tested = tensor_on_top(translator)
    if tested is None and not item_hooks.tests_a_number(translator, frame):
        object_identity.on_test(frame, translator.stack[-1])
        policy.note_known_test(translator, frame)
        return original(translator, jump)
    place = here(translator, "branch")
    key = place.instruction
    early = _early_refusal(translator, frame, place)
    if early is not None:
        return _break(translator, jump, original, frame, place, early, None)
    speculation = translator.speculate()
    if speculation.failed(translator):
        for site in frame.tests_before(key):
            frame.sites.remove(site)
        return _jump_as_dynamo(translator, jump, original, frame, place)
    read = () if tested is not None else item_hooks.items_tested(translator, frame)
    frame.active.append(key)
    at = translator.instruction_pointer - 1
    number = None
    try:
        if tested is None:
            number = item_hooks.put_predicate(translator)
            tested = translator.stack[-1]
        if policy.starts_at_jump(translator, frame, place, tested):
            return None
        _bound_work(frame, key)
        check_nesting(translator, frame)
        policy.note_long_loop(translator, frame, place, tested)
        region = region_of(translator.f_code, translator.instructions)
        site = fork(translator, jump, region, frame, place, number)
    except RESTART_ERRORS:
        raise
    except Exception as error:  # noqa: BLE001  # our error costs speed, never the program
        why = refusal_after(error, "an arm", (place.file, place.line))
        why = policy.instead_of_keeping(translator, frame, place, tested, why, at)
        return _break(translator, jump, original, frame, place, why, speculation, read)
    finally:
        frame.active.pop()
    site.speculation, site.place = speculation, place
    site.instead = policy.untried(translator, frame, place, tested, at)
    site.items = (*site.items, *read)
    frame.sites.append(site)
    return None


def _bound_work(frame: Frame, key: tuple[Any, int]) -> None:
    """A branch met inside its own arm is one of a loop: deep for each round, or wide.

    With ``if a: (if b: return …) …`` in a loop, two ways lead from each round to the next, and what
    follows is traced for both.

    Raises:
        Refusal: too often.
    """
    nested = frame.active.count(key) - 1
    frame.repeats[key] += bool(nested)
    if nested >= _MAX_NESTED or frame.repeats[key] > _MAX_REPEATS:
        text = "the branch is met again and again inside its own arm: a loop on a tensor"
        raise Refusal(Reason.LOOP, text)


def _on_identity(translator: Any, compared: Callable[[], list[Any]]) -> None:
    """``a is b`` where an arm may have handed ``a`` on unchanged: a selection cannot tell."""
    frame = frame_of(translator.output)
    if frame is None or not frame.sites:
        return
    nodes = [node_of(value) for value in compared()]
    made = {node.args[0] for node in nodes if node is not None and node.args}
    if not made:  # nearly always: this is asked at every call
        return
    text = "the result is compared by identity, and an arm may hand on a tensor unchanged"
    sites = [s.branch.site for s in frame.sites if s.select is not None and s.select in made]
    restart_without(frame, dict.fromkeys(sites, (Reason.ALIAS, text)))


def _early_refusal(translator: Any, frame: Frame, place: Place) -> Refusal | None:
    if not _supported():
        return Refusal(
            Reason.UNSUPPORTED_VERSION, "branch capture is off on this torch or Python version"
        )
    if frame.options.treatment == "keep" or not frame.options.rule_on("branch"):
        return Refusal(Reason.FORCED, "options ask to keep branches as graph breaks")
    if is_generator_frame(translator) and not joins_before_yield(translator, frame):
        return Refusal(Reason.GENERATOR, "the branch is in a generator")
    if frame.in_message:
        return Refusal(Reason.RAISES, "the message of an exception depends on a branch")
    text = why_settled(frame, place) if torch.is_grad_enabled() else None
    return None if text is None else Refusal(Reason.SIDE_EFFECT, text)


def _break(
    translator: Any,
    jump: Any,
    original: Callable[[Any, Any], None],
    frame: Frame,
    place: Place,
    refusal: Refusal,
    speculation: Any,
    read: tuple[fx.Node, ...] = (),
) -> None:
    """Take the ordinary graph break, now or after a restart, and put the reason on record."""
    why = refusal.code, refusal.text
    keep_branch(frame, place, why)
    if refusal.saved_in:  # it is met again in a function of its own, which does not show what for
        settle(frame, place, refusal.text)
    if frame.arms:
        raise Refusal(refusal.code, _reason_of_inner(place, refusal.text), refusal.saved_in)
    restart_without_saving(frame, dict.fromkeys(refusal.saved_in, _SAVED))
    restart_reading(frame, read, place, why)
    if speculation is not None and translator.should_compile_partial_graph():
        speculation.reason = break_reason(refusal.text, translator)
        speculation.fail_and_restart_analysis(translator.error_on_graph_break)
    _jump_as_dynamo(translator, jump, original, frame, place)


_SAVED = (Reason.SIDE_EFFECT, f"an arm may save a tensor that a later branch writes: {FAILS}")


def _reason_of_inner(inner: Place, text: str) -> str:
    """The reason of a branch around one that is kept."""
    told = f"{_INNER}, {Path(inner.file).name}:{inner.line}: {text}"
    return text if text.startswith(_INNER) else told


def _jump_as_dynamo(
    translator: Any, jump: Any, original: Callable[[Any, Any], None], frame: Frame, place: Place
) -> None:
    """Jump as Dynamo does; where it may not break the graph, its error says why we did not help."""
    why = log.log_of(frame.compiler).kept.get(place.position)
    item_hooks.put_number_of_inputs(translator, frame, place)
    try:
        with plain_asserts():
            original(translator, jump)
    except UNSUPPORTED_ERRORS as error:
        if why is not None and frame.arms:
            raise ArmStops(why.reason_code, _reason_of_inner(place, why.reason)) from error
        if why is not None:
            told = f"{why.file}:{why.line} kept ({why.reason_code}): {why.reason}"
            error.add_note(f"fusepass: branch at {told}.")
        raise


def _on_break(translator: Any, reason: str, error: Any) -> None:
    frame = any_frame_of(translator.output)
    if frame is not None:
        if error is not None and not frame.plain:
            object_identity.on_asked(frame, error)
            restart_without(frame, asked_numbers(translator, frame, error))
            restart_without(frame, mask_hooks.asked_selections(translator, frame, error))
        graph_breaks.decide(translator, frame, reason, error)


def _on_raise(translator: Any, instruction: Any) -> None:
    raise_arm.on_raise(translator, frame_of(translator.output), instruction)


def _on_import(translator: Any, name: str) -> None:
    """A module is loaded once, and may do anything then: not for an arm that is not taken."""
    frame = frame_of(translator.output)
    if frame is not None and (frame.arms or frame.in_message):
        raise Refusal(Reason.SIDE_EFFECT, f"an arm imports {name}, which is not loaded yet")


_SKIPS = {
    "graph break in loop": (Reason.LOOP, "a graph break in a loop"),
    try_blocks.WHAT: (Reason.PARTIAL_OP, "an operation whose error is handled"),
}


def _on_skip(translator: Any, error: Exception) -> None:
    """Dynamo gives a frame up at a graph break in a loop, which may be due to a size not known."""
    frame = frame_of(translator.output)
    if frame is not None and frame.selections:
        code, what = _SKIPS.get(
            getattr(error, "gb_type", ""), (Reason.UNTRACEABLE, "a graph break")
        )
        why = code, f"{what} follows, at {graph_breaks.ends_at(translator, error)}"
        restart_without(frame, dict.fromkeys(frame.selections.values(), why))
    frame = any_frame_of(translator.output)
    if frame is not None:
        warn_of_skipped(translator, frame, error)
