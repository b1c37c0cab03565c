"""The keys of a dict are in the order of eager after each call, with no branch at all."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch import Tensor

from tests.capture.support.bookkeeping import kept_in_step


def test_a_key_that_is_only_moved() -> None:
    def make() -> Any:
        held = OrderedDict(a=1, b=2, c=3)

        def call(loss: Tensor) -> Tensor:
            held.move_to_end("a")
            return loss * 2

        return call, lambda: held

    kept_in_step(make)


def test_keys_that_others_have_moved_meanwhile() -> None:
    def make() -> Any:
        held = {"a": 1, "b": 2, "c": 3}

        def call(loss: Tensor) -> Tensor:
            del held["a"]
            held["a"] = 1
            return loss * 2

        def state() -> Any:
            before = dict(held)
            held["b"] = held.pop("b")
            return before

        return call, state

    kept_in_step(make)
