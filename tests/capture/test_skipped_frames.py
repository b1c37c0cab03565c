"""A function that computes with tensors and gets no graph at all is warned of, once."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusepass.errors import FrameNotCompiled

X = torch.arange(1.0, 5.0)


def opaque(x: Tensor) -> Tensor:
    torch._dynamo.graph_break()
    return x


@contextlib.contextmanager
def block() -> Iterator[None]:
    yield


def loop_over_layers(x: Tensor) -> Tensor:
    for scale in (1.0, 2.0):
        x = x * scale
        torch._dynamo.graph_break()
    return x


def in_a_with_block(x: Tensor) -> Tensor:
    with block():
        y = x * 2
        torch._dynamo.graph_break()
    return y


def in_a_try(x: Tensor) -> Tensor:
    try:
        y = x * 2
        torch._dynamo.graph_break()
    except ValueError:
        y = x
    return y


def behind_a_break(x: Tensor) -> Tensor:
    x = x * 2
    torch._dynamo.graph_break()
    for _ in range(2):
        x = x + 1
        torch._dynamo.graph_break()
    return x


class KeptInEveryLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.seen: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
            if x.sum() > 0:
                self.seen.append(hash(x))
                x = opaque(x)
        return x


def found(function: Callable[..., Any], *calls: Any, **options: Any) -> list[str]:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="fusepass", options={"codegen": "eager"} | options)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for x in calls:
            compiled(x)
    torch._dynamo.reset()
    return [str(one.message) for one in said if issubclass(one.category, FrameNotCompiled)]


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (loop_over_layers, "loop"),
        (in_a_with_block, "with-block"),
        (in_a_try, "`try`"),
        (behind_a_break, "loop"),
        (KeptInEveryLayer(), "loop"),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_a_frame_without_a_graph_is_warned_of_once(function: Any, what: str) -> None:
    code = getattr(function, "forward", function).__code__
    line = "" if function is behind_a_break else f"{code.co_firstlineno})"
    said = found(function, X, X, X.repeat(2, 1), X.repeat(3, 1))  # the last two compile again
    assert len(said) == 1
    assert f"`{code.co_name}` ({__file__}:{line}" in said[0]
    assert f"breaks at {__file__.rpartition('/')[2]}:" in said[0]
    assert f"move the body of the {what}" in said[0]


def no_work(x: Tensor) -> int:
    for _ in range(2):
        torch._dynamo.graph_break()
    return 3


def body_in_a_function(x: Tensor) -> Tensor:
    for _ in range(2):
        x = body(x)
    return x


def body(x: Tensor) -> Tensor:
    x = x * 2
    torch._dynamo.graph_break()
    return x + 1


def broken(x: Tensor) -> Tensor:
    x = x * 2
    torch._dynamo.graph_break()
    return x + 1


def captured(x: Tensor) -> Tensor:
    for _ in range(3):
        if x.sum() > 3:
            x = x / 2
    return x * 1


class Body(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return body(x)


class OtherBody(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Body() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize(
    "function",
    [no_work, body_in_a_function, broken, captured, OtherBody()],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_no_warning_where_graphs_hold_what_is_computed(function: Any) -> None:
    assert found(function, X, X) == []


def test_no_warning_where_options_ask_for_the_graph_break() -> None:
    def guarded(x: Tensor) -> Tensor:
        for _ in range(2):
            if x.sum() > 3:
                x = x / 2
        return x * 1

    assert found(guarded, X) == []
    assert found(guarded, X, treatment="keep") == []


def test_no_warning_where_the_error_reaches_the_user() -> None:
    compiled = torch.compile(loop_over_layers, backend="fusepass", fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(torch._dynamo.exc.Unsupported):
            compiled(X)
