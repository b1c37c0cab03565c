"""Which arguments of a function its code may write, read off the bytecode."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusepass.capture.bytecode.writes_behind import Held, Values, memory_written
from fusepass.torch_private.dynamo.eager_frames import written

F = nn.functional


def written_by(function: Callable[..., Any], held: object = None) -> set[str]:
    """Names of the tensors written: ``a`` and ``b``, or what ``held``, the first argument, has."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    tensors = dict(_tensors(held))
    keys = {id(tensor): 100 + at for at, tensor in enumerate(tensors.values())}

    def memory_of(tensor: Tensor) -> frozenset[int]:
        return frozenset([keys[id(tensor)]] if id(tensor) in keys else [])

    values = Values(memory_of, lambda *_: None)
    local = {name: Held(frozenset([at])) for at, name in enumerate(names)}
    if held is not None:
        local[names[0]] = values.of(held)
    start = ((), local)
    steps = written(code).instructions
    found = memory_written(values, code, steps, function.__globals__, start, 0)
    said = dict(enumerate(names)) | {100 + at: name for at, name in enumerate(tensors)}
    return {said[key] for key in found}


def _tensors(held: object) -> list[tuple[str, Tensor]]:
    if isinstance(held, nn.Module):
        return [*held.named_parameters(), *held.named_buffers()]
    return [(name, one) for name, one in vars(held).items()] if held is not None else []


def helper(a: Tensor, b: Tensor) -> Tensor:
    return a.add_(b)


def loop(a: Tensor, b: Tensor) -> None:
    for tensor in (a, b):
        tensor.mul_(2)


def chosen(a: Tensor, b: Tensor) -> None:
    h = a if b.sum() > 0 else b
    h.add_(1)


def in_a_try(a: Tensor, b: Tensor) -> None:
    try:
        b.sum()
    except ValueError:
        a.zero_()


def in_a_finally(a: Tensor, b: Tensor) -> None:
    with torch.no_grad():
        try:
            b.sum()
        finally:
            a.zero_()


def from_a_later_round(a: Tensor, b: Tensor) -> None:
    h = b
    while b.sum() > 0:
        h.zero_()
        h = a[0]


def by_a_closure(a: Tensor, b: Tensor) -> None:
    def inner() -> None:
        a.add_(b)

    inner()


def by_two_names_at_once(a: Tensor, b: Tensor) -> None:
    c, d = a.view(-1), b.view(-1)
    e, f = d, c
    f.add_(e)


def by_a_default(a: Tensor, b: Tensor) -> None:
    def inner(c: Tensor, d: Tensor = b) -> None:
        c.add_(d)

    inner(a)


def in_a_dict(a: Tensor, b: Tensor) -> None:
    d = {"b": b}
    d["a"] = a
    d["a"].add_(1)


def in_a_list(a: Tensor, b: Tensor) -> None:
    found = [b.sum()]
    found.append(a)
    found[1].add_(1)


def by_subscript(a: Tensor, b: Tensor) -> None:
    a[b > 0] = 0


def by_operator(a: Tensor, b: Tensor) -> None:
    a[1:] *= b


def by_keywords(a: Tensor, b: Tensor) -> None:
    helper(b=a, a=b)


def recursive(a: Tensor, b: Tensor) -> None:
    if b.sum() > 0:
        recursive(b, a)
    a.zero_()


def backward_first(a: Tensor, b: Tensor) -> None:
    (a * b).sum().backward()
    a.zero_()


def backward_of_one_path(a: Tensor, b: Tensor) -> None:
    if b.sum() > 0:
        (a * b).sum().backward()
    a.zero_()


def rebound(a: Tensor, b: Tensor) -> None:
    a = a.clone()
    a[0] = b


def numbers_and_lists(a: Tensor, b: Tensor) -> None:
    n, found = 0, [a]
    n += 1
    found += [b]
    found[0] = n


def fresh(a: Tensor, b: Tensor) -> None:
    h = torch.cat([a, b]).relu_()
    h += F.relu(a)
    h.index_add_(0, b, a)


