"""Effects of the program between a line and the end of its graph, and who could see their order."""

from __future__ import annotations

# ruff: noqa: T201, T203
import contextlib
import io
import pprint
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ..support.written import assert_kept, assert_late, assert_same_text, treatments

HELD: list[Any] = []
COUNT = 0


def inputs() -> tuple[Tensor]:
    return (torch.linspace(-1.5, 4, 15).reshape(3, 5),)


class Looks(io.StringIO):
    """A stream that looks around when it is written to."""

    def __init__(self, at: Callable[[], Any]) -> None:
        super().__init__()
        self.at, self.seen = at, []  # type: ignore[var-annotated]

    def write(self, text: str) -> int:
        self.seen.append((text, self.at()))
        return super().write(text)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        print("before", x.sum())
        self.calls += 1
        print("after", self.calls)
        return x * 2


def appends(x: Tensor) -> Tensor:
    print("before", x.sum())
    HELD.append(len(HELD))
    print("after", len(HELD))
    return x * 2


def binds_a_global(x: Tensor) -> Tensor:
    global COUNT
    COUNT = COUNT + 1
    print("counted", x.sum())
    return x * 2


MODULE = Counts()
PROGRAMS: list[tuple[Callable[..., Any], Callable[[], Any]]] = [
    (MODULE, lambda: MODULE.calls),
    (appends, lambda: list(HELD)),
    (binds_a_global, lambda: COUNT),
]


def seen_by_a_stream(target: Any, at: Callable[[], Any]) -> list[Any]:
    """What a stream sees during two calls."""
    global COUNT
    HELD.clear()
    MODULE.calls = COUNT = 0
    stream = Looks(at)
    with contextlib.redirect_stdout(stream):
        for _ in range(2):
            target(*inputs())
    return stream.seen


@pytest.mark.parametrize(("program", "at"), PROGRAMS, ids=["attribute", "list", "global"])
def test_a_stream_that_looks_at_what_was_changed(
    program: Callable[..., Any], at: Callable[[], Any]
) -> None:
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    eager = seen_by_a_stream(program, at)
    assert seen_by_a_stream(compiled, at) == eager
    assert_kept(compiled, "side_effect")


@pytest.mark.parametrize(("program", "at"), PROGRAMS, ids=["attribute", "list", "global"])
def test_no_other_stream_can_tell(program: Callable[..., Any], at: Callable[[], Any]) -> None:
    HELD.clear()
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    texts = []
    for target in (program, compiled):
        HELD.clear()
        stream = io.StringIO()
        with contextlib.redirect_stdout(stream):
            target(*inputs())
        texts.append(stream.getvalue().split()[:2])
    assert texts[0] == texts[1]
    assert_late(compiled)


def test_a_stream_of_the_programs_own_with_nothing_to_see() -> None:
    def program(x: Tensor) -> Tensor:
        print("sum", x.sum())
        return x * 2

    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    eager = seen_by_a_stream(program, lambda: None)
    assert seen_by_a_stream(compiled, lambda: None) == eager
    assert_late(compiled)


def test_writes_to_the_stream_itself() -> None:
    def program(x: Tensor) -> Tensor:
        print("one", x.sum())
        sys.stdout.write(f"two {x.max()}\n")
        sys.stderr.writelines(["three"])
        print("four", x.min())
        return x * 2

    assert_same_text(program, inputs)
    torch.compiler.reset()
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    compiled(*inputs())  # with streams that are not the program's
    found = treatments(compiled)
    assert found.count(("keep", "side_effect")) == 2
    assert ("late", "after_graph") in found


def test_texts_that_the_program_holds() -> None:
    def program(x: Tensor) -> tuple[Tensor, str, str]:
        text = str(x.sum())
        return x * 2, text, repr(x.shape) + str(3)

    compiled = assert_same_text(program, inputs)
    assert treatments(compiled) == [("keep", "python_value")]


def test_pretty_printed() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        pprint.pprint({"b": y, "a": [y.sum(), (1, "text " * 20)]}, width=60)
        pprint.pp(list(y), indent=2, compact=True)
        pprint.pprint(y.mean().item())
        return y

    makes = (inputs, lambda: (inputs()[0].requires_grad_(),))
    assert_late(assert_same_text(program, *makes), 6, graphs=2)


def test_pretty_printed_elsewhere_is_kept() -> None:
    def program(x: Tensor) -> Tensor:
        pprint.pprint(x, io.StringIO())
        return x * 2

    assert_kept(assert_same_text(program, inputs), "side_effect")
