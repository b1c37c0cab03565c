"""Hook errors that end a trace, and errors that Dynamo raises for the program.

The table in docs/design/exceptions.md says what becomes of which error. Run on 2.11 to 2.15.
"""

from __future__ import annotations

import functools
import inspect
import operator
import os
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import fx
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy
from torch._dynamo import exc, resume_execution, utils
from torch._dynamo.exc import SkipFrame
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.symbolic_convert import InstructionTranslator, InstructionTranslatorBase
from torch._dynamo.variables import builder
from torch.fx.experimental import symbolic_shapes

from fusepass.torch_private.dynamo.calls import subgraph_of
from fusepass.torch_private.dynamo.compile_state import is_dynamos_file
from fusepass.torch_private.dynamo.errors.raising import frames_outwards
from fusepass.torch_private.dynamo.frame_end import line_of
from fusepass.torch_private.dynamo.print_calls import function_name
from fusepass.torch_private.dynamo.scalars.unbacked_sizes import gives_unknown_sizes
from fusepass.torch_private.dynamo.stack import (
    RESTART_ERRORS,
    break_graph,
    current_translator,
    wrap_call,
)
from fusepass.torch_private.patches import Patches, Theirs

_PACKAGE = str(Path(__file__).parents[3]) + os.sep
_ORIGIN = "fusepass_origin"
_OUR_CALLS = (wrap_call.__code__,)


def hook_errors(
    patches: Patches,
    on_error: Callable[[Any, Exception], None],
    on_skip: Callable[[Any, Exception], None],
    on_fault: Callable[[Any, Exception], None],
) -> None:
    """Call the handlers for what ends the trace of a frame.

    Args:
        patches: take the hook out again.
        on_error: called as ``(translator, exception)`` when an error of the traced code, or of
            torch about it, is about to end the trace of a frame; may raise instead.
        on_skip: called in the same way when Dynamo is about to give a frame up.
        on_fault: called in the same way when an error inside Dynamo or a backend is.
    """

    def with_error(theirs: Theirs, self: Any) -> None:
        try:
            theirs(self)
        except RESTART_ERRORS:
            raise
        except (exc.Unsupported, exc.SkipFrame) as error:
            on_skip(self, error)
            raise
        except Exception as error:
            (on_error if isinstance(error, users_errors()) else on_fault)(self, error)
            raise

    patches.put(InstructionTranslator, "run", with_error)


def fails_on_fakes(error: BaseException) -> bool:
    """Whether a call of the program fails on fake tensors, and neither torch nor fusepass fails.

    Dynamo reports a RuntimeError of such a call as what it is, and lets an IndexError through.
    Where an unknown number cuts a piece from an empty tensor, Dynamo has no name for the size of
    the piece, and fails.
    """
    if gives_unknown_sizes(error):
        return True
    codes = _codes(error)
    if utils.run_node.__code__ not in codes:
        return False
    run = codes.index(utils.run_node.__code__)
    steps = [i for i, code in enumerate(codes[:run]) if code.co_name == "step"]
    called = codes[steps[-1] if steps else 0 : run]  # by the program's line
    if any(code in called for code in _OUR_CALLS):
        return False
    return not any(code.co_filename.startswith(_PACKAGE) for code in codes[run:])


def call_of_ours_fails(error: BaseException) -> bool:
    """Whether a call that fusepass itself traced fails, on fake tensors."""
    codes = _codes(error)
    return isinstance(error, exc.TorchRuntimeError) and any(code in codes for code in _OUR_CALLS)


def _codes(error: BaseException) -> list[types.CodeType]:
    return [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]


def suspends(code: types.CodeType) -> bool:
    """Whether code is that of a coroutine or generator."""
    flags = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    return bool(code.co_flags & (flags | inspect.CO_ITERABLE_COROUTINE))


def cannot_resume(translator: Any, error: BaseException) -> bool:
    """Whether a frame fails because its graph breaks, and it is a coroutine or generator.

    Dynamo has no code that goes on behind a graph break there, and says so by an AssertionError.
    """
    at = [code.co_filename for code in _codes(error)][-1:]
    fails = isinstance(error, AssertionError) and at == [resume_execution.__file__]
    return fails and suspends(translator.f_code)


