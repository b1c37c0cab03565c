"""What a frame reads from a class is guarded: a value that is bound later is seen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.capture.support.bookkeeping import kept_in_step


class Track:
    __module__ = "program"  # Dynamo leaves classes alone whose module begins with "torch_"
    scale: Any = 1.0


def _reads(loss: Tensor) -> Tensor:
    return loss * Track.scale


def _derived(loss: Tensor) -> Tensor:
    return loss * type("Sub", (Track,), {}).scale if Track.scale is None else loss + Track.scale


def _writes(loss: Tensor) -> Tensor:
    Track.scale += 1
    return loss * Track.scale


def _text(loss: Tensor) -> Tensor:
    return loss * (2 if Track.scale == "two" else 3)


@pytest.mark.parametrize(
    ("function", "values"),
    [
        (_reads, (1.0, 2.0, 2.0, 3)),
        (_derived, (1, 2, 3, 4)),
        (_writes, (1, 5, 2)),
        (_text, ("two", "three", "two")),
    ],
)
def test_bound_between_calls(function: Any, values: tuple[Any, ...]) -> None:
    compiled = torch.compile(function, backend="fusepass", options={"codegen": "eager"})
    loss = torch.tensor([1.0, 2.0])
    for value in values:
        found = []
        for call in (function, compiled):
            Track.scale = value
            found.append((call(loss).tolist(), Track.scale))
        assert found[0] == found[1]


def test_read_in_an_arm() -> None:
    def make() -> Any:
        Track.scale = 1.0

        def call(loss: Tensor) -> Tensor:
            return loss * Track.scale if loss > 0.6 else loss + Track.scale

        return call, lambda: Track.scale

    kept_in_step(make).whole(1)
