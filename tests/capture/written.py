"""Run a program in eager and compiled and compare what it writes: text, log records, warnings."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import fusepass
from fusepass.testing.compare import assert_same, tensors

_ONCE = "Converting a tensor with requires_grad=True"  # torch says so once in a process


@dataclass
class Written:
    """What one call wrote, and how it ended."""

    out: str = ""
    err: str = ""
    records: list[tuple[Any, ...]] = field(default_factory=list)
    warned: list[tuple[Any, ...]] = field(default_factory=list)
    error: tuple[type[BaseException], str] | None = None
    result: Any = None
    args: tuple[Any, ...] = ()
    grads: list[Any] = field(default_factory=list)

    def text(self) -> tuple[Any, ...]:
        """All but the values."""
        return self.out, self.err, self.records, self.warned, self.error


class Records(logging.Handler):
    """A handler that notes what a record says and where it is from."""

    def __init__(self, into: list[tuple[Any, ...]]) -> None:
        super().__init__()
        self.into = into

    def emit(self, record: logging.LogRecord) -> None:
        """Note one record."""
        where = (record.pathname, record.lineno, record.funcName)
        parts = (record.name, record.levelno, record.getMessage(), len(record.args or ()))
        self.into.append((*where, *parts))


@contextlib.contextmanager
def _records(names: Sequence[str], into: list[tuple[Any, ...]]) -> Iterator[None]:
    with contextlib.ExitStack() as undo:
        for logger in map(logging.getLogger, names):
            handler = Records(into)
            logger.addHandler(handler)
            undo.callback(logger.removeHandler, handler)
        yield


def written(target: Callable[..., Any], args: tuple[Any, ...], loggers: Sequence[str]) -> Written:
    """Call and note; gradients are those of the sum of what is returned."""
    seen = Written(args=args)
    out, err = io.StringIO(), io.StringIO()
    torch.manual_seed(0)
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        _records(loggers, seen.records),
        warnings.catch_warnings(record=True) as warned,
    ):
        warnings.simplefilter("always")
        try:
            seen.result = target(*args)
        except Exception as error:  # noqa: BLE001 - whatever the program raises
            seen.error = (type(error), str(error))
    seen.out = out.getvalue()
    seen.err = re.sub(r"^W\d{4} .*\n", "", err.getvalue(), flags=re.MULTILINE)  # torch's own log
    own = (w for w in warned if _ONCE not in str(w.message) and "/torch/" not in w.filename)
    seen.warned = [(w.category, str(w.message), w.filename, w.lineno) for w in own]
    outputs = [t for t in tensors(seen.result) if t.requires_grad and t.is_floating_point()]
    leaves = [t for t in args if isinstance(t, torch.Tensor) and t.requires_grad and t.is_leaf]
    if outputs and leaves:
        total = sum(output.double().sum() for output in outputs)
        seen.grads = list(torch.autograd.grad(total, leaves, allow_unused=True))
    return seen


def treatments(compiled: Any) -> list[tuple[str, str]]:
    """Treatment and reason of each call that writes a line."""
    decisions = fusepass.last_report(compiled).decisions
    return [(d.treatment, d.reason_code.value) for d in decisions if d.rule == "print"]


def assert_same_text(
    program: Callable[..., Any],
    *inputs: Callable[[], tuple[Any, ...]],
    loggers: Sequence[str] = (),
    options: dict[str, Any] | None = None,
    times: int = 2,
    **kwargs: Any,
) -> Any:
    """Hold a compiled program against eager, twice for each input; returns it."""
    given = {"codegen": "eager"} | (options or {})
    compiled = torch.compile(program, backend="fusepass", options=given, **kwargs)
    for make in inputs:
        for _ in range(times):
            eager = written(program, make(), loggers)
            ours = written(compiled, make(), loggers)
            assert ours.text() == eager.text()
            assert_same(eager.result, ours.result, "result")
            assert_same(eager.args, ours.args, "inputs after the call")
            assert_same(eager.grads, ours.grads, "gradients")
    return compiled


def assert_late(compiled: Any, count: int | None = None, *, graphs: int = 1) -> None:
    """One graph, no break, every call of print and the like deferred."""
    report = fusepass.last_report(compiled)
    assert not report.graph_breaks, report.graph_breaks
    found = treatments(compiled)
    assert {one for one, _ in found} == {"late"}, found
    assert len(report.operations) == graphs
    if count is not None:
        assert len(found) == count


def assert_kept(compiled: Any, reason: str) -> None:
    """Some call is kept for this reason."""
    assert ("keep", reason) in treatments(compiled), treatments(compiled)
