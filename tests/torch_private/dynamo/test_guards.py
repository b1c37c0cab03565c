"""Guards on methods and attributes of C classes, which Dynamo takes one for another."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

OPTIONS = {"codegen": "eager"}
HELD: dict[str, Any] = {}
EITHER = (Tensor.add, Tensor.sub)


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.method: Any = None

    def forward(self, x: Tensor) -> Tensor:
        return self.method(x, 1)


def held(method: Any, x: Tensor) -> Tensor:
    return HELD["method"](x, 1)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, Any]]] = {
    "method": (lambda method, x: method(x, 1), EITHER),
    "slot": (lambda method, x: method(x, 1), (Tensor.__le__, Tensor.__gt__)),
    "bound slot": (lambda method, x: x + method(1.0), ((2.0).__add__, (2.0).__sub__)),
    "attribute": (lambda one, x: one.__get__(x), (Tensor.T, Tensor.shape)),
    "getter": (lambda one, x: one(x), (Tensor.T.__get__, Tensor.shape.__get__)),
    "partial": (lambda one, x: one(x), tuple(functools.partial(m, other=1) for m in EITHER)),
    "in a list": (lambda methods, x: methods[0](x, 1), ([Tensor.add], [Tensor.sub])),
    "global": (held, EITHER),
    "key": (lambda method, x: x + {Tensor.add: 1, Tensor.sub: 2}[method], EITHER),
    "identity": (lambda method, x: x + (1 if method is Tensor.add else 2), EITHER),
    "name": (lambda method, x: x + len(method.__name__), (Tensor.add, Tensor.multiply)),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_method_is_not_taken_for_another(program: str) -> None:
    run, pair = PROGRAMS[program]
    compiled = torch.compile(run, backend="fusepass", options=OPTIONS)
    x = torch.tensor([[1.0, 2.0]])
    for one in (*pair, *pair):
        HELD["method"] = one
        wanted, got = run(one, x), compiled(one, x)
        assert str(got) == str(wanted)


def test_one_method_of_a_module_is_not_taken_for_another() -> None:
    module = Holder()
    compiled = torch.compile(module, backend="fusepass", options=OPTIONS)
    x = torch.ones(2)
    for method in (*EITHER, *EITHER):
        module.method = method
        assert torch.equal(compiled(x), method(x, 1))


@pytest.mark.parametrize("program", ["method", "slot", "getter"])
def test_the_same_method_is_compiled_once(program: str) -> None:
    counts = torch._dynamo.utils.counters["stats"]
    run, _ = PROGRAMS[program]
    compiled = torch.compile(run, backend="fusepass", options=OPTIONS)
    x = torch.tensor([[1.0, 2.0]])

    def value() -> Any:  # a getter is another object each time
        return {"method": Tensor.add, "slot": Tensor.__le__, "getter": Tensor.shape.__get__}[
            program
        ]

    compiled(value(), x)
    before = counts["unique_graphs"], counts["calls_captured"]
    compiled(value(), x)
    assert (counts["unique_graphs"], counts["calls_captured"]) == before


class Tagged(Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


def after_a_try(x: Tensor, index: Tensor) -> Tensor:
    with contextlib.suppress(IndexError):
        x.index_select(0, index)
    return (x + 1) * (x - 1)


def test_calls_of_a_subclass_whose_function_is_compiled_by_itself() -> None:
    x, index = torch.ones(2).as_subclass(Tagged), torch.tensor([0])
    compiled = torch.compile(after_a_try, backend="fusepass", options=OPTIONS)
    assert torch.equal(compiled(x, index), after_a_try(x, index))
