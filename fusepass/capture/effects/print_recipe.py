"""Build the recipe for the text of a call of print, of a logger or of ``warnings.warn``.

Calls with arguments that look at more than the values they are given (``exc_info``, another file)
are refused: they stay where they are.

A line that fails raises where the program has the call; later it would raise too late. So a line is
written at compile time with stand-ins for unknown values. A format that does not fit fails with any
number, so trying a few tells: zero, one, the largest, NaN. Dividing by a number that is not known
is refused without a trial.
"""

from __future__ import annotations

import functools
import io
import itertools
import logging
import operator
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import fx

from fusepass.capture.effects import listener_guard
from fusepass.capture.effects.listener_guard import Question
from fusepass.capture.nodes import emit
from fusepass.capture.nodes.value_recipe import (
    CallValue,
    Items,
    KnownValue,
    Recipe,
    ValueWriter,
    calls_in,
    evaluate,
)
from fusepass.capture.refusal import Refusal
from fusepass.graph.ops.op_names import tensor_value
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import print_calls
from fusepass.torch_private.dynamo.deferred_values import constant_or_class
from fusepass.torch_private.dynamo.errors.raising import exception_parts
from fusepass.torch_private.dynamo.errors.stop_reasons import error_in_short
from fusepass.torch_private.dynamo.stack import constant, realized
from fusepass.torch_private.fx.graphs import size_hint

_TRIALS = 6
_WHOLE = 4096  # elements: larger stand-ins are cut short
_DIVIDES = (operator.truediv, operator.floordiv, operator.mod)
_CONTAINERS = (tuple, dict, torch.Size)


@dataclass(frozen=True)
class Utterance:
    """One call that writes a line.

    Attributes:
        recipe: writes down the recipe of the line.
        listener: code of the program that hears the line and could look around, or None.
        questions: asked before later calls, too: whether somebody hears it, or it may not wait.
        wanted: says whether the line is written at all (asked once per call); None if it always is.
        frame: the frame of the program that makes the call, where it is not the innermost.
    """

    recipe: Callable[[ValueWriter], Recipe]
    listener: str | None
    questions: tuple[Question, ...]
    wanted: Callable[[], bool] | None = None
    frame: Any = None


def utterance(translator: Any, speaker: Any, args: list[Any], kwargs: dict[str, Any]) -> Utterance:
    """Describe what a call with these tracked arguments writes; refuse one that cannot wait."""
    kind = {"print": _print, "pprint": _pprint, "log": _log, "warn": _warn}[speaker.kind]
    return kind(translator, speaker, args, kwargs)


def _print(translator: Any, speaker: Any, args: list[Any], kwargs: dict[str, Any]) -> Utterance:
    stream = kwargs.pop("file", None)
    name: str | None = None
    if stream is not None:
        name = print_calls.standard_stream(translator, stream)
        if name is None and constant_or_class(stream) != (True, None):
            text = "it prints to a file other than sys.stdout and sys.stderr"
            raise Refusal(Reason.SIDE_EFFECT, text)
    given = kwargs | ({} if name is None else {"stream": constant(name)})
    return _printed(emit.emit_print, speaker.function, args, given, name or "stdout")


def _pprint(_: Any, speaker: Any, args: list[Any], kwargs: dict[str, Any]) -> Utterance:
    if len(args) != 1 or "stream" in kwargs:
        raise Refusal(Reason.SIDE_EFFECT, "it prints to a stream of its own")
    return _printed(emit.emit_pprint, speaker.function, args, kwargs, "stdout")


def _printed(
    emitted: Any, function: Any, args: list[Any], kwargs: dict[str, Any], stream: str
) -> Utterance:
    def recipe(writer: ValueWriter) -> Recipe:
        named = tuple((key, writer.value(value)) for key, value in kwargs.items())
        return CallValue(emitted, (KnownValue(function), *map(writer.value, args)), named)

    listener = functools.partial(listener_guard.stream_listener, stream)
    return Utterance(recipe, listener(), (listener,))


