"""What an arm binds to a global variable, a class or a Python module is chosen behind the graph."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from torch import Tensor

from fusepass.torch_private.versions import torch_version
from tests.capture.support.bookkeeping import kept_in_step

COUNT: Any = 0
MODULE: Any = types.ModuleType("held")


def _bump(value: Any) -> None:
    global COUNT
    COUNT = value


def counts() -> Any:
    _bump(0)

    def call(loss: Tensor) -> Tensor:
        global COUNT
        if loss > 0.6:
            COUNT += 1
        return loss * 2

    return call, lambda: COUNT


def reads() -> Any:
    _bump(None)

    def call(loss: Tensor) -> Tensor:
        if loss > 0.6:
            _bump(loss * 2)
        else:
            _bump(None)
        return loss * 2 if COUNT is None else COUNT + 1

    return call, lambda: COUNT


def new() -> Any:
    globals().pop("NEW", None)

    def call(loss: Tensor) -> Tensor:
        global NEW
        if loss > 0.6:
            NEW = 3
        return loss * 2

    return call, lambda: globals().get("NEW")


def again() -> Any:
    _bump(1)

    def call(loss: Tensor) -> Tensor:
        global COUNT
        COUNT = 2
        if loss > 0.6:
            COUNT = 3
        made = loss * COUNT
        COUNT += 1
        return made

    return call, lambda: COUNT


def of_a_class() -> Any:
    class Base:
        best = 5.0

    class Track(Base):
        __module__ = "program"  # Dynamo leaves classes alone whose module begins with "torch_"

    def call(loss: Tensor) -> Tensor:
        if loss < 0.8:
            Track.best = loss.item()
        return loss * Track.best

    return call, lambda: (Base.best, Track.best, "best" in vars(Track))


def counter_of_a_class() -> Any:
    class Track:
        __module__ = "program"
        count = 0

    def call(loss: Tensor) -> Tensor:
        if loss < 0.8:
            Track.count += 1
        return loss * 2

    return call, lambda: Track.count


def of_a_module() -> Any:
    MODULE.best = 2.0

    def call(loss: Tensor) -> Tensor:
        if loss < 0.8:
            MODULE.best = loss.item()
        return loss * 2

    return call, lambda: MODULE.best


@pytest.mark.parametrize("make", [counts, reads, new, again, of_a_module])
def test_bound_in_an_arm(make: Any) -> None:
    kept_in_step(make).whole(2)


@pytest.mark.parametrize("make", [of_a_class, counter_of_a_class])
def test_bound_to_a_class(make: Any) -> None:
    kept = kept_in_step(make)
    if torch_version() >= (2, 13):  # before, Dynamo cannot trace it
        kept.whole(2)


def test_a_counter_has_no_guard() -> None:
    kept_in_step(counts).whole(1)


def raises_behind() -> Any:
    _bump(0)

    def call(loss: Tensor) -> Tensor:
        global COUNT
        if loss > 0.6:
            COUNT = loss.item()
        if loss > 1.1:
            raise ValueError("too large")
        return loss * 2

    return call, lambda: COUNT


def test_a_raise_behind_it_is_kept() -> None:
    assert kept_in_step(raises_behind).reasons
    torch._dynamo.reset()