PROGRAMS: list[tuple[Callable[..., Any], str]] = [
    (helper, "a"),
    (loop, "ab"),
    (chosen, "ab"),
    (in_a_try, "a"),
    (in_a_finally, "a"),
    (from_a_later_round, "ab"),
    (by_a_closure, "a"),
    (by_two_names_at_once, "a"),
    (by_a_default, "a"),
    (in_a_dict, "ab"),
    (in_a_list, "a"),
    (by_subscript, "a"),
    (by_operator, "a"),
    (by_keywords, "b"),
    (recursive, "ab"),
    (backward_of_one_path, "a"),
    (lambda a, b: a.view(-1)[1:].zero_(), "a"),
    (lambda a, b: a.T[0].zero_(), "a"),
    (lambda a, b: a.data.mul_(b), "a"),
    (lambda a, b: a.chunk(2)[1].zero_(), "a"),
    (lambda a, b: torch.add(a, b, out=b), "b"),
    (lambda a, b: F.relu(a, inplace=True), "a"),
    (lambda a, b: F.relu(a, True), "a"),
    (lambda a, b: F.relu(a, inplace=False), ""),
    (lambda a, b: torch._foreach_add_([a, b], 1), "ab"),
    (lambda a, b: nn.init.zeros_(a), "a"),
    (lambda a, b: operator.iadd(a, b), "a"),
    (lambda a, b: operator.add(a, b), ""),
    (lambda a, b: a.__setitem__(0, b), "a"),
    (lambda a, b: [t.add_(1) for t in (a, b)], "ab"),
    (lambda a, b: helper(*[a, b]), "ab"),
    (lambda a, b: (lambda t: t.add_(1))(a), "a"),
    (lambda a, b: a.requires_grad_().sum(), ""),
    (lambda a, b: a.clone().add_(b), ""),
    (lambda a, b: a.to(torch.float64).add_(b), "a"),
    (lambda a, b: (a + b).add_(b), ""),
    (backward_first, ""),
    (rebound, ""),
    (numbers_and_lists, ""),
    (fresh, ""),
]


@pytest.mark.parametrize(("function", "want"), PROGRAMS)
def test_arguments_that_are_written(function: Callable[..., Any], want: str) -> None:
    assert written_by(function) >= set(want)
    assert written_by(function) <= set(want)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ema", torch.zeros(3))
        self.linear, self.act = nn.Linear(3, 3), nn.ReLU(inplace=True)
        self.block = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.ReLU(inplace=True)])
        self.same, self.norm = nn.Identity(), nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x)

    def update(self, x: Tensor) -> None:
        self.ema.lerp_(x, 0.1)


def all_layers(self: Model, x: Tensor) -> None:
    for layer in self.layers:
        x = layer(x)


def residual(self: Model, x: Tensor) -> Tensor:
    h = self.block(self.linear(x))
    h += x
    return self.act(h)


def stored(self: Model, x: Tensor) -> None:
    self.kept = x
    self.kept.add_(1)


def parameters(self: Model, x: Tensor) -> None:
    for parameter in self.linear.parameters():
        parameter.mul_(2)


OF_A_MODEL: list[tuple[Callable[..., Any], set[str]]] = [
    (lambda self, x: self.update(x), {"ema"}),
    (lambda self, x: self(x), {"x"}),
    (lambda self, x: self.act(x), {"x"}),
    (lambda self, x: self.layers[1](x), {"x"}),
    (lambda self, x: self.layers[0](x).add_(1), set()),
    (lambda self, x: self.same(x).add_(1), {"x"}),
    (lambda self, x: self.norm(x).add_(1), set()),
    (all_layers, {"x"}),
    (residual, set()),
    (stored, {"x"}),
    (parameters, {"linear.weight", "linear.bias"}),
]


@pytest.mark.parametrize(("function", "want"), OF_A_MODEL)
def test_what_a_model_writes(function: Callable[..., Any], want: set[str]) -> None:
    assert written_by(function, Model()) == want


class Trainer:
    def __init__(self) -> None:
        self.weight, self.bias = torch.zeros(2), torch.zeros(2)
        vars(self)["optimizer"] = torch.optim.SGD([self.weight], lr=0.1)


def test_a_step_of_an_optimizer_writes_its_parameters() -> None:
    trainer = Trainer()
    optimizer = vars(trainer).pop("optimizer")

    def names(function: Callable[..., Any]) -> set[str]:
        keys = {id(trainer.weight): 1, id(trainer.bias): 2}
        values = Values(lambda one: frozenset([keys[id(one)]]), lambda *_: None)
        start = ((), {"optimizer": values.of(optimizer)})
        code = function.__code__
        found = memory_written(values, code, written(code).instructions, {}, start, 0)
        return {{1: "weight", 2: "bias"}[key] for key in found}

    assert names(lambda optimizer: optimizer.step()) == {"weight"}
    assert names(lambda optimizer: optimizer.zero_grad()) == set()
