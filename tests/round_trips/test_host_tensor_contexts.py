"""The rule beside options, modes, nested graphs, branches, and what is too large to keep."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

import fusepass
from fusepass.host_tensors import host_constant
from fusepass.host_tensors.device_copies import device_copy_at
from fusepass.testing.compare import assert_same
from fusepass.testing.precision import default_dtype
from fusepass.torch_private.fx import graph_constants

from .pretend import THERE, in_eager, pretended

__all__ = ["pretended"]
Graphs = list[fx.GraphModule]


def compared(program: Callable[..., Any], *inputs: Tensor, **options: Any) -> list[tuple[str, str]]:
    """Compare a program with eager; what was decided, but for copies of its inputs."""
    compiled = torch.compile(program, backend="fusepass", options=options)
    torch.manual_seed(1)
    expected = in_eager(program, *inputs)
    torch.manual_seed(1)
    assert_same(expected, compiled(*inputs), "result")
    return decided(compiled)


def decided(compiled: Any) -> list[tuple[str, str]]:
    decisions = fusepass.last_report(compiled).decisions
    return [
        (d.outcome.value, d.reason_code.value)
        for d in decisions
        if d.rule == "host_tensor" and "which the graph is given" not in d.reason
    ]


def copies(gm: fx.GraphModule) -> int:
    return sum(device_copy_at(node) is not None for node in gm.graph.nodes)


ON_DEVICE = [("applied", "on_device")]


def noise(x: Tensor) -> Any:
    drawn = torch.randn(1000).mul(0.5) + torch.linspace(0, 1, 1000)
    return x.to(THERE), drawn.to(THERE), torch.rand(5, dtype=torch.float64).half().to(THERE)


def test_random_numbers_are_drawn_there_on_request(pretended: Graphs) -> None:
    x = torch.zeros(2)
    compiled = torch.compile(noise, backend="fusepass", options={"host_random": True})
    _, drawn, small = compiled(x)
    assert decided(compiled) == [("applied", "random_op")] * 2
    assert (drawn.dtype, small.dtype) == (torch.float32, torch.float16)
    assert abs(float(drawn.mean()) - 0.5) < 0.1
    assert not torch.equal(drawn, compiled(x)[1])
    made = [node for node in pretended[0].graph.nodes if node.target in (torch.randn, torch.rand)]
    assert [str(node.kwargs["device"]) for node in made] == [THERE] * 2
    assert "drawn on the device" in str(fusepass.last_report(compiled))


def draws_into(x: Tensor) -> Tensor:
    return x.to(THERE) + torch.empty(3).normal_(2.0, 0.1).to(THERE)


def test_drawn_in_place_on_request(pretended: Graphs) -> None:
    compiled = torch.compile(draws_into, backend="fusepass", options={"host_random": True})
    assert ((compiled(torch.zeros(3)) - 2).abs() < 1).all()
    assert decided(compiled) == [("applied", "random_op")]


def drawn_once_copied_twice(x: Tensor) -> Any:
    drawn = torch.rand(5)
    return x.to(THERE), drawn.to(THERE), drawn.to(THERE)


def test_one_draw_stays_one(pretended: Graphs) -> None:
    compiled = torch.compile(
        drawn_once_copied_twice, backend="fusepass", options={"host_random": True}
    )
    _, a, b = compiled(torch.zeros(2))
    assert torch.equal(a, b)
    assert a.data_ptr() != b.data_ptr()
    assert decided(compiled) == [("applied", "random_op")] * 2


def drawn_and_read_here(x: Tensor) -> Any:
    drawn = torch.rand(5)
    return x.to(THERE), drawn.to(THERE), drawn


def drawn_in_place_copied_twice(x: Tensor) -> Any:
    drawn = torch.empty(5).uniform_()
    return x.to(THERE), drawn.to(THERE), drawn.to(THERE)


def shuffled(x: Tensor) -> Any:
    return x.to(THERE), torch.multinomial(torch.ones(4), 2).to(THERE)


@pytest.mark.parametrize("program", [drawn_and_read_here, drawn_in_place_copied_twice, shuffled])
def test_draws_that_stay(program: Callable[..., Any], pretended: Graphs) -> None:
    found = compared(program, torch.zeros(2), host_random=True)
    assert {outcome for outcome, _ in found} == {"rejected"}


def copied(x: Tensor) -> Any:
    return x.to(THERE), x.to(THERE, non_blocking=True), x.to(device=THERE, dtype=torch.float64)


def test_pinned_inputs_do_not_wait_on_request(
    pretended: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_constants, "is_pinned_input", lambda node: node.op == "placeholder")
    x = torch.randn(3)
    compiled = torch.compile(copied, backend="fusepass", options={"non_blocking": True})
    assert_same(in_eager(copied, x), compiled(x), "result")
    calls = [node for node in pretended[0].graph.nodes if node.target == "to"]
    assert [node.kwargs["non_blocking"] for node in calls] == [True] * 3
    assert decided(compiled) == [("applied", "forced")] * 2
    torch.compiler.reset()
    plain = torch.compile(copied, backend="fusepass")
    plain(x)
    flags = [n.kwargs.get("non_blocking") for n in pretended[1].graph.nodes if n.target == "to"]
    assert flags == [None, True, None]


def test_inputs_that_are_not_pinned_are_left(pretended: Graphs) -> None:
    """And what is computed from inputs, pinned or not."""
    x = torch.randn(3)
    compiled = torch.compile(copied, backend="fusepass", options={"non_blocking": True})
    compiled(x)
    reasons = [d for d in fusepass.last_report(compiled).decisions if d.rule == "host_tensor"]
    assert [d.reason_code.value for d in reasons] == ["not_constant"] * 3
    assert all(f"move that to {THERE} before the call" in d.reason for d in reasons)
    assert all(d.treatment == "keep" for d in reasons)


def mask_and_angles(x: Tensor) -> Any:
    mask = torch.ones(3, 3).tril().to(THERE)
    return x.to(THERE) @ mask, torch.arange(3.0).sin().to(THERE)


CONTEXTS = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "double": lambda: default_dtype(torch.float64),
}


@pytest.mark.parametrize("context", CONTEXTS)
def test_contexts(context: str, pretended: Graphs) -> None:
    with CONTEXTS[context]():
        x = torch.randn(3, 3)
        assert compared(mask_and_angles, x) == ON_DEVICE * 2
    assert copies(pretended[0]) == 1  # that of the input
    (constant,) = pretended[0].buffers()
    assert not constant.is_inference()


def under_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = torch.ones(3, 3) @ torch.full((3, 3), 1.01)
    return x.to(THERE), product.to(THERE)


def test_computed_under_autocast_stays(pretended: Graphs) -> None:
    """Its value is another one than without, and of another dtype."""
    assert compared(under_autocast, torch.ones(2)) == [("rejected", "inexact")]


def test_gradients_flow_as_before(pretended: Graphs) -> None:
    def program(x: Tensor) -> Any:
        mask = torch.full((3, 3), 2.0).triu().to(THERE)
        return x.to(THERE) * mask * torch.tensor([0.1, 0.2, 0.3]).to(THERE)

    x = torch.randn(3, 3)
    grads = []
    compiled = torch.compile(program, backend="fusepass")
    for run in (compiled, lambda x: in_eager(program, x)):
        own = x.clone().requires_grad_()
        run(own).sum().backward()
        grads.append(own.grad)
    assert torch.equal(*grads)
    assert decided(compiled) == ON_DEVICE * 2


def trainable(x: Tensor, w: Tensor) -> Any:
    return x.to(THERE) * (torch.zeros(3) + w).to(THERE)


def test_what_requires_grad_stays(pretended: Graphs) -> None:
    w = torch.ones(3, requires_grad=True)
    compiled = torch.compile(trainable, backend="fusepass")
    assert torch.equal(compiled(torch.ones(3), w), torch.ones(3))
    assert decided(compiled) == [("rejected", "not_constant")]
    assert copies(pretended[0]) == 2


def in_checkpoint(x: Tensor) -> Any:
    def layer(x: Tensor) -> Tensor:
        mask = torch.ones(3, 3).tril().to(THERE)
        return x * mask * torch.linspace(0, 1, 3).to(THERE)

    return checkpoint(layer, x.to(THERE), use_reentrant=False)


def test_bodies_of_other_calls_hold_no_constants(pretended: Graphs) -> None:
    """But what can be made there is."""
    x = torch.randn(3, 3, requires_grad=True)
    compiled = torch.compile(in_checkpoint, backend="fusepass")
    compiled(x)
    found = decided(compiled)
    assert sorted(found) == [("applied", "on_device"), ("rejected", "inexact")]


def large(x: Tensor) -> Any:
    return x.to(THERE), (torch.arange(40) * 0.1).to(THERE), torch.arange(40).to(THERE)


def test_large_constants_are_not_kept(pretended: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_constant, "LIMIT", 100)
    assert compared(large, torch.ones(2)) == [("rejected", "cost"), *ON_DEVICE]


def test_all_constants_together_are_bounded(
    pretended: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusepass.host_tensors.plan._TOTAL", host_constant.LIMIT + 100)

    def program(x: Tensor) -> Any:
        a, b, c = (torch.linspace(0, n, 20).to(THERE) for n in (1, 2, 3))
        return x.to(THERE), a * b * c

    assert compared(program, torch.ones(2)) == [*ON_DEVICE * 2, ("rejected", "cost")]


def selected(x: Tensor) -> Any:
    there = x.to(THERE)
    mask = torch.ones(3).cumsum(0)
    if x.sum() > 0:
        mask = mask * 2
    return there * mask.to(THERE)


def test_what_a_branch_decides_is_not_known(pretended: Graphs) -> None:
    x = torch.ones(3)
    compiled = torch.compile(selected, backend="fusepass")
    for x in (torch.ones(3), -torch.ones(3)):
        assert torch.equal(compiled(x), in_eager(selected, x))
    assert decided(compiled) in ([("rejected", "inexact")], [("rejected", "not_constant")], [])


def causal_through_an_index(q: Tensor) -> Tensor:
    there = q.to(THERE)
    mask = torch.zeros(4, 4, dtype=torch.bool)
    rows, columns = torch.tril_indices(4, 4)
    mask[rows, columns] = True
    return scaled_dot_product_attention(there, there, there, attn_mask=mask.to(THERE))


def causal_made(q: Tensor) -> Tensor:
    there = q.to(THERE)
    mask = torch.ones(4, 4, dtype=torch.bool).tril().to(THERE)
    return scaled_dot_product_attention(there, there, there, attn_mask=mask)


@pytest.mark.parametrize("program", [causal_through_an_index, causal_made])
def test_other_rules_still_know_the_value(program: Callable[..., Any], pretended: Graphs) -> None:
    q = torch.randn(1, 1, 4, 8)
    compiled = torch.compile(program, backend="fusepass", options={"allow_hidden_nan": True})
    torch.testing.assert_close(compiled(q), in_eager(program, q))
    found = [d for d in fusepass.last_report(compiled).decisions if "attention" in d.rule]
    assert [(d.outcome.value, d.reason_code.value) for d in found] == [("applied", "proved")]


def test_off(pretended: Graphs) -> None:
    found = compared(mask_and_angles, torch.randn(3, 3), rules={"host_tensor": False})
    assert found == [("rejected", "rule_off")] * 3
    assert copies(pretended[0]) == 3


def beside_numbers(x: Tensor) -> Any:
    x = x.to(THERE)
    return torch.where(x > 0, x, torch.tensor(0.0)), x * torch.tensor(2.0), x[torch.tensor(1)]


def test_numbers_for_a_kernel_are_let_be(pretended: Graphs) -> None:
    """CPU tensors without dimensions beside tensors of a device are not copied."""
    compiled = torch.compile(beside_numbers, backend="fusepass")
    with contextlib.suppress(RuntimeError):  # of the pretended device
        compiled(torch.randn(3))
    assert decided(compiled) == []


def raises_in_eager(x: Tensor) -> Any:
    table = torch.zeros(3)
    table[torch.tensor([5])] = 1.0
    return x.to(THERE), table.to(THERE)


def test_what_raises_is_left_to_raise(pretended: Graphs) -> None:
    compiled = torch.compile(raises_in_eager, backend="fusepass")
    with pytest.raises(IndexError, match="out of bounds"):
        compiled(torch.ones(2))
    assert decided(compiled) == [("rejected", "inexact")]
