"""``explain`` puts back what the call changed: tensors, attributes, containers, globals, random state."""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fusepass
from fusepass.report.restore import everything_restored

calls = 0
log: list[str] = []


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    with fusepass.options(codegen="eager"):
        yield


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.count = 0
        self.history: list[int] = []
        self.cache: dict[str, Any] = {"seen": {"x": 0}}
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.history.append(self.count)
        self.cache["seen"]["x"] += 1
        self.cache["last"] = x
        self.total += x.sum(0)
        y = self.norm(x)
        return y * 2 if y.sum() > 0 else y - 1


def state(net: Stateful) -> tuple[Any, ...]:
    tensors = {name: value.clone() for name, value in net.state_dict().items()}
    return tensors, net.count, list(net.history), dict(net.cache["seen"]), set(net.cache)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("compiled", [True, False])
def test_module(training: bool, compiled: bool) -> None:
    net = Stateful().train(training)
    target = (
        torch.compile(net, backend="fusepass", options={"codegen": "eager"}) if compiled else net
    )
    buffers = dict(net.named_buffers())
    before = state(net)
    fusepass.explain(target, torch.randn(3, 4))
    after = state(net)
    assert before[1:] == after[1:]
    for name, value in before[0].items():
        assert torch.equal(value, after[0][name]), name
    assert all(value is buffers[name] for name, value in net.named_buffers())
    target(torch.ones(3, 4))  # and it is not frozen: the call itself does change it
    assert net.count == 1
    assert not torch.equal(net.total, before[0]["total"])


def test_arguments() -> None:
    def fill(x: Tensor, out: dict[str, Tensor], parts: list[Tensor], *, where: Tensor) -> Tensor:
        out["y"] = x * 2
        parts.append(x)
        parts[0].zero_()
        where[0] = -1
        return x.mul_(3)

    x, out, parts, where = torch.ones(2), {"z": torch.ones(1)}, [torch.ones(2)], torch.ones(2)
    first = parts[0]
    fusepass.explain(fill, x, out, parts, where=where)
    assert x.tolist() == where.tolist() == first.tolist() == [1, 1]
    assert list(out) == ["z"]
    assert len(parts) == 1
    assert parts[0] is first


def test_a_cache_object_as_models_have() -> None:
    class Cache:
        def __init__(self) -> None:
            self.keys: Tensor | None = None
            self.length = 0

    def step(x: Tensor, cache: Cache) -> Tensor:
        cache.keys = x if cache.keys is None else torch.cat([cache.keys, x])
        cache.length += 1
        return cache.keys.sum()

    cache = Cache()
    fusepass.explain(step, torch.ones(2), cache)
    assert (cache.keys, cache.length) == (None, 0)


def test_gradients_and_parameters_of_a_training_step() -> None:
    net, x = nn.Linear(4, 1), torch.ones(2, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net(x).sum().backward()
    grads = [p.grad for p in net.parameters()]
    values = [g.clone() for g in grads if g is not None]
    weights = [p.detach().clone() for p in net.parameters()]

    def step(x: Tensor) -> Tensor:
        loss = net(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    fusepass.explain(step, x)
    assert all(p.grad is g for p, g in zip(net.parameters(), grads, strict=True))
    assert all(torch.equal(p.grad, v) for p, v in zip(net.parameters(), values, strict=True))  # type: ignore[arg-type]
    assert all(torch.equal(p, w) for p, w in zip(net.parameters(), weights, strict=True))
    assert not optimizer.state


def test_globals_closures_and_methods() -> None:
    seen: list[int] = []
    turn = 0

    class Owner:
        def __init__(self) -> None:
            self.n = 0

        def call(self, x: Tensor) -> Tensor:
            global calls
            nonlocal turn
            self.n += 1
            calls += 1
            turn += 1
            seen.append(1)
            log.append("called")
            return x + self.n

    owner = Owner()
    fusepass.explain(owner.call, torch.ones(2))
    assert (owner.n, calls, turn, seen, log) == (0, 0, 0, [], [])


def test_random_state() -> None:
    numpy = pytest.importorskip("numpy")

    def draws(x: Tensor) -> Tensor:
        x = x + torch.rand(2) + random.random() + numpy.random.rand()
        return torch.nn.functional.dropout(x, 0.5)

    expected: list[Any] = []
    for explained in (False, True):
        torch.manual_seed(3)
        random.seed(3)
        numpy.random.seed(3)
        if explained:
            fusepass.explain(draws, torch.ones(2))
        now = (torch.rand(3).tolist(), random.random(), float(numpy.random.rand()))
        expected.append(now)
    assert expected[0] == expected[1]


def test_inference_tensors() -> None:
    with torch.inference_mode():
        x = torch.ones(2)
        fusepass.explain(lambda x: x.add_(1), x)
    assert x.tolist() == [1, 1]


class TestSnapshot:
    """The snapshot by itself, on what a program may hold."""

    def test_containers_of_each_kind(self) -> None:
        held = SimpleNamespace(
            list=[1],
            dict={"a": [1]},
            ordered=OrderedDict(a=1, b=2),
            deque=deque([1, 2], maxlen=2),
            set={1},
            tuple=([1],),
        )
        with everything_restored(held):
            held.list[0] = 2
            held.dict["a"].append(2)
            held.ordered.move_to_end("a")
            held.deque.append(3)
            held.set.add(2)
            held.tuple[0].clear()
            held.new = 1
            del held.list
        assert held == SimpleNamespace(
            list=[1],
            dict={"a": [1]},
            ordered=OrderedDict(a=1, b=2),
            deque=deque([1, 2], maxlen=2),
            set={1},
            tuple=([1],),
        )
        assert list(held.ordered) == ["a", "b"]

    def test_cycles_and_shared_values(self) -> None:
        a: dict[str, Any] = {}
        a["self"] = a
        with everything_restored(a, a):
            a["more"] = 1
        assert list(a) == ["self"]

    def test_unchanged_tensor_is_not_written(self) -> None:
        x, nan = torch.ones(2), torch.tensor([float("nan")])
        versions = x._version, nan._version
        with everything_restored(x, nan):
            pass
        assert (x._version, nan._version) == versions

    def test_restored_after_an_error(self) -> None:
        x = torch.ones(2)
        with pytest.raises(ZeroDivisionError), everything_restored(x):
            x.zero_()
            raise ZeroDivisionError
        assert x.tolist() == [1, 1]

    def test_views_and_meta_tensors(self) -> None:
        base = torch.arange(4.0)
        view, wide, meta = base[1:3], base[:1].expand(3), torch.empty(2, device="meta")
        with everything_restored(view, wide, meta, base):
            view.zero_()
            base[0] = 9
        assert base.tolist() == [0, 1, 2, 3]
