"""Settings of Inductor for one graph: when they are measured, what decides, what switches them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fusepass
from fusepass.errors import CandidateFailed
from fusepass.inductor import settings

LAST = torch.channels_last


def decided(module: nn.Module, x: Tensor, **options: Any) -> list[Any]:
    compiled = torch.compile(module, backend="fusepass", options=options)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-4)
    decisions = fusepass.last_report(compiled).decisions
    return [one for one in decisions if one.rule == settings.LAYOUT]


def convolution(**given: Any) -> nn.Module:
    return nn.Sequential(nn.Conv2d(8, 16, 3, **given), nn.ReLU()).eval()


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What both ways are said to take."""
    found = [1.0, 2.0]
    monkeypatch.setattr(settings, "_time_both_layouts", lambda convolutions: tuple(found))
    return found


def test_the_faster_way_is_taken(times: list[float]) -> None:
    x = torch.randn(1, 8, 9, 9)
    (one,) = decided(convolution(), x)
    assert (one.outcome, one.reason_code) == ("applied", "measured")
    assert "1.0 ms as they lie, 2.0 ms channels last" in one.reason
    times[:] = 2.0, 1.0
    torch.compiler.reset()
    (one,) = decided(convolution(), x)
    assert (one.outcome, one.reason_code) == ("slower", "slower")
    assert one.candidates == {"layout_as_it_is": 2000.0, "channels_last": 1000.0}
    times[:] = 0.0312, 0.05
    torch.compiler.reset()
    (one,) = decided(convolution(), x)
    assert "31.2 µs as they lie, 50.0 µs channels last" in one.reason
    times[:] = 0.0, 0.0  # no time, or no memory, to try either way
    torch.compiler.reset()
    (one,) = decided(convolution(), x)
    assert (one.outcome, one.reason_code) == ("left_to_inductor", "no_rule")
    assert one.candidates == {}


def test_the_chosen_layout_reaches_inductor(times: list[float]) -> None:
    from torch._inductor.utils import run_and_get_code

    x, module = torch.randn(1, 8, 9, 9), convolution()
    strides = []
    for times[0] in (1.0, 3.0):
        torch.compiler.reset()
        compiled = torch.compile(module, backend="fusepass")
        with torch.no_grad():
            _, (code, *_) = run_and_get_code(compiled, x)
        strides.append("(784, 1, 112, 16)" in code)  # of the result channels last
    assert strides == [False, True]


@pytest.mark.usefixtures("times")
@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"groups": 2}, {}),
        ({}, {"rules": {"conv_layout": False}}),
        ({}, {"inductor.layout_optimization": True}),
        ({}, {"frozen": True}),
    ],
)
def test_graphs_without_a_layout_choice(given: dict[str, Any], options: dict[str, Any]) -> None:
    assert decided(convolution(**given), torch.randn(1, 8, 9, 9), **options) == []


@pytest.mark.usefixtures("times")
def test_what_lies_channels_last_already_stays() -> None:
    module, x = convolution().to(memory_format=LAST), torch.randn(1, 8, 9, 9)  # type: ignore[call-overload]
    assert decided(module, x.to(memory_format=LAST)) == []
    assert decided(nn.Conv2d(8, 16, 1).eval(), x) == []  # one order is the other


@pytest.mark.usefixtures("times")
def test_a_batch_that_varies_stays_one_graph() -> None:
    """Looking at strides must not guard on sizes."""
    module = convolution()
    compiled = torch.compile(module, backend="fusepass", dynamic=True)
    with torch.no_grad(), torch.compiler.set_stance("default"):
        for batch in (2, 3, 5):
            compiled(torch.randn(batch, 8, 9, 9))
    report = fusepass.last_report(compiled)
    assert len([one for one in report.decisions if one.rule == settings.LAYOUT]) == 1


def small_convolution() -> settings._CpuConv:
    return settings._CpuConv(
        images=(1, 8, 9, 9),
        weight=(16, 8, 3, 3),
        dtype=torch.float32,
        stride=(1, 1),
        padding=(1, 1),
        dilation=(1, 1),
        groups=1,
    )


def test_slow_convolutions_are_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(settings.torch, "conv2d", lambda *given, **how: calls.append(given))
    kind = small_convolution()
    settings._time_conv(kind, 0.0)
    assert len(calls) == 2
    settings._time_conv(kind, float("inf"))
    assert len(calls) == 2 + 2 * (1 + settings._ROUNDS)


def test_both_ways_are_really_timed() -> None:
    kind = small_convolution()
    settings._time_both_layouts.cache_clear()
    as_they_lie, last = settings._time_both_layouts((kind, kind))
    assert as_they_lie > 0
    assert last > 0
    (one,) = decided(convolution(padding="same"), torch.randn(1, 8, 9, 9))
    assert re.search(r"[1-9]\S* [mµ]s as they lie", one.reason)
    assert all(took > 0 for took in one.candidates.values())
    assert set(one.candidates) == {"layout_as_it_is", "channels_last"}


def test_a_failure_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(convolutions: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(settings, "_time_both_layouts", fails)
    with pytest.warns(CandidateFailed, match="out of memory"):
        assert decided(convolution(), torch.randn(1, 8, 9, 9)) == []