def hook_observed(patches: Patches, on_observed: Callable[[Any, Exception], None]) -> None:
    """Call the handler where Dynamo finds that the program raises.

    Args:
        patches: take the hook out again.
        on_observed: called as ``(translator, error)`` where an instruction other than a ``raise``
            raises, before the program's own handlers are looked for.
    """
    ends = (exc.ObservedUserStopIteration, exc.ObservedGeneratorExit)

    def with_observed(theirs: Theirs, self: Any, raised: Any) -> None:
        if not isinstance(raised, ends):
            held = _current_exception(self)
            if held is not None and _ORIGIN not in vars(held):
                setattr(held, _ORIGIN, [*map(_place, frames_outwards(self))])
            stated = self.current_instruction.opname in ("RAISE_VARARGS", "RERAISE")
            if not stated or is_dynamos_file(self.f_code.co_filename):
                on_observed(self, raised)
        theirs(self, raised)

    patches.put(InstructionTranslatorBase, "exception_handler", with_observed)


def _place(frame: Any) -> tuple[str, int, str]:
    line = line_of(frame, frame.current_instruction)
    return frame.f_code.co_filename, line, function_name(frame.f_code)


def _current_exception(translator: Any) -> Any:
    return translator.exn_vt_stack._current_exception  # how it is asked for depends on the version


def raised_at(translator: Any) -> list[tuple[str, int, str]]:
    """The lines that raised what leaves a frame: file, line and function, innermost first.

    It may have passed functions that raise it again: a ``finally``, a with-block.
    """
    held = _current_exception(translator)
    return vars(held).get(_ORIGIN, []) if held is not None else []


def hook_failing_calls(patches: Patches, may_break: Callable[[Any], bool]) -> None:
    """Break the graph where a call fails on fake tensors, in place of an error of Dynamo's.

    Run on the tensors themselves the call raises what eager raises, behind what stands in front of
    it, and the program's own handlers see it.

    Args:
        patches: take the hooks out again.
        may_break: called with the translator; says whether the graph may break there.
    """

    def this_time(break_there: Callable[[], NoReturn]) -> NoReturn:
        """Break the graph; where Dynamo cannot, run the frame as it is, but only this time."""
        try:
            break_there()
        except exc.Unsupported as error:
            again = _FrameExecStrategy(_FrameAction.DEFAULT, _FrameAction.DEFAULT)
            error.frame_exec_strategy = again
            raise

    def with_text(text: str) -> Callable[[], NoReturn]:
        what = "RuntimeError when making fake tensor call"
        return functools.partial(break_graph, what, text)

    def failing(theirs: Theirs, break_there: Callable[[], NoReturn]) -> None:
        if _breaks(may_break):
            this_time(break_there)
        theirs(break_there)

    def running(theirs: Theirs, call: Callable[[], Any]) -> Any:
        try:
            return theirs(call)
        except IndexError as error:  # which torch lets through from 2.13 on, past all handlers
            if not _breaks(may_break):
                raise
            text = str(error)
        this_time(with_text(text))

    def made(theirs: Theirs, self: Any, *args: Any, **kwargs: Any) -> None:
        theirs(self, *args, **kwargs)
        if _breaks(may_break):
            this_time(with_text(str(self)))

    patches.put(utils, "_wrap_graph_break_with_torch_runtime_err", failing)
    patches.put(utils, "wrap_fake_exception", running)
    if hasattr(exc, "FakeTensorObservedException"):  # of 2.15: not of eager's type
        patches.put(exc.FakeTensorObservedException, "__init__", made)


def _breaks(may_break: Callable[[Any], bool]) -> bool:
    """Whether what is traced now is no whole graph, and may break where it stands."""
    translator = current_translator()
    whole = translator is None or translator.one_graph or translator.error_on_graph_break
    if whole or _calls_ours() or _is_higher_order(translator):
        return False
    return may_break(translator)


