"""Functions for calls of torch, of subclasses and modes: called by eager code they run in eager."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import fusepass

from ..support.side_by_side import side_by_side
from ..support.special_tensors import BASE, Pair, Tagged
from ..support.tried import IN, OUT, X

SAYS = "is called by code in eager mode, and runs in eager mode, too"


def handles(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    return Tensor.__torch_function__.__func__(cls, func, types, args, kwargs or {})


class Elsewhere(Tensor):
    __torch_function__ = classmethod(handles)  # type: ignore[assignment]

    def __deepcopy__(self, memo: Any) -> Elsewhere:
        return self.as_subclass(Tensor).clone().as_subclass(Elsewhere)


class Passing(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def in_a_try(x: Tensor, i: Tensor, special: Tensor) -> Any:
    try:
        y = x[i] + special
    except IndexError:
        y = special.relu()
    return y, y.detach().shape, y.detach().mean(), y.dim(), y.sin(), y.cos() > 0


def behind_a_break(x: Tensor, i: Tensor, special: Tensor) -> Any:
    y = special + x[i.clamp(0, 3)].sum()
    for number in range(2):
        torch._dynamo.graph_break()
        y = y * number
    return y.detach().shape, y.detach().mean(), y.dim(), y.sin(), y.cos() > 0


def over_a_generator(x: Tensor, i: Tensor, special: Tensor) -> Any:
    y = special * x[i.clamp(0, 3)].sum()
    for k in (n for n in range(3)):
        torch._dynamo.graph_break()
        y = y + k
    return y, y.shape, y.sum(), y.dim(), y.exp()


FUNCTIONS = [in_a_try, behind_a_break, over_a_generator]
ONE_BY_ONE = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: one.__name__)
S = torch.tensor([1.0, -2.0])


@ONE_BY_ONE
@pytest.mark.parametrize("kind", [Tagged, Elsewhere])
def test_each_call_is_the_subclasss_own(function: Callable[..., Any], kind: type) -> None:
    special = S.as_subclass(kind)
    side_by_side(function, *((X, i, sign * special) for i in (IN, OUT) for sign in (1, -1)))


@ONE_BY_ONE
def test_each_call_is_the_modes_own(function: Callable[..., Any]) -> None:
    with Passing():
        side_by_side(function, (X, IN, S), (X, OUT, S), (X * 2, IN, -S))


def test_the_report_says_that_it_runs_in_eager() -> None:
    compiled = torch.compile(in_a_try, backend="fusepass", options={"codegen": "eager"})
    compiled(X, IN, S.as_subclass(Tagged))
    decisions = fusepass.last_report(compiled).to_dict()["decisions"]
    said = [d for d in decisions if SAYS in d["reason"]]
    assert [d["treatment"] for d in said] == ["keep"]
    assert said[0]["reason"].startswith("__torch_function__ ")
    assert said[0]["file"].endswith("special_tensors.py")


def test_traced_where_the_call_stands_it_is_compiled() -> None:
    def program(special: Tensor, p: Tensor) -> Any:
        y = special * 2
        return (p * 2 if p.sum() > 0 else p + 1), y.shape, y.mean(), y + 1

    special = BASE.as_subclass(Tagged)
    side_by_side(program, (special, BASE), (special, -BASE)).only("where", "pure_total")


class Counted(Tensor):
    """Calls compiled code of its own."""

    inner: Any = None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.gelu:
            return cls.inner(args[0].as_subclass(Tensor))
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.fixture
def graphs() -> Iterator[list[Any]]:
    seen: list[Any] = []

    def backend(gm: Any, _: Any) -> Any:
        seen.append(gm)
        return gm

    Counted.inner = torch.compile(lambda x: x * 3, backend=backend)
    yield seen
    Counted.inner = None


def test_code_that_a_handler_compiles_is_compiled(graphs: list[Any]) -> None:
    def program(x: Tensor, i: Tensor, special: Tensor) -> Tensor:
        with contextlib.suppress(IndexError):
            x = x[i]
        return torch.nn.functional.gelu(special) + x.sum()

    fusepass.reset()
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    got = compiled(X, IN, S.as_subclass(Counted))
    assert len(graphs) == 1
    assert torch.equal(got, program(X, IN, S.as_subclass(Counted)))


def test_other_backends_compile_handlers_as_before() -> None:
    fusepass.reset()
    seen: list[str] = []

    def backend(gm: Any, _: Any) -> Any:
        seen.extend(node.name for node in gm.graph.nodes)
        return gm

    def program(special: Tensor) -> Tensor:
        for _ in range(2):
            torch._dynamo.graph_break()
            special = special.sin()
        return special

    torch.compile(program, backend=backend)(S.as_subclass(Tagged))
    assert any("ret" in name or "sin" in name for name in seen)


# subclasses that wrap tensors


def made_in_a_try(x: Tensor, i: Tensor, special: Tensor) -> Any:
    try:
        y = Pair(x[i], x[i] * 2) + 1
    except (IndexError, RuntimeError):
        y = special
    return y, y.shape


def sorted_in_a_try(x: Tensor, i: Tensor, special: Tensor) -> Any:
    try:
        y = special[special > 0].sort().values + x[i]
    except (IndexError, RuntimeError):
        y = x
    return y, y.sum(), y.shape[0]


@pytest.mark.parametrize("function", [made_in_a_try, sorted_in_a_try, in_a_try])
def test_a_wrapper_in_a_try(function: Callable[..., Any]) -> None:
    pairs = [Pair(value, -2 * value) for value in (S.abs(), -S, S)]
    side_by_side(function, *((X, i, pair) for i in (IN, OUT) for pair in pairs))
