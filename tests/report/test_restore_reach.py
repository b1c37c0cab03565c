"""What ``explain`` puts back of a program that keeps state out of sight of the function it is given."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fusepass

count = 0
HELPERS = """
count = 0
log = []

class Kept:
    total = 0

def helper(x):
    global count
    count += 1
    log.append(count)
    Kept.total += 1
    return x + 1
"""


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    global count
    count = Counting.calls = 0
    with fusepass.options(codegen="eager"):
        yield


@pytest.fixture
def helpers(tmp_path: Path) -> Iterator[ModuleType]:
    """Another module of the user's."""
    (tmp_path / "users_helpers.py").write_text(HELPERS)
    spec = importlib.util.spec_from_file_location("users_helpers", tmp_path / "users_helpers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["users_helpers"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["users_helpers"]


class Counting(nn.Module):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        global count
        count += 1
        Counting.calls += 1
        return x * 2


X = torch.ones(4)
Read = Callable[[], object]


def counts() -> tuple[int, int]:
    return count, Counting.calls


def put_back(
    program: Any, read: Read = counts, tool: Callable[..., object] = fusepass.explain
) -> None:
    """The program changes what ``read`` reads, and ``tool`` puts that back."""
    before = read()
    tool(program, X)
    assert read() == before
    program(X)
    assert read() != before, "the program changes nothing, so there is nothing to put back"


class TestModules:
    def test_itself(self) -> None:
        put_back(Counting())

    def test_in_a_sequential(self) -> None:
        put_back(nn.Sequential(nn.Identity(), Counting()))

    def test_compiled(self) -> None:
        put_back(torch.compile(Counting(), backend="fusepass"))

    def test_in_a_function(self) -> None:
        net = Counting()
        put_back(lambda x: net(x) + 1)

    def test_syncs(self) -> None:
        put_back(Counting(), tool=fusepass.syncs)


def test_callable_object() -> None:
    class Program:
        def __call__(self, x: Tensor) -> Tensor:
            global count
            count += 1
            return x * 2

    put_back(Program())


def test_nested_code() -> None:
    def program(x: Tensor) -> Tensor:
        def inner(n: int) -> int:
            global count
            count += n
            return n

        steps = [inner(n) for n in (1, 2)]
        return x * sum(steps) * sum(inner(n) for n in (1, 2))

    put_back(program)


def test_a_global_that_was_not_there() -> None:
    def program(x: Tensor) -> Tensor:
        global made_by_the_call
        made_by_the_call = 1  # type: ignore[name-defined]
        return x * 2

    put_back(program, lambda: "made_by_the_call" in globals())
    del globals()["made_by_the_call"]


def state_of(module: ModuleType) -> tuple[int, list[int], int]:
    return module.count, list(module.log), module.Kept.total


def test_helper_of_another_module(helpers: ModuleType) -> None:
    helper = helpers.helper
    put_back(lambda x: helper(x) * 2, lambda: state_of(helpers))


def test_helper_named_in_another_module(helpers: ModuleType) -> None:
    put_back(lambda x: helpers.helper(x) * 2, lambda: state_of(helpers))


def test_attribute_of_another_module(helpers: ModuleType) -> None:
    def program(x: Tensor) -> Tensor:
        helpers.count += 1  # type: ignore[attr-defined]
        return x * 2

    put_back(program, lambda: state_of(helpers))


def test_property_and_inherited_class_attribute() -> None:
    class Base:
        total = 0

    class State(Base):
        @property
        def next(self) -> int:
            global count
            count += 1
            Base.total += 1
            State.new = 1  # type: ignore[attr-defined]
            return count

    state = State()
    put_back(lambda x: x * state.next, lambda: (count, Base.total, hasattr(State, "new")))


def test_attribute_of_a_function() -> None:
    def helper(x: Tensor) -> Tensor:
        helper.calls += 1  # type: ignore[attr-defined]
        return x * 2

    helper.calls = 0  # type: ignore[attr-defined]
    put_back(helper, lambda: helper.calls)  # type: ignore[attr-defined]


def test_bytearray_and_slots() -> None:
    class State:
        __slots__ = ("n",)

    kept, state = bytearray(b"ab"), State()
    state.n = 0  # type: ignore[attr-defined]

    def program(x: Tensor) -> Tensor:
        kept.append(1)
        state.n += 1  # type: ignore[attr-defined]
        return x * 2

    put_back(program, lambda: (bytes(kept), state.n))  # type: ignore[attr-defined]
