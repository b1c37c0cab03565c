"""Convolution chains and many small kernels on a CUDA device, through Inductor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fusepass
from fusepass.errors import CandidateFailed
from fusepass.options import Options
from fusepass.patterns import conv_relu, depthwise, gemm_region, horizontal
from fusepass.tune import INDUCTOR, Candidate, Choice, ConvProblem, Problem
from tests.patterns.conv_programs import AROUND, CHANNELS, Layer, agrees, applied
from tests.patterns.test_conv_1x1 import TAKEN
from tests.patterns.test_depthwise import TAKEN as DEPTHWISE

pytestmark = pytest.mark.gpu
LAST = torch.channels_last
HALF = (torch.bfloat16, torch.float16)


def ours(problem: Problem, options: Options, candidates: Sequence[Candidate]) -> Choice:
    """The first candidate of ours, unmeasured."""
    able = [one for one in candidates if one.refuses(problem) is None]
    return Choice(able[1].name if len(able) > 1 else INDUCTOR, {}, "forced", "in a test")


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take what is ours wherever it can be had."""
    monkeypatch.setattr(conv_relu, "choose", ours)
    monkeypatch.setattr(gemm_region, "choose", ours)
    monkeypatch.setattr(depthwise, "choose", ours)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """What cudnn's kernels are found to lose, one after the other."""
    found: list[str | None] = []
    ask = conv_relu._nonfinite_difference

    def asked(problem: ConvProblem) -> str | None:
        found.append(ask(problem))
        return found[-1]

    monkeypatch.setattr(conv_relu, "_nonfinite_difference", asked)
    return found


