"""Compiling candidates in threads: who is called there, and what becomes of failures."""

from __future__ import annotations

import contextlib
import threading
from contextvars import ContextVar
from typing import Any

import pytest
import torch

from fusepass.torch_private.inductor import lowering
from fusepass.tune import decide
from fusepass.tune.problems.base import Candidate
from fusepass.tune.timing import compile_in_parallel

SEEN: ContextVar[str] = ContextVar("SEEN", default="nothing")


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())


def called(count: int, failing: int | None = None) -> list[tuple[str, str, bool]]:
    """Name, context and whether gradients were recorded, of each call outside this thread."""
    calls: list[tuple[str, str, bool]] = []

    def candidate(number: int, compiles: bool) -> Candidate:
        def run(x: torch.Tensor) -> Any:
            assert threading.current_thread() is not threading.main_thread()
            calls.append((f"ours {number}", SEEN.get(), torch.is_grad_enabled()))
            if number == failing:
                raise RuntimeError("no kernel")

        return Candidate(f"ours {number}", run, compiles=compiles)

    candidates = [candidate(number, number > 0) for number in range(count + 1)]
    compile_in_parallel(candidates, (torch.zeros(1),), torch.device("cuda"))
    return sorted(calls)


def test_those_that_compile_are_called_once_each() -> None:
    token = SEEN.set("a context")
    try:
        assert called(3) == [(f"ours {n}", "a context", False) for n in (1, 2, 3)]
    finally:
        SEEN.reset(token)


def test_one_has_nobody_to_wait_for() -> None:
    assert called(1) == []


def test_failures_are_left_for_later(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", logger="fusepass"):
        assert len(called(2, failing=2)) == 2
    assert "ours 2" in caplog.text
    assert "no kernel" in caplog.text


@pytest.mark.parametrize("mode", ["default", "max-autotune"])
@pytest.mark.parametrize("generated", [False, True])
def test_what_inductor_generates_is_compiled(
    mode: str, generated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any mode, where eager would call other kernels than Inductor's; ours if it is such, too."""
    patched: list[Any] = []

    def compiled(run: Any, inputs: Any, patches: Any) -> Any:
        patched.append(patches)
        return lambda: "compiled"

    monkeypatch.setattr(lowering, "compile_region", compiled)
    theirs = Candidate(decide.INDUCTOR, lambda x: "run", generated=generated)
    made = decide._call(theirs, (torch.zeros(1),), mode)()
    assert made == ("compiled" if generated or mode == "max-autotune" else "run")
    if mode == "default":
        assert patched in ([], [{}])
    ours = Candidate("ours", lambda x: "run", generated=generated)
    assert decide._call(ours, (torch.zeros(1),), mode)() == ("compiled" if generated else "run")
