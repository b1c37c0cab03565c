"""Constants and calls that stand for copies, through every way of running a graph.

There is no second device here: ``clone()`` of a CPU tensor stands for a copy to one, so that what
the rule puts into the graph really goes through AOTAutograd, Inductor and their caches.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._dynamo.utils import counters

import fusepass
from fusepass.graph.ops.op_names import tensor_value
from fusepass.host_tensors.device_copies import DeviceCopy
from fusepass.patterns import host_tensor
from fusepass.testing.compare import assert_same

CODEGENS = ("eager", "eager-decomposed", "inductor")


def clone_as_crossing(node: fx.Node) -> DeviceCopy | None:
    value = tensor_value(node)
    if node.target != "clone" or value is None:
        return None
    assert isinstance(node.args[0], fx.Node)
    return DeviceCopy(node, "copy", (node.args[0],), value.device, value.dtype)


@pytest.fixture(autouse=True)
def _clones_cross(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_tensor, "device_copy_at", clone_as_crossing)


def decided(compiled: Any) -> list[str]:
    decisions = fusepass.last_report(compiled).decisions
    return [d.reason for d in decisions if d.rule == "host_tensor"]


def literal(x: Tensor) -> Tensor:
    return x * torch.tensor([0.1, 0.7, 2.0]).clone()


def steps(x: Tensor) -> Tensor:
    return x + torch.linspace(0, 1, 3).clone()


def written(x: Tensor) -> Any:
    scale = torch.tensor([0.1, 0.7, 2.0]).clone()
    scale.add_(x.detach()[0])
    return x * scale


def handed_out(x: Tensor) -> Any:
    scale = torch.tensor([0.1, 0.7, 2.0]).clone()
    return x * scale, scale, scale[1:]


def made(x: Tensor) -> Any:
    mask = torch.ones(3, 3).tril().clone()
    return x @ mask, torch.arange(3).flip(0).clone()


@pytest.mark.parametrize("codegen", CODEGENS)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", [literal, steps, written, handed_out, made])
def test_every_codegen(program: Callable[..., Any], grad: bool, codegen: str) -> None:
    compiled = torch.compile(program, backend="fusepass", options={"codegen": codegen})
    for _ in range(3):
        x = torch.randn(2, 3)
        sides = []
        for run in (program, compiled):
            own = x.clone().requires_grad_(grad)
            result = run(own)
            first = result[0] if isinstance(result, tuple) else result
            if grad:
                first.sum().backward()
            sides.append((result, own.grad))
            if program is handed_out:  # what the caller does with it is not seen by the next call
                with torch.no_grad():
                    result[1].fill_(9.0)
        assert_same(sides[0], sides[1], "result", _close)
    expected = "the same bits" if program is made else "a constant of 12 bytes"
    assert decided(compiled)
    assert all(expected in text for text in decided(compiled))


def _close(eager: Tensor, compiled: Tensor, path: str) -> None:
    torch.testing.assert_close(compiled, eager, rtol=1e-6, atol=1e-6, msg=path)


def test_caches_do_not_mix_constants_up(cache_dir: Path) -> None:
    """Two programs whose graphs differ in nothing but the constant share what was compiled."""

    def times(*numbers: float) -> Callable[[Tensor], Tensor]:
        def program(x: Tensor) -> Tensor:
            return x.sin() * torch.tensor(list(numbers)).clone()

        return program

    x = torch.randn(3)
    counters.clear()
    for numbers in ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0), (1.0, 2.0, 3.0)):
        torch.compiler.reset()
        compiled = torch.compile(times(*numbers), backend="fusepass")
        torch.testing.assert_close(compiled(x), x.sin() * torch.tensor(numbers))
        assert len(decided(compiled)) == 1
    hits = (
        counters["aot_autograd"]["autograd_cache_hit"] + counters["inductor"]["fxgraph_cache_hit"]
    )
    assert hits >= 2


def test_equal_constants_are_one() -> None:
    def program(x: Tensor) -> Tensor:
        a, b = torch.tensor([0.0, 1.0]).clone(), torch.tensor([0.0, 1.0]).clone()
        return x + a * b * torch.tensor([-0.0, 1.0]).clone() + torch.tensor([0, 1]).clone()

    graphs: list[fx.GraphModule] = []
    x = torch.randn(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fusepass.backend.hand_off", lambda gm, *_: graphs.append(gm) or gm.forward)
        assert torch.equal(torch.compile(program, backend="fusepass")(x), program(x))
    values = [value.tolist() for value in graphs[0].buffers()]
    assert len(values) == 3


def test_a_rule_that_fails_leaves_no_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Tensor) -> Tensor:
        return literal(x) + torch.arange(3).clone()

    def fails(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("in the rule")

    graphs: list[fx.GraphModule] = []
    monkeypatch.setattr(host_tensor.rewrite, "insert_calls", fails)
    monkeypatch.setattr(
        fusepass.backend, "hand_off", lambda gm, *_: graphs.append(gm) or gm.forward
    )
    x = torch.randn(2, 3)
    compiled = torch.compile(program, backend="fusepass")
    with pytest.warns(fusepass.errors.RewriteFault, match="in the rule"):
        assert torch.equal(compiled(x), program(x))
    assert not list(graphs[0].buffers())
    assert not graphs[0].graph.find_nodes(op="get_attr")


def test_a_literal_without_data_is_nobodys_concern() -> None:
    def program(x: Tensor) -> Any:
        return torch.tensor([1, 2], device="meta"), x * 2

    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    x = torch.randn(3)
    found, doubled = compiled(x)
    assert (found.device.type, found.dtype, found.shape) == ("meta", torch.int64, (2,))
    assert torch.equal(doubled, x * 2)
    assert not [d for d in fusepass.last_report(compiled).decisions if d.rule == "host_tensor"]