def _log(translator: Any, speaker: Any, args: list[Any], kwargs: dict[str, Any]) -> Utterance:
    logger, method = speaker.logger, speaker.method
    root = logger is None
    logger = logging.root if root else logger
    if type(logger) not in (logging.Logger, logging.RootLogger) or method in vars(logger):
        raise Refusal(Reason.SIDE_EFFECT, "the logger is of a class of its own")
    if not root and not print_calls.pin_logger(speaker.source):
        raise Refusal(Reason.UNTRACEABLE, "it is not known which logger it will be next time")
    if kwargs:
        _refuse_argument(kwargs)
    args = list(args)
    if method == "log":
        known, level = _constant(args.pop(0)) if args else (False, None)
    else:
        known, level = True, getattr(logging, {"fatal": "critical"}.get(method, method).upper())
    if not known or type(level) is not int or not args:
        raise Refusal(Reason.UNTRACEABLE, "the level or the message of a log record is not known")
    own = os.path.normcase(logging.__file__)
    frames = _stack(translator)
    calling = [each for each in frames if os.path.normcase(each[0].f_code.co_filename) != own]
    if not calling:
        raise Refusal(Reason.UNTRACEABLE, "the record is about a line outside the compiled code")
    frame, line = calling[0]
    place = (frame.f_code.co_filename, line, print_calls.function_name(frame.f_code))
    known_parts = (KnownValue(None if root else logger), KnownValue(level), KnownValue(place))

    def recipe(writer: ValueWriter) -> Recipe:
        return CallValue(emit.emit_log, (*known_parts, *map(writer.value, args)))

    wanted = functools.partial(_is_logged, None if root else logger, level)
    listener = functools.partial(listener_guard.logger_listener, logger)
    return Utterance(recipe, listener(), (listener,), wanted, frame)


def _is_logged(logger: logging.Logger | None, level: int) -> bool:
    if logger is not None:
        return logger.isEnabledFor(level)
    root = logging.root
    return not root.handlers or root.isEnabledFor(level)


def warning(translator: Any, text: str) -> Utterance:
    """Describe torch's UserWarning with this text about the line being traced."""
    return _warning(translator, 1, UserWarning, UserWarning, text, lambda _: KnownValue(text))


def _warning(
    translator: Any,
    level: object,
    kind: type[Warning],
    category: Any,
    text: Any,
    message: Callable[[ValueWriter], Recipe],
) -> Utterance:
    """Describe a warning about the frame of a stack level; refuse one that raises or cannot wait.

    The call gives ``category`` for the class ``kind``; ``text`` is that of the warning if it is
    known, and ``message`` writes the recipe of the warning or of its text.
    """
    frame, line = _at_level(translator, level)
    file, module = frame.f_code.co_filename, frame.f_globals
    name = module.get("__name__") or "<string>"
    known = text if isinstance(text, str) else None
    raises = functools.partial(listener_guard.would_raise, kind, known, name, line)
    if raises():
        raise Refusal(Reason.RAISES, "a filter turns the warning into an exception")
    parts = KnownValue(category), KnownValue((file, line)), KnownValue(module)
    listener = functools.partial(listener_guard.warnings_listener)
    return Utterance(
        lambda writer: CallValue(emit.emit_warning, (message(writer), *parts)),
        listener(),
        (raises, listener),
    )


_OF_WARN = ("message", "category", "stacklevel", "source")


def _warn(translator: Any, _: Any, args: list[Any], kwargs: dict[str, Any]) -> Utterance:
    given = dict(zip(_OF_WARN, args, strict=False)) | kwargs
    if not given.keys() <= set(_OF_WARN) or "message" not in given:
        _refuse_argument(given)
    values: dict[str, Any] = {"category": None, "stacklevel": 1, "source": None}
    for name in values.keys() & given.keys():
        known, values[name] = _constant(given[name])
        if not known:
            _refuse_argument({name: None})
    category, level = values["category"], values["stacklevel"]
    message = realized(given["message"])
    parts = exception_parts(message)
    kind = parts[0] if parts is not None else category or UserWarning
    if not (isinstance(kind, type) and issubclass(kind, Warning)) or values["source"] is not None:
        _refuse_argument({"category": None})
    text = _constant(message)[1] if parts is None else None
    write = ValueWriter.value if parts is None else ValueWriter.exception
    return _warning(translator, level, kind, category, text, lambda writer: write(writer, message))


def _at_level(translator: Any, level: object) -> tuple[Any, int]:
    """The frame and line that a warning of this stack level is about."""
    frames = _stack(translator)
    if type(level) is not int or level > len(frames):
        raise Refusal(Reason.UNTRACEABLE, "the warning is about a line outside the compiled code")
    level = max(level, 1)
    for inner, outer in itertools.pairwise(frames[:level]):
        called = outer[0].f_code.co_filename.replace("\\", "/")
        if inner[0].f_code.co_name == "forward" and not called.endswith("/nn/modules/module.py"):
            text = "the warning is about a line of torch that calls the module"
            raise Refusal(Reason.UNTRACEABLE, text)
    return frames[level - 1]


