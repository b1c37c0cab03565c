"""Recognise calls of ``print``, of loggers and of ``warnings.warn``. Run on torch 2.11 to 2.15.

It says which logger a call has and whether it is enabled. A program may replace ``print``, so that
one of several processes writes, or ``warnings.warn``. Such a replacement is code with effects of
its own, so these functions are compared with Python's originals.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import logging
import pprint
import re
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch._dynamo import utils, variables
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource, GlobalSource
from torch._dynamo.variables.misc import LoggingLoggerVariable, NullVariable

from fusepass.torch_private.dynamo.compile_state import is_internal_file
from fusepass.torch_private.dynamo.containers import hook_rows
from fusepass.torch_private.dynamo.errors.raising import frames_outwards
from fusepass.torch_private.dynamo.frame_end import line_of
from fusepass.torch_private.dynamo.stack import is_unused, realized, unused_object
from fusepass.torch_private.patches import Patches, Theirs

SpeechHandler = Callable[[Any, "Speaker", list[Any], dict[str, Any], Callable[[], Any]], Any]

LOADS = "LOAD_ATTR LOAD_DEREF LOAD_FAST LOAD_GLOBAL LOAD_METHOD LOAD_NAME PUSH_NULL".split()
_FUNCTIONS: Any = (
    variables.BuiltinVariable,
    variables.SkipFunctionVariable,
    variables.UserFunctionVariable,
)
_STREAM = ("write", "writelines")
_RESUMED = re.compile(r"^torch_dynamo_resume_in_(.*)_at_\d+$")


@dataclass(frozen=True)
class Speaker:
    """A function that is called to write a line.

    Attributes:
        kind: ``print``, ``pprint``, ``log`` or ``warn``; ``logger`` for ``logging.getLogger`` and
            ``enabled`` for the method ``isEnabledFor``, which write nothing; ``text`` for functions
            that make a text of a value; ``stream`` for a method of ``sys.stdout`` or ``sys.stderr``
            that writes.
        logger: of the method; None for the functions of the module ``logging``.
        method: for ``log``, ``pprint`` and ``stream``, the name of the method or function.
        source: where the program got the logger from, None if Dynamo does not know.
        function: what is called, where it is a function.
    """

    kind: str
    logger: logging.Logger | None = None
    method: str = ""
    source: Any = None
    function: Any = None


def hook_speech(patches: Patches, on_speech: SpeechHandler) -> None:
    """Put a handler in front of print, the methods of loggers and ``warnings.warn``.

    Args:
        patches: take the hooks out again.
        on_speech: called as ``(translator, speaker, args, kwargs, call)`` with tracked arguments,
            which it may leave unrealized; must return a tracked value or ``call()``.
    """
    places: list[tuple[Any, str, Callable[..., Speaker | None]]] = [
        *((kind, "call_function", _of_function) for kind in _FUNCTIONS),
        (LoggingLoggerVariable, "call_method", _of_method),
        (variables.UserDefinedObjectVariable, "call_method", _of_stream),
        (variables.UserMethodVariable, "call_function", _of_bound),
    ]

    def call(speaker_of_call: Any, theirs: Theirs, self: Any, tx: Any, *given: Any) -> Any:
        speaker = speaker_of_call(self, *given[:-2])
        if speaker is None:
            return theirs(self, tx, *given)
        args, kwargs = list(given[-2]), dict(given[-1])
        return on_speech(tx, speaker, args, kwargs, lambda: theirs(self, tx, *given))

    hook_rows(patches)  # whose texts are of other functions than Dynamo records
    for kind, name, speaker in places:
        patches.put(kind, name, functools.partial(call, speaker))


def _of_function(called: Any) -> Speaker | None:
    """The speaker behind a tracked function; this is asked at every call."""
    function = getattr(called, "fn", None)
    return _of_object(getattr(called, "value", None) if function is None else function)


def _of_object(function: Any) -> Speaker | None:
    # Others may be compared and hashed by code of the program.
    found = OWN.get(function) if type(function) in (*FUNCTIONS, type) else None
    if found is None:
        return None
    kind, name = found
    return Speaker(kind, method=name if kind in ("pprint", "log") else "", function=function)


def _of_bound(called: Any) -> Speaker | None:
    """A method written in Python; the object is under another name on torch 2.15."""
    name = getattr(getattr(called, "fn", None), "__name__", "")
    if name not in _STREAM:
        return None
    return _of_stream(realized(getattr(called, "obj", None) or called.im_self), name)


def _of_stream(called: Any, name: str) -> Speaker | None:
    stream = getattr(called, "value", None) if name in _STREAM else None
    for standard in ("stdout", "stderr") if stream is not None else ():
        if stream is getattr(sys, standard):
            return Speaker("stream", method=f"sys.{standard}.{name}")
    return None


def _of_method(called: Any, name: str) -> Speaker | None:
    if name == "isEnabledFor":
        return Speaker("enabled", called.value, name, called.source)
    if name not in METHODS or not is_own_method(name):
        return None
    return Speaker("log", called.value, name, called.source)


def speaker_on_top(translator: Any) -> int | None:
    """The height of the stack below a speaker that was just loaded to be called, or None.

    What is called has an empty slot beside it: below it up to Python 3.12, above it later.
    """
    pair = translator.stack[-2:]
    if len(pair) < 2 or getattr(translator, "is_tracing_resume_prologue", False):
        return None
    slot, called = pair if sys.version_info < (3, 13) else reversed(pair)
    # Dynamo's isinstance() would look into a value that is not looked into yet, and guard it.
    if type(slot) is not NullVariable or not _speaks(called):
        return None
    return len(translator.stack) - 2


def _speaks(value: Any) -> bool:
    if is_unused(value):
        return _writes(_of_object(unused_object(value)))
    value = realized(value)
    if isinstance(value, _FUNCTIONS):
        return _writes(_of_function(value))
    owner = getattr(value, "obj", None)  # of a method not yet called
    name = getattr(value, "name", None)
    return isinstance(realized(owner), LoggingLoggerVariable) and name in METHODS


def _writes(speaker: Speaker | None) -> bool:
    return speaker is not None and speaker.kind in ("print", "pprint", "log", "warn")


def standard_stream(translator: Any, tracked: Any) -> str | None:
    """``"stdout"`` or ``"stderr"`` for what the program got as ``sys.stdout`` or ``sys.stderr``.

    The tracked value is not realized: that would guard on the very stream.
    """
    source = getattr(tracked, "source", None)
    name, base = getattr(source, "member", None), getattr(source, "base", None)
    module = translator.output.global_scope.get(getattr(base, "global_name", None))
    return str(name) if name in ("stdout", "stderr") and module is sys else None


def user_frames(translator: Any) -> Iterator[tuple[Any, int]]:
    """``(translator, line)`` of the frames of the program, innermost first."""
    for frame in frames_outwards(translator):
        if not is_internal_file(frame.f_code.co_filename):
            yield frame, line_of(frame, frame.current_instruction)


def function_name(code: Any) -> str:
    """The name the program gave a function, also of what Dynamo resumes it with."""
    return written_name(code.co_name)


def written_name(name: str) -> str:
    """The name the program gave a function, from the name of its code."""
    return _RESUMED.sub(r"\1", name)


FUNCTIONS = (types.BuiltinFunctionType, types.FunctionType)


def own_function(module: types.ModuleType, name: str) -> Any:
    """The function a module has under a name, if it is the module's own; None otherwise.

    Asked while fusepass is imported: somebody may have replaced the function before that.
    """
    found = getattr(module, name, None)
    if not isinstance(found, FUNCTIONS) or found.__name__ != name:
        return None
    if isinstance(found, types.FunctionType):
        maker = found.__globals__.get("__name__")
    else:
        maker = found.__module__
    of = module.__name__
    return found if maker in (of, f"_{of}", f"_py_{of}") else None


def _own_functions() -> dict[Any, tuple[str, str]]:
    kinds = [
        (builtins, "print", "print"),
        *((builtins, name, "text") for name in ("repr", "ascii")),
        *((pprint, name, "pprint") for name in ("pprint", "pp")),
        (warnings, "warn", "warn"),
        (logging, "getLogger", "logger"),
        *((logging, name, "log") for name in sorted(METHODS)),
    ]
    found = [(own_function(module, name), kind, name) for module, name, kind in kinds]
    known = {function: (kind, name) for function, kind, name in found if function is not None}
    return {**known, str: ("text", "str")}


METHODS = frozenset("debug info warning error critical fatal log".split())
OWN = _own_functions()
PRINT = own_function(builtins, "print")
_OF_LOGGER = {name: vars(logging.Logger).get(name) for name in (*METHODS, "_log")}


def is_own_method(name: str) -> bool:
    """Whether a method of ``logging.Logger`` that makes records is still the one of its module."""
    now = vars(logging.Logger)
    methods = [(now.get(each), _OF_LOGGER[each]) for each in (name, "_log")]
    return all(
        there is original and getattr(there, "__globals__", None) is vars(logging)
        for there, original in methods
    )


def known_logger(translator: Any, logger: logging.Logger) -> Any:
    """The tracked value of a logger that the program got while it was traced."""
    name = translator.output.install_global_by_id("fusepass_logger", logger)
    return LoggingLoggerVariable(logger, source=GlobalSource(name))


def pin_logger(source: Any) -> bool:
    """Guard on the logger from a source being the one traced; says whether that could be done."""
    if source is None:
        return False
    install_guard(source.make_guard(GuardBuilder.ID_MATCH))
    return True


def pin_level(logger: logging.Logger, source: Any) -> bool:
    """Guard on all that decides for which levels a logger is enabled; says whether it could."""
    if not pin_logger(source):
        return False
    asked = [AttrSource(source, "disabled"), AttrSource(AttrSource(source, "manager"), "disable")]
    current: logging.Logger | None = logger
    while current is not None:
        asked.append(AttrSource(source, "level"))
        if current.level:
            break
        current, source = current.parent, AttrSource(source, "parent")
    install_guard(*(each.make_guard(GuardBuilder.EQUALS_MATCH) for each in asked))
    return True


@contextlib.contextmanager
def failures_unlogged() -> Iterator[None]:
    """Leave out what torch says about code that is only tried: no error of the program.

    It logs a traceback where an operation fails on fake tensors, and warns of functions that Dynamo
    cannot trace. Other threads' failures are logged.
    """
    here = threading.get_ident()

    def is_shown(record: logging.LogRecord) -> bool:
        return record.thread != here or record.levelno < logging.ERROR

    logger = logging.getLogger("torch._subclasses.fake_tensor")
    with Patches() as patches:
        logger.addFilter(is_shown)
        patches.callback(logger.removeFilter, is_shown)
        patches.set(utils, "warn_once", lambda *_, **__: None)
        yield
