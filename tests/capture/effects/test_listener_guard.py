"""Filters, streams and handlers that a program changes between calls count in the next one."""

# ruff: noqa: T201 - the programs print

from __future__ import annotations

import functools
import logging
import sys
import timeit
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fusepass
from fusepass.capture.effects.listener_guard import ListenerCheck
from fusepass.testing.compare import assert_same

from ..support.written import assert_late
from .test_listeners import Looks

logger = logging.getLogger("fusepass_tests.hearing")
EAGER = {"codegen": "eager"}


@pytest.fixture(autouse=True)
def _own_filters() -> Iterator[None]:
    with warnings.catch_warnings():
        yield


def warns(x: Tensor) -> Tensor:
    warnings.warn(f"sum {x.sum().item()}", stacklevel=1)
    x.add_(1)
    return x * 2


def catches(x: Tensor) -> Tensor:
    try:
        warnings.warn(f"sum {x.sum().item()}", stacklevel=1)
    except UserWarning:
        return x * 0
    return x * 2


def warns_twice(x: Tensor) -> Tensor:
    warnings.warn("first", DeprecationWarning, stacklevel=1)
    x.add_(1)
    warnings.warn(f"second {x.sum()}", stacklevel=1)
    return x.add_(1)


def outcome(target: Callable[..., Any], *args: Any) -> Any:
    try:
        return target(*args), args
    except Warning as warning:
        return type(warning), str(warning), args


@pytest.mark.parametrize("program", [warns, catches, warns_twice])
@pytest.mark.parametrize("codegen", ["eager", "inductor"])
def test_a_filter_that_comes_later_raises_on_time(
    program: Callable[[Tensor], Tensor], codegen: str
) -> None:
    compiled = torch.compile(program, backend="fusepass", options={"codegen": codegen})
    filters: list[tuple[Any, ...]] = [
        ("ignore",),
        ("error",),
        ("ignore",),
        ("error", UserWarning),
        ("error", DeprecationWarning),
        ("ignore",),
    ]
    for one in filters:
        warnings.resetwarnings()
        warnings.simplefilter(*one)
        expected = outcome(program, torch.ones(2))
        found = outcome(compiled, torch.ones(2))
        assert str(found) == str(expected), one


def test_filters_that_change_no_answer_compile_nothing_anew() -> None:
    compiled = torch.compile(warns, backend="fusepass", options=EAGER)
    warnings.resetwarnings()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for action in ("ignore", "ignore", "once"):
            warnings.simplefilter(action)
            compiled(torch.ones(2))
        warnings.filterwarnings("error", category=ImportWarning)
        warnings.filterwarnings("ignore", "sum")
        compiled(torch.ones(2))
    assert_late(compiled, 1)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        print("call", x.sum())
        logger.warning("call %s", x.sum())
        return x * 2


class Notes(logging.Handler):
    """A handler that does."""

    def __init__(self, at: Callable[[], Any]) -> None:
        super().__init__()
        self.at, self.seen = at, []  # type: ignore[var-annotated]

    def emit(self, record: logging.LogRecord) -> None:
        """Note what there is to see."""
        self.seen.append((record.getMessage(), self.at()))


def test_a_stream_that_comes_later_sees_what_eager_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for compile_it in (False, True):
        model = Counts()
        target = torch.compile(model, backend="fusepass", options=EAGER) if compile_it else model
        target(torch.ones(2))
        stream = Looks(lambda model=model: model.calls)
        with monkeypatch.context() as changed:
            changed.setattr(sys, "stdout", stream)
            target(torch.ones(2))
        target(torch.ones(2))
        seen.append(stream.seen)
    assert seen[0] == seen[1]
    assert ("call", 2) in seen[0]


def test_a_handler_that_comes_later_sees_what_eager_shows() -> None:
    seen = []
    for compile_it in (False, True):
        model = Counts()
        target = torch.compile(model, backend="fusepass", options=EAGER) if compile_it else model
        target(torch.ones(2))
        handler = Notes(lambda model=model: model.calls)
        logger.addHandler(handler)
        target(torch.ones(2))
        logger.removeHandler(handler)
        target(torch.ones(2))
        seen.append(handler.seen)
    assert seen[0] == seen[1] == [("call tensor(2.)", 2)]


def test_why_it_is_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def prints(x: Tensor) -> Tensor:
        print(x.sum())
        return x * 2

    compiled = torch.compile(prints, backend="fusepass", options=EAGER)
    compiled(torch.ones(2))
    with monkeypatch.context() as changed, torch._dynamo.config.patch(error_on_recompile=True):
        changed.setattr(sys, "stdout", Looks(lambda: None))
        with pytest.raises(torch._dynamo.exc.RecompileError) as raised:
            compiled(torch.ones(2))
    said = "0/0: what it prints, logs and warns of is heard as when it was compiled"
    assert str(raised.value).endswith(said)


def test_a_frame_without_lines_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(ListenerCheck, "holds", lambda _: asked.append(1) or True)

    def silent(x: Tensor) -> Tensor:
        return x * 2

    def prints(x: Tensor) -> Tensor:
        print(x.shape)
        return x * 2

    for program, count in ((silent, 0), (prints, 1)):
        compiled = torch.compile(program, backend="fusepass", options=EAGER)
        compiled(torch.ones(2))
        asked.clear()
        assert_same(compiled(torch.ones(2)), torch.full((2,), 2.0), "result")
        assert len(asked) == count
        assert not fusepass.last_report(compiled).graph_breaks


def test_asking_takes_about_a_microsecond() -> None:
    hearing = ListenerCheck()
    hearing.add(functools.partial(bool))
    best = min(timeit.repeat(hearing.holds, number=1000, repeat=20)) / 1000
    assert best < 5e-6  # 0.13 µs on a quiet host
