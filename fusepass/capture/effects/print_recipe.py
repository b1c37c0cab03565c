"""Build the recipe for the text of a call of print, of a logger or of ``warnings.warn``.

Calls with arguments that look at more than the values they are given (``exc_info``, another file)
are refused: they stay where they are.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from fusepass.capture.effects import listener_guard
from fusepass.capture.effects.listener_guard import Question
from fusepass.capture.nodes import emit
from fusepass.capture.nodes.print_node import always
from fusepass.capture.nodes.value_recipe import CallValue, KnownValue, Recipe, ValueWriter
from fusepass.capture.refusal import Refusal
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.deferred_values import constant_or_class
from fusepass.torch_private.dynamo.errors.raising import exception_parts
from fusepass.torch_private.dynamo.print_calls import (
    function_name,
    pin_logger,
    standard_stream,
    user_frames,
)
from fusepass.torch_private.dynamo.stack import constant, realized


@dataclass(frozen=True)
class Utterance:
    """One call that writes a line.

    Attributes:
        recipe: writes down the recipe of the line.
        listener: code of the program that hears the line and could look around, or None.
        questions: whether somebody hears it, or it may not wait, asked again in later calls.
        wanted: whether the line is written at all (asked once per call).
        frame: the frame of the program that makes the call, where it is not the innermost.
    """

    recipe: Callable[[ValueWriter], Recipe]
    listener: str | None
    questions: tuple[Question, ...]
    wanted: Callable[[], bool] = always
    frame: Any = None


def utterance(translator: Any, speaker: Any, args: list[Any], kwargs: dict[str, Any]) -> Utterance:
    """What a call writes.

    Args:
        translator: Dynamo's translator, at the call.
        speaker: what is called.
        args: tracked arguments.
        kwargs: tracked arguments.

    Raises:
        Refusal: it cannot be written later as it would be now.
    """
    kind = {"print": _print, "pprint": _pprint, "log": _log, "warn": _warn}[speaker.kind]
    return kind(translator, speaker, args, kwargs)


def _print(translator: Any, speaker: Any, args: list[Any], kwargs: dict[str, Any]) -> Utterance:
    stream = kwargs.pop("file", None)
    name: str | None = None
    if stream is not None:
        name = standard_stream(translator, stream)
        if name is None and constant_or_class(stream) != (True, None):
            text = "it prints to a file other than sys.stdout and sys.stderr"
            raise Refusal(Reason.SIDE_EFFECT, text)
    given = kwargs | ({} if name is None else {"stream": constant(name)})

    def recipe(writer: ValueWriter) -> Recipe:
        named = tuple((key, writer.value(value)) for key, value in given.items())
        parts = (KnownValue(speaker.function), *map(writer.value, args))
        return CallValue(emit.emit_print, parts, named)

    listener = functools.partial(listener_guard.stream_listener, name or "stdout")
    return Utterance(recipe, listener(), (listener,))


def _pprint(_: Any, speaker: Any, args: list[Any], kwargs: dict[str, Any]) -> Utterance:
    if len(args) != 1 or "stream" in kwargs:
        raise Refusal(Reason.SIDE_EFFECT, "it prints to a stream of its own")

    def recipe(writer: ValueWriter) -> Recipe:
        named = tuple((key, writer.value(value)) for key, value in kwargs.items())
        parts = (KnownValue(speaker.function), writer.value(args[0]))
        return CallValue(emit.emit_pprint, parts, named)

    listener = functools.partial(listener_guard.stream_listener, "stdout")
    return Utterance(recipe, listener(), (listener,))


def _log(translator: Any, speaker: Any, args: list[Any], kwargs: dict[str, Any]) -> Utterance:
    logger, method = speaker.logger, speaker.method
    root = logger is None
    logger = logging.root if root else logger
    if type(logger) not in (logging.Logger, logging.RootLogger) or method in vars(logger):
        raise Refusal(Reason.SIDE_EFFECT, "the logger is of a class of its own")
    if not root and not pin_logger(speaker.source):
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
    calling = [each for each in _stack(translator) if not _is_of_logging(each[0].f_code)]
    if not calling:
        raise Refusal(Reason.UNTRACEABLE, "the record is about a line outside the compiled code")
    frame, line = calling[0]
    place = (frame.f_code.co_filename, line, function_name(frame.f_code))
    known_parts = (KnownValue(None if root else logger), KnownValue(level), KnownValue(place))

    def recipe(writer: ValueWriter) -> Recipe:
        return CallValue(emit.emit_log, (*known_parts, *map(writer.value, args)))

    wanted = functools.partial(_is_logged, None if root else logger, level)
    listener = functools.partial(listener_guard.logger_listener, logger)
    return Utterance(recipe, listener(), (listener,), wanted, frame)


def _is_of_logging(code: Any) -> bool:
    return bool(os.path.normcase(code.co_filename) == os.path.normcase(logging.__file__))


def _is_logged(logger: logging.Logger | None, level: int) -> bool:
    if logger is not None:
        return logger.isEnabledFor(level)
    root = logging.root
    return not root.handlers or root.isEnabledFor(level)


def warning(translator: Any, text: str) -> Utterance:
    """What torch writes when it warns of the line being traced, a UserWarning.

    Args:
        translator: Dynamo's translator, at the call.
        text: of the warning.

    Raises:
        Refusal: it cannot be written later as it would be now.
    """
    frame, line = _at_level(translator, 1)
    file, module = frame.f_code.co_filename, frame.f_globals
    questions = _about_warning(UserWarning, text, module, line)
    parts = (
        KnownValue(text),
        KnownValue(UserWarning),
        KnownValue((file, line)),
        KnownValue(module),
    )
    return Utterance(
        lambda _: CallValue(emit.emit_warning, parts), listener_guard.warnings_listener(), questions
    )


def _about_warning(
    kind: type[Warning], text: Any, module: dict[str, Any], line: int
) -> tuple[Question, ...]:
    """What must stay as it is for a warning to be shown, and after the graph.

    Raises:
        Refusal: it is not shown but raised.
    """
    name = module.get("__name__") or "<string>"
    known = text if isinstance(text, str) else None
    raises = functools.partial(listener_guard.would_raise, kind, known, name, line)
    if raises():
        raise Refusal(Reason.RAISES, "a filter turns the warning into an exception")
    return raises, listener_guard.warnings_listener


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
    frame, line = _at_level(translator, level)
    text = _constant(message)[1] if parts is None else None
    file, module = frame.f_code.co_filename, frame.f_globals
    questions = _about_warning(kind, text, module, line)

    def recipe(writer: ValueWriter) -> Recipe:
        said = writer.exception(message) if parts is not None else writer.value(message)
        return CallValue(
            emit.emit_warning,
            (said, KnownValue(category), KnownValue((file, line)), KnownValue(module)),
        )

    return Utterance(recipe, listener_guard.warnings_listener(), questions)


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
    frames = list(user_frames(translator))
    if not frames:
        raise Refusal(Reason.UNTRACEABLE, "no line of the program makes the call")
    return frames


def _constant(tracked: Any) -> tuple[bool, Any]:
    return constant_or_class(realized(tracked))


def _refuse_argument(given: dict[str, Any]) -> NoReturn:
    raise Refusal(Reason.SIDE_EFFECT, f"it is called with {', '.join(sorted(given))}=")
