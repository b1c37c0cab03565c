"""Convolutions on trial as products of matrices: what holds for every rule that tries that."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fusepass import tune
from fusepass.errors import RewriteFault
from fusepass.patterns import depthwise, gemm_region
from tests.patterns.conv_programs import (
    CHANNELS,
    OPTIONS,
    Layer,
    agrees,
    applied,
    aten_graph,
    check,
)

LAST = torch.channels_last
Around = Callable[[Layer, Tensor, Tensor], Tensor]
KINDS: dict[str, dict[str, Any]] = {
    "conv_1x1": {"width": 1},
    "depthwise": {"groups": CHANNELS},
}
AROUND: dict[str, Around] = {
    "silu": lambda m, y, x: F.silu(m.norm(y)),
    "residual": lambda m, y, x: m.norm(y) + x,
    "norm alone": lambda m, y, x: m.norm(y),
    "two results": lambda m, y, x: F.silu(z := m.norm(y)).amax(1, keepdim=True) + z,
    "equal calls": lambda m, y, x: F.silu(y) * 2 + F.silu(y),
}
rules = pytest.mark.parametrize("rule", KINDS)


def layer(rule: str, around: Callable[[Layer, Tensor, Tensor], Any]) -> Layer:
    made = Layer(around, **KINDS[rule]).eval().bfloat16()
    return made.to(memory_format=LAST)  # type: ignore[call-overload,no-any-return]


def images(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16().to(memory_format=LAST)


def compiled_with(rule: str, module: Layer, **options: Any) -> Any:
    others = {"conv_relu": False, **dict.fromkeys(KINDS, False), rule: True}
    options = {**OPTIONS, "rules": others, **options}
    return torch.compile(module, backend="fusepass", options=options)


EQUAL: dict[str, Callable[[Layer, Tensor, Tensor], Any]] = {
    "silu": lambda m, y, x: (F.silu(y), F.silu(y)),
    "relu": lambda m, y, x: (F.relu(y), F.relu(y)),
    "cast there and back": lambda m, y, x: (z := F.silu(y), z.float().to(z.dtype)),
}


@rules
@pytest.mark.parametrize("name", EQUAL)
def test_equal_results_are_tensors_of_their_own(rule: str, name: str) -> None:
    module = layer(rule, EQUAL[name])
    compiled = compiled_with(rule, module)
    with torch.no_grad():
        one, other = compiled(images(2, CHANNELS, 6, 7))
        want = other.clone()
        one.zero_()
    assert torch.equal(other, want)
    assert want.any()
    assert applied(compiled, rule) == 1


BY_CHANNEL: dict[str, Around] = {
    "times a number in a tensor": lambda m, y, x: F.silu(y * (m.scale * m.scale[:1] * 2)),
    "where": lambda m, y, x: F.silu(y * torch.where(m.scale > 0, m.scale, 0.1)),
    "masked": lambda m, y, x: F.silu(
        y + torch.where(m.scale > m.scale.mean(), m.scale, m.scale * 2)
    ),
    "of integers": lambda m, y, x: F.silu(y * (torch.arange(CHANNELS)[:, None, None] * 0.5)),
}


@rules
@pytest.mark.parametrize("name", BY_CHANNEL)
def test_per_channel_operations_in_matrix_form(rule: str, name: str) -> None:
    module, x = layer(rule, BY_CHANNEL[name]), images(2, CHANNELS, 6, 7)
    agrees(module, x)
    torch.compiler.reset()
    compiled = compiled_with(rule, module)
    with torch.no_grad():
        compiled(x)
    assert applied(compiled, rule) == 1


@rules
@pytest.mark.parametrize("name", AROUND)
def test_a_trial_that_is_taken_back_leaves_the_graph_alone(
    rule: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tune.Choice(tune.INDUCTOR, {}, "measured", "a test says so")
    asked: list[Any] = []
    for module_that_asks in (depthwise, gemm_region):
        monkeypatch.setattr(module_that_asks, "choose", lambda *given: asked.append(given) or left)
    module, x = layer(rule, AROUND[name]), images(3, CHANNELS, 9, 7)
    assert aten_graph(module, x, rule) == aten_graph(module, x)
    assert asked


@rules
def test_a_fault_leaves_nothing_of_the_trial(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a test breaks it")

    for module_that_writes in (depthwise, gemm_region):
        monkeypatch.setattr(module_that_writes, "write_call", broken)
    module, x = layer(rule, AROUND["silu"]), images(3, CHANNELS, 9, 7)
    with pytest.warns(RewriteFault, match="a test breaks it"):
        left = aten_graph(module, x, rule)
    assert left == aten_graph(module, x)


@rules
@pytest.mark.parametrize("name", ["silu", "residual", "two results"])
def test_a_batch_size_that_varies(rule: str, name: str) -> None:
    module = layer(rule, AROUND[name])
    wide, compiled = copy.deepcopy(module).double(), compiled_with(rule, module)
    for batch in (2, 5, 3):
        x = images(batch, CHANNELS, 6, 7)
        torch._dynamo.mark_dynamic(x, 0)
        with torch.no_grad():
            check(compiled(x), module(x), wide(x.double()))
    assert applied(compiled, rule) == 1  # in one compile


@rules
@pytest.mark.sampled(23)
@pytest.mark.parametrize("name", ["silu", "residual", "norm alone", "two results"])
@pytest.mark.parametrize("sizes", [(3, 1, 1), (80, 1, 1), (1, 1, 5), (1, 5, 1)])
def test_strides_of_few_pixels(rule: str, name: str, sizes: tuple[int, int, int]) -> None:
    """Inductor's without the rule: of one pixel there is more than one way to lie in order."""
    module, x = layer(rule, AROUND[name]), images(sizes[0], CHANNELS, *sizes[1:])
    if rule == "depthwise":
        # In 16 bits a CPU without AVX-512 has no library kernel for it, and what it calls instead
        # lets one pixel lie otherwise than torch's fake tensors say, by which Inductor decides.
        module, x = module.float(), x.float()
    made = []
    for on in (True, False):
        torch.compiler.reset()
        options = {} if on else {"rules": {"conv_relu": False, **dict.fromkeys(KINDS, False)}}
        compiled = compiled_with(rule, module, codegen="inductor", **options)
        with torch.no_grad():
            made.append(compiled(x))
        assert applied(compiled, rule) == on
    got, want = made
    assert (got.shape, got.stride()) == (want.shape, want.stride())
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
