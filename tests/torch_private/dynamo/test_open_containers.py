"""Dicts of other classes and bounded deques are changed behind the graph, keys in their order."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from fusepass.torch_private.versions import torch_version
from tests.capture.support.bookkeeping import kept_in_step

Change = Callable[[Any, Tensor], None]


def _counter(held: Any, loss: Tensor) -> None:
    if loss > 0.6:
        held["high"] += 1


def _listed(held: Any, loss: Tensor) -> None:
    if loss > 0.6:
        held["high"].append(loss.item())
    else:
        held["low"].append(loss)


def _moved(held: Any, loss: Tensor) -> None:
    if loss > 0.6:
        held.move_to_end("a")
    else:
        held.move_to_end("b")


def _front(held: Any, loss: Tensor) -> None:
    if loss > 0.6:
        held.move_to_end("c", last=False)


def _last_item(held: Any, loss: Tensor) -> None:
    held["k"] = 5
    if loss > 0.6:
        key, value = held.popitem(last=False)
        held[key] = value


def _again(held: Any, loss: Tensor) -> None:
    if loss > 0.6:
        del held["a"]
        held["a"] = loss.item()
    else:
        held["b"] = held.pop("b") + 1


def _left(held: Any, loss: Tensor) -> None:
    if loss > 0.6:
        held.appendleft(loss.item())


def _both_ends(held: Any, loss: Tensor) -> None:
    if loss > 0.6:
        held.appendleft(loss.item())
        held.append(5)
        held.appendleft(6)
    else:
        held.extend([7, 8, 9, 10])


def _members(held: Any, loss: Tensor) -> None:
    if loss > 0.6:
        held.add(2)
        held.discard(1)
    else:
        held.add(1)


CHANGES: list[tuple[Change, Callable[[], Any]]] = [
    (_counter, Counter),
    (_counter, lambda: defaultdict(int)),
    (_listed, lambda: defaultdict(list)),
    (_moved, lambda: OrderedDict(a=1, b=2, c=3)),
    (_front, lambda: OrderedDict(a=1, b=2, c=3)),
    (_last_item, lambda: OrderedDict(a=1, b=2, c=3)),
    (_again, lambda: {"a": 1, "b": 2, "c": 3}),
    (_left, lambda: deque([1.0, 2.0, 3.0], maxlen=3)),
    (_both_ends, lambda: deque([1.0, 2.0], maxlen=3)),
    (_members, lambda: {1}),
]


@pytest.mark.parametrize(("change", "build"), CHANGES)
def test_changed_in_an_arm(change: Change, build: Callable[[], Any]) -> None:
    def make() -> Any:
        held = build()

        def call(loss: Tensor) -> Tensor:
            change(held, loss)
            return loss * 2

        return call, lambda: held

    kept = kept_in_step(make)
    if build is not Counter or torch_version() < (2, 15):  # Dynamo tracks it as any object there
        assert kept.reasons == []