def _calls_ours() -> bool:
    """Whether the call that is traced now is one of fusepass, in front of the program's next."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != "step":
        if frame.f_code in _OUR_CALLS:
            return True
        frame = frame.f_back
    return False


def _is_higher_order(translator: Any) -> bool:
    """Whether the last call is ``torch.cond`` or the like, which eager mode traces as well.

    Torch 2.15 has taken it out of the graph again, but for the functions it is given.
    """
    last = next(iter(reversed(translator.output.graph.nodes)), None)
    if last is None or subgraph_of(translator, last) is not None:
        return last is not None
    return isinstance(last.target, torch._ops.HigherOrderOperator)


def is_inductors(error: BaseException) -> bool:
    """Whether Inductor failed on a graph, or found no compiler for its code."""
    from torch._inductor.exc import InductorError

    return isinstance(error, InductorError)


@functools.cache
def users_errors() -> tuple[type[Exception], ...]:
    """The errors that torch raises because of a mark or a setting of the user.

    Capture can cause one only by making more of the program one frame.
    """
    from torch.fx.experimental import symbolic_shapes, validator

    names = (
        *("TorchRuntimeError", "UserError", "UncapturedHigherOrderOpError"),
        *("FailOnRecompileLimitHit", "RecompileError", "PackageError"),
        *("InvalidBackend", "ResetRequired", "UnsafeScriptObjectError"),
    )
    return (
        symbolic_shapes.ConstraintViolationError,
        symbolic_shapes.GuardOnDataDependentSymNode,
        validator.ValidationException,
        validator.BisectValidationException,
        *(getattr(exc, name) for name in names if hasattr(exc, name)),
    )


def violated(output_graph: Any) -> Exception | None:
    """The error that torch will raise where a frame holds for fewer sizes than the user marked.

    Torch asks when the frame is traced and compiled, and there is no way back from there.
    """
    shapes = output_graph.shape_env
    tracked = shapes.tracked_fakes or []
    contexts = [one.symbolic_context for one in tracked]
    if not any(map(_is_marked, contexts)):
        return None
    try:
        shapes.produce_guards(
            [one.fake for one in tracked],
            [one.source for one in tracked],
            input_contexts=contexts,
        )
    except symbolic_shapes.ConstraintViolationError as error:
        return error
    return None


def _is_marked(context: Any) -> bool:
    sizes = getattr(context, "constraint_sizes", None) or ()
    strides = getattr(context, "constraint_strides", None) or ()
    number = getattr(context, "constraint", None)
    inner = (getattr(context, "inner_contexts", None) or {}).values()
    marks = (*sizes, *strides, number)
    strict = (mark is not None and not getattr(mark, "warn_only", False) for mark in marks)
    return any(strict) or any(map(_is_marked, inner))


_WITHOUT_RESULT = (operator.setitem,)
_MAY_BREAK = ("autograd.Function", "tag_activation_checkpoint")


def hook_recorded(patches: Patches, on_recorded: Callable[[Any, fx.Node], None]) -> None:
    """Call the handler with each call that was recorded, its fake result known.

    Args:
        patches: take the hook out again.
        on_recorded: called as ``(translator, node)``, with the translator of the innermost function
            being traced; may break the graph.
    """

    def wrapped(
        theirs: Theirs, target_cls: Any, tx: Any, proxy: Any, *args: Any, **kwargs: Any
    ) -> Any:
        made = theirs(target_cls, tx, proxy, *args, **kwargs)
        if proxy.node.op.startswith("call_"):
            on_recorded(tx.output.current_tx, proxy.node)
        return made

    def created(theirs: Theirs, self: Any, *args: Any, **kwargs: Any) -> Any:
        proxy = theirs(self, *args, **kwargs)
        if proxy.node.op == "call_function" and proxy.node.target in _WITHOUT_RESULT:
            on_recorded(self.current_tx, proxy.node)
        return proxy

    patches.put(builder, "_wrap_fx_proxy", wrapped)
    patches.put(OutputGraph, "create_proxy", created)


def break_or_skip(translator: Any, what: str, why: str, hints: list[str]) -> NoReturn:
    """Break the graph at the instruction being traced, or run the frame in eager.

    In the body of ``torch.cond`` and its kin that is an error, and in coroutines and generators
    nothing goes on behind a break; the frame runs in eager then.
    """
    if not (translator.one_graph or translator.error_on_graph_break or _may_break(translator)):
        raise SkipFrame(f"{what}: {why}")
    break_graph(what, why, hints)


def goes_on(translator: Any) -> bool:
    """Whether Dynamo can go on behind a graph break here; else the rest of it stays in eager."""
    return bool(translator.should_compile_partial_graph())


def _may_break(translator: Any) -> bool:
    """Whether no operator is being traced that has to be in one graph, and the frame goes on."""
    if suspends(translator.output.root_tx.f_code):
        return False
    tracer = translator.output.current_tracer
    while tracer is not None:
        if tracer.source_target is not None and str(tracer.source_target) not in _MAY_BREAK:
            return False
        tracer = tracer.parent
    return True
