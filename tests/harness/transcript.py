"""What a program says while it runs: text, log records and warnings, in one order.

The order between them is what a caller sees on a terminal, so all of them go into one list.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TextIO

from fusepass.errors import FusepassWarning

_COMPILER = ("torch", "fusepass")  # loggers of theirs tell of compiling, which eager does not do
_RESUMED = re.compile(r"^torch_dynamo_resume_in_(\w+)_at_\d+$")  # Dynamo's name behind a break
_TRACED = "Call using an FX-traced Module"  # torch.fx writes so of an error that a graph raises
_NATIVE = "(Triggered internally at "  # ends warnings of torch's own, which compiled code may drop


@dataclass(frozen=True)
class Said:
    """One thing that was said.

    Attributes:
        kind: ``stdout``, ``stderr``, ``log`` or ``warning``.
        text: what was written, the formatted message, or the warning's text.
        label: name and level of a log record, its function, the number of its arguments, the type
            and text of its exception; category of a warning; "" for text.
        file: source file that a record or a warning names.
        line: line there; 0 for text.
    """

    kind: str
    text: str
    label: str = ""
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        place = f" ({self.label} at {self.file}:{self.line})" if self.label else ""
        return f"{self.kind} {self.text!r}{place}"


@dataclass
class Transcript:
    """Everything said so far, oldest first; text written in pieces is one piece.

    Attributes:
        said: what the program said.
        faults: warnings of fusepass's own.
    """

    said: list[Said] = field(default_factory=list)
    faults: list[Warning] = field(default_factory=list)

    def add(self, one: Said) -> None:
        """Take one more."""
        last = self.said[-1] if self.said else None
        if last is not None and one.kind == last.kind and one.kind.startswith("std"):
            self.said[-1] = Said(one.kind, last.text + one.text)
        elif one.text or not one.kind.startswith("std"):
            self.said.append(one)


@contextlib.contextmanager
def recorded(warned: str = "always") -> Iterator[Transcript]:
    """Record instead of showing; ``warned`` is an action of :func:`warnings.simplefilter`.

    Warnings and log records of compilers are left out, and so are the warnings that torch itself
    raises in C++. Each scope starts as if nothing had been warned of before.
    """
    transcript = Transcript()
    handler = _Records(transcript)
    disabled, logging.root.manager.disable = logging.root.manager.disable, 0
    logging.root.addHandler(handler)
    streams = _stream(transcript, "stdout"), _stream(transcript, "stderr")
    try:
        with (
            contextlib.redirect_stdout(streams[0]),
            contextlib.redirect_stderr(streams[1]),
            warnings.catch_warnings(),
            _compiler_logs_off(),
        ):
            warnings.simplefilter(warned)  # type: ignore[arg-type]
            warnings.onceregistry.clear()  # type: ignore[attr-defined]
            warnings.showwarning = _shows(transcript)
            yield transcript
    finally:
        logging.root.removeHandler(handler)
        logging.root.manager.disable = disabled


def _stream(transcript: Transcript, kind: str) -> io.TextIOWrapper:
    """A text stream of Python's own class, as programs have, whose writes go to the transcript."""
    buffer: Any = _Bytes(transcript, kind)
    return io.TextIOWrapper(buffer, "utf-8", "surrogatepass", newline="", write_through=True)


class _Bytes(io.RawIOBase):
    """What a text stream writes to."""

    def __init__(self, transcript: Transcript, kind: str) -> None:
        super().__init__()
        self._transcript, self._kind = transcript, kind
        self._left_out = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        text = bytes(data).decode("utf-8", "surrogatepass")
        ends = self._left_out and text == "\n"  # print writes the end of a line by itself
        self._left_out = _TRACED in text
        if not ends and not self._left_out:
            self._transcript.add(Said(self._kind, text))
        return len(data)


class _Records(logging.Handler):
    """Log records become part of the transcript."""

    def __init__(self, transcript: Transcript) -> None:
        super().__init__()
        self._transcript = transcript

    def emit(self, record: logging.LogRecord) -> None:
        if _is_compilers(record.name):
            return
        function = _RESUMED.sub(r"\1", record.funcName)
        count = len(record.args or ())
        label = f"{record.name} {record.levelname} in {function} with {count} arguments"
        if record.exc_info and record.exc_info[0]:
            label += f", {record.exc_info[0].__name__}: {record.exc_info[1]}"
        said = Said("log", record.getMessage(), label, record.pathname, record.lineno)
        self._transcript.add(said)


def _shows(transcript: Transcript) -> Any:
    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if isinstance(message, FusepassWarning):
            transcript.faults.append(message)
        module = category.__module__.split(".")[0]
        torch = sys.modules.get("torch")
        in_torch = torch is not None and filename.startswith(torch.__path__[0])
        if module in _COMPILER or _NATIVE in str(message) or in_torch:
            return
        said = Said("warning", str(message), category.__name__, filename, lineno)
        transcript.add(said)

    return show


def _is_compilers(logger: str) -> bool:
    return logger.partition(".")[0] in _COMPILER


@contextlib.contextmanager
def _compiler_logs_off() -> Iterator[None]:
    """Handlers of torch's loggers write to the terminal that was there when torch was imported."""
    loggers = logging.root.manager.loggerDict.items()
    every = [getattr(logger, "handlers", ()) for name, logger in loggers if _is_compilers(name)]
    # Without a stream is a handler that leaves on its first record, unless it is to write a file.
    found = (handler for handlers in every for handler in handlers)
    handlers = {h: h.level for h in found if getattr(h, "stream", None) is not None}
    for handler in handlers:
        handler.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for handler, level in handlers.items():
            handler.setLevel(level)