@pytest.mark.usefixtures("taken", "cache_dir")  # no graph that was compiled with other answers
@pytest.mark.parametrize("name", AROUND)
@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("last", [False, True])
def test_cudnn(name: str, dtype: torch.dtype, last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(
        conv_relu, "_nonfinite_difference", lambda problem: None
    )  # these inputs are finite
    module = Layer(AROUND[name]).eval().to("cuda", dtype)
    x = torch.randn(2, CHANNELS, 9, 7).to("cuda", dtype)
    if last:
        module, x = module.to(memory_format=LAST), x.to(memory_format=LAST)  # type: ignore[call-overload]
    _, found = agrees(module, x, options={})
    assert found == 1


@pytest.mark.usefixtures("taken", "cache_dir")
@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("name", ["plain", "residual", "shortcut"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_cudnn_of_what_is_not_finite(
    name: str, value: float, dtype: torch.dtype, answers: list[str | None]
) -> None:
    """In half precision its ReLU is torch's; in fp32 it is taken if the kernel says so."""
    module = Layer(AROUND[name]).eval().to("cuda", dtype).to(memory_format=LAST)  # type: ignore[call-overload]
    x = torch.randn(2, CHANNELS, 9, 7).to("cuda", dtype).to(memory_format=LAST)
    module.norm.bias.data[3] = value
    _, found = agrees(module, x, options={})
    assert answers
    assert found == (set(answers) == {None})
    assert found == 1 or dtype is torch.float32


@pytest.mark.usefixtures("taken", "cache_dir")
@pytest.mark.parametrize(
    "given",
    [
        {"stride": 2},
        {"dilation": 2, "padding": 2},
        {"groups": 4},
        {"width": 1},
        {"padding_mode": "reflect"},
        {"bias": True},
        {"inputs": 3},
    ],
    ids=str,
)
def test_kinds_of_convolutions(given: dict[str, Any], answers: list[str | None]) -> None:
    module = Layer(AROUND["plain"], **given).eval().to("cuda", torch.float16)
    x = torch.randn(2, given.get("inputs", CHANNELS), 11, 13, device="cuda").half()
    _, found = agrees(module, x, options={})
    assert answers
    assert found == (set(answers) == {None}), answers
    assert found == 1 or given == {"width": 1}  # of 12 channels another kernel


@pytest.mark.usefixtures("taken")
@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("dtype", HALF)
def test_products(name: str, dtype: torch.dtype) -> None:
    module = Layer(TAKEN[name], width=1, inputs=CHANNELS).eval()
    module = _wider(module).to("cuda", dtype).to(memory_format=LAST)  # type: ignore[call-overload]
    x = torch.randn(3, 16, 12, 13, device="cuda").to(dtype).to(memory_format=LAST)
    compiled = torch.compile(module, backend="fusepass")
    agrees(module, x, options={})
    with torch.no_grad():
        compiled(x)
    assert applied(compiled, "conv_1x1") >= 1


@pytest.mark.usefixtures("taken")
@pytest.mark.parametrize("name", DEPTHWISE)
@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
def test_depthwise(name: str, dtype: torch.dtype) -> None:
    module = Layer(DEPTHWISE[name], groups=CHANNELS, width=5, stride=1).eval()
    module = module.to("cuda", dtype).to(memory_format=LAST)  # type: ignore[call-overload]
    x = torch.randn(3, CHANNELS, 12, 13, device="cuda").to(dtype).to(memory_format=LAST)
    agrees(module, x, options={})
    compiled = torch.compile(module, backend="fusepass")
    with torch.no_grad():
        compiled(x)
    assert applied(compiled, "depthwise") == 1


@pytest.mark.parametrize("rule", ["conv_relu", "depthwise", "conv_1x1"])
def test_the_reference_on_a_device(rule: str) -> None:
    around = {"conv_relu": AROUND["plain"], "depthwise": DEPTHWISE["silu"]}.get(rule, TAKEN["silu"])
    how = {"depthwise": {"groups": CHANNELS}, "conv_1x1": {"width": 1}}.get(rule, {})
    module = Layer(around, **how).eval().to("cuda", torch.float16).to(memory_format=LAST)  # type: ignore[call-overload]
    x = torch.randn(3, CHANNELS, 12, 13, device="cuda").half().to(memory_format=LAST)
    agrees(module, x, options={"candidate": "reference"})
    compiled = torch.compile(module, backend="fusepass", options={"candidate": "reference"})
    with torch.no_grad():
        compiled(x)
    assert applied(compiled, rule) == 1


@pytest.mark.usefixtures("taken")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_training_depthwise(mode: str) -> None:
    module = Layer(DEPTHWISE["silu"], groups=CHANNELS).cuda().half().to(memory_format=LAST)  # type: ignore[call-overload]
    module = module.eval()
    x = torch.randn(3, CHANNELS, 12, 13, device="cuda").half().to(memory_format=LAST)
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        agrees(module, x, train=True, options={"mode": mode})


@pytest.mark.parametrize("name", ["plain", "silu"])
def test_searching_widely(name: str) -> None:
    """Inductor's own candidates are really compiled; whichever is taken, nothing changes."""
    around = AROUND[name] if name in AROUND else DEPTHWISE[name]
    module = Layer(around, groups=1 if name in AROUND else CHANNELS).eval()
    module = module.to("cuda", torch.float16).to(memory_format=LAST)  # type: ignore[call-overload]
    x = torch.randn(16, CHANNELS, 40, 40, device="cuda").half().to(memory_format=LAST)
    options = {"mode": "max-autotune-no-cudagraphs"}
    agrees(module, x, options=options)
    compiled = torch.compile(module, backend="fusepass", options=options)
    with torch.no_grad():
        compiled(x)
    rule = "conv_relu" if name in AROUND else "depthwise"
    (one,) = (d for d in fusepass.last_report(compiled).decisions if d.rule == rule)
    assert "inductor took" in one.reason, one.reason


def _wider(module: Layer) -> Layer:
    """With 16 channels, whose rows start at multiples of 16 bytes."""
    made = Layer(module.around, width=1)
    made.conv, made.shortcut = nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 1)
    made.norm, made.norm2 = (nn.BatchNorm2d(16) for _ in range(2))
    made.scale = nn.Parameter(torch.randn(16, 1, 1))
    for norm in (made.norm, made.norm2):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias)
    return made.eval()


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_weights_that_change(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_relu, "choose", ours)
    layers = [Layer(AROUND["shortcut"]) for _ in range(5)]
    module = nn.Sequential(*layers).eval().cuda().half().to(memory_format=LAST)  # type: ignore[call-overload]
    x = torch.randn(2, CHANNELS, 9, 7, device="cuda").half().to(memory_format=LAST)
    compiled = torch.compile(module, backend="fusepass", options={"mode": mode})
    for _ in range(4):
        with torch.no_grad():
            got, want = compiled(x).clone(), module(x)
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
        for layer in layers:
            layer.conv.weight.data.mul_(0.9)
            layer.norm.running_mean.add_(0.1)  # type: ignore[union-attr]
    assert applied(compiled) == len(layers)
    assert applied(compiled, "horizontal") == 1


def _updated(ps: list[Tensor], gs: list[Tensor]) -> list[Tensor]:
    pairs = zip(ps, gs, strict=True)
    return [p * 0.99 - 0.01 * g * torch.sigmoid(p) for p, g in pairs]


def _scaled(ps: list[Tensor], gs: list[Tensor]) -> list[Tensor]:
    return [F.silu(p) if i % 3 else (p * 2).half() for i, p in enumerate([*ps, *gs])]


@pytest.mark.parametrize("program", [_updated, _scaled])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_many_small_kernels(program: Callable[..., list[Tensor]], mode: str) -> None:
    sizes = [64, 100, 777, 1024, 4096] * 20
    ps, gs = ([torch.randn(size, device="cuda") for size in sizes] for _ in range(2))
    compiled = torch.compile(program, backend="fusepass", options={"mode": mode})
    with torch.no_grad():
        for _ in range(3):
            got = [one.clone() for one in compiled(ps, gs)]
            for one, other in zip(got, program(ps, gs), strict=True):
                torch.testing.assert_close(one, other)
            for p in ps:
                p.add_(0.1)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            compiled(ps, gs)
            torch.cuda.synchronize()
    launches = [e for e in profile.events() if e.name.startswith("fusepass_horizontal")]
    assert len(launches) == 1
    assert applied(compiled, "horizontal") == 1
    fusepass.reset()


def test_a_kernel_that_cannot_be_made_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> None:
        raise RuntimeError("no NVRTC here")

    monkeypatch.setattr(horizontal, "prepare", fails)
    ps, gs = ([torch.randn(64, device="cuda") for _ in range(20)] for _ in range(2))
    compiled = torch.compile(_updated, backend="fusepass")
    with torch.no_grad(), pytest.warns(CandidateFailed, match="no NVRTC here"):
        got = compiled(ps, gs)
    torch.testing.assert_close(got, _updated(ps, gs))
    assert applied(compiled, "horizontal") == 0


def test_threads_call_the_same_code() -> None:
    """Each call has a table of addresses of its own."""
    sizes = [64, 100, 777, 1024] * 20
    compiled = torch.compile(_updated, backend="fusepass")

    def many(seed: int) -> bool:
        generator = torch.Generator("cuda").manual_seed(seed)
        ps, gs = (
            [torch.randn(size, device="cuda", generator=generator) for size in sizes]
            for _ in range(2)
        )
        want = _updated(ps, gs)
        with torch.no_grad():
            made = [compiled(ps, gs) for _ in range(30)]
        return all(torch.allclose(a, b) for one in made for a, b in zip(one, want, strict=True))

    assert many(0)
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(many, range(1, 5)))