def _stack(translator: Any) -> list[tuple[Any, int]]:
    frames = list(print_calls.user_frames(translator))
    if not frames:
        raise Refusal(Reason.UNTRACEABLE, "no line of the program makes the call")
    return frames


def _constant(tracked: Any) -> tuple[bool, Any]:
    return constant_or_class(realized(tracked))


def _refuse_argument(given: dict[str, Any]) -> NoReturn:
    raise Refusal(Reason.SIDE_EFFECT, f"it is called with {', '.join(sorted(given))}=")


def check_sure(recipe: Recipe, nodes: Sequence[fx.Node]) -> None:
    """Refuse a line that may fail for some values of its operands."""
    for part in calls_in(recipe):
        if part.function in _DIVIDES and not isinstance(part.args[1], KnownValue):
            divided = part.args[0]
            if not isinstance(divided, KnownValue) or not isinstance(divided.value, str):
                raise Refusal(Reason.PARTIAL_OP, "it divides by a number that may be zero")
    trial = _without_effects(recipe)
    plain = (*_CONTAINERS, _try_print, _try_message)
    computes = any(part.function not in plain for part in calls_in(trial))
    for number in range(_TRIALS if computes else 1):
        try:
            values = [_stand_in(node, number) for node in nodes]
            with torch.no_grad():
                evaluate(trial, values)
        except Exception as error:  # noqa: BLE001 - whatever eager would raise
            text = f"writing it may fail ({error_in_short(error)})"
            raise Refusal(Reason.PARTIAL_OP, text.split("\n")[0]) from None


def _without_effects(recipe: Recipe) -> Recipe:
    """The recipe of all texts of a line, which writes nothing and calls nothing of the program."""
    if isinstance(recipe, Items):
        return Items(tuple(map(_without_effects, recipe.parts)))
    if not isinstance(recipe, CallValue):
        return recipe
    args = tuple(map(_without_effects, recipe.args))
    kwargs = tuple((name, _without_effects(value)) for name, value in recipe.kwargs)
    if recipe.function is emit.emit_print:
        return CallValue(_try_print, args, tuple(item for item in kwargs if item[0] != "stream"))
    if recipe.function is emit.emit_pprint:
        return CallValue(_try_pprint, args, kwargs)
    if recipe.function is emit.emit_log:
        return CallValue(_try_message, args[3:])
    if recipe.function is emit.emit_warning:
        return Items(args[:1])
    if isinstance(recipe.function, type) and issubclass(recipe.function, BaseException):
        return Items(args)
    return CallValue(recipe.function, args, kwargs)


def _try_print(function: Any, *values: Any, **options: Any) -> None:
    function(*values, **options, file=io.StringIO())


def _try_pprint(function: Any, value: Any, **options: Any) -> None:
    function(value, **options, stream=io.StringIO())


def _try_message(message: Any, *values: Any) -> str:
    """As ``LogRecord.getMessage``."""
    given: Any = values
    if len(values) == 1 and isinstance(values[0], dict) and values[0]:
        given = values[0]
    return str(message) % given if values else str(message)


def _stand_in(node: fx.Node, trial: int) -> Any:
    value = tensor_value(node)
    if value is None:
        held = node.meta.get("example_value")
        kind = getattr(getattr(held, "node", None), "pytype", type(held))
        return _fill({bool: torch.bool, int: torch.int64}.get(kind, torch.float64), trial)
    sizes = [size_hint(size) for size in value.shape]
    known = [2 if size is None else size for size in sizes]
    if torch.Size(known).numel() > _WHOLE:
        known = [min(size, 2) for size in known]
    return torch.full(known, _fill(value.dtype, trial), dtype=value.dtype, device="cpu")


def _fill(dtype: torch.dtype, trial: int) -> Any:
    if dtype is torch.bool:
        return trial % 2 == 0
    if dtype.is_floating_point:
        return (0.0, 1.0, -1.0, float("nan"), float("inf"), torch.finfo(dtype).max)[trial]
    if dtype.is_complex:
        return (0j, 1j, -1 + 0j, complex("nan"), complex("inf"), 1e30j)[trial]
    limits = torch.iinfo(dtype)
    return (0, 1, max(-1, limits.min), limits.max, limits.min, 2)[trial]
