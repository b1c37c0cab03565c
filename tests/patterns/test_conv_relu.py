"""Convolution chains: what they take in, what comes close and must not, and that nothing changes."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import fusepass
from fusepass import tune
from fusepass.fusion.kernel_ir.epilogue import evaluate, parse
from fusepass.inductor.passes import rewrite_aten
from fusepass.options import Options
from fusepass.patterns import conv_relu
from fusepass.torch_private.inductor import kernel_call
from fusepass.tune.timing import NotEnoughMemory
from tests.patterns.conv_programs import (
    AROUND,
    CHANNELS,
    OPTIONS,
    Layer,
    agrees,
    applied,
    plain,
)

LAST = torch.channels_last


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", AROUND)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("last", [False, True])
def test_conv_relu_chains_are_replaced(name: str, dtype: torch.dtype, last: bool) -> None:
    module = Layer(AROUND[name]).eval().to(dtype)
    x = torch.randn(2, CHANNELS, 9, 7).to(dtype)
    if last:
        module, x = module.to(memory_format=LAST), x.to(memory_format=LAST)  # type: ignore[call-overload]
    _, found = agrees(module, x)
    assert found == 1


@pytest.mark.parametrize(
    "given",
    [
        {"stride": 2},
        {"stride": (2, 1), "padding": (0, 2)},
        {"dilation": 2, "padding": 2},
        {"groups": 4},
        {"groups": CHANNELS},
        {"width": 1},
        {"width": 5, "padding": 0},
        {"padding_mode": "circular"},
        {"padding_mode": "reflect"},
        {"padding": "same"},
        {"bias": True},
        {"inputs": 3},
    ],
    ids=str,
)
def test_kinds_of_convolutions(given: dict[str, Any]) -> None:
    module = Layer(plain, **given).eval()
    _, found = agrees(module, torch.randn(2, given.get("inputs", CHANNELS), 11, 13))
    assert found == 1


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_batches(batch: int) -> None:
    _, found = agrees(Layer(AROUND["residual"]).eval(), torch.randn(batch, CHANNELS, 5, 5))
    assert found == (batch > 0)


def test_a_batch_size_that_varies() -> None:
    module = Layer(plain).eval()
    compiled = torch.compile(module, backend="fusepass", options=OPTIONS, dynamic=True)
    for batch in (2, 5, 3):
        x = torch.randn(batch, CHANNELS, 6, 6)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), module(x))
    assert applied(compiled) == 1


NEAR = {
    "read twice": lambda m, y, x: F.relu(m.norm(y)) + y,
    "normed result read twice": lambda m, y, x: (z := m.norm(y)) + F.relu(z),
    "another activation": lambda m, y, x: F.silu(m.norm(y)),
    "bounded above": lambda m, y, x: F.relu6(m.norm(y)),
    "leaky": lambda m, y, x: F.leaky_relu(m.norm(y), 0.1),
    "scaled by pixel": lambda m, y, x: F.relu(y * torch.linspace(0, 1, y.shape[-1])),
    "scaled by image": lambda m, y, x: F.relu(y * x.mean((1, 2, 3), keepdim=True)),
    "divided by": lambda m, y, x: F.relu(m.scale / y),
    "residual of another shape": lambda m, y, x: F.relu(m.norm(y) + x[:1]),
    "scaled by itself": lambda m, y, x: F.relu(y * y),
    "scaled by a sum": lambda m, y, x: F.relu((y + x) * m.scale),
    "norm of one sample": lambda m, y, x: F.relu(F.instance_norm(y)),
    "transposed": lambda m, y, x: F.relu(F.conv_transpose2d(x, m.shortcut.weight)),
    "one dimension": lambda m, y, x: F.relu(F.conv1d(x[..., 0], m.shortcut.weight[..., 0])),
    "divided by 0": lambda m, y, x: F.relu(y / 0.0),
    "a wider result": lambda m, y, x: F.relu(m.norm(y).double()),
    "added twice": lambda m, y, x: F.relu(torch.add(m.norm(y), x, alpha=2)),
}


@pytest.mark.parametrize("name", NEAR)
def test_near_misses_are_not_replaced(name: str) -> None:
    around: Callable[[Layer, Tensor, Tensor], Tensor] = NEAR[name]  # type: ignore[assignment]
    _, found = agrees(Layer(around).eval(), torch.randn(2, CHANNELS, 7, 5))
    assert found == 0


@pytest.mark.parametrize(
    ("dtype", "other"), [(torch.float16, torch.float32), (torch.float32, torch.bfloat16)]
)
def test_a_result_of_another_dtype(dtype: torch.dtype, other: torch.dtype) -> None:
    def around(layer: Layer, y: Tensor, x: Tensor) -> Tensor:
        return F.relu(layer.norm(y).to(other))

    _, found = agrees(Layer(around).eval().to(dtype), torch.randn(2, CHANNELS, 7, 5).to(dtype))
    assert found == 0


def _acts(program: Callable[..., Any], **options: Any) -> Counter[str]:
    """The rules that acted on a program of x, weight and bias whose writes were left as they are."""
    with FakeTensorMode():
        shapes = (2, 8, 6, 6), (8, 8, 1, 1), (8, 1, 1)
        x, weight, bias = (torch.empty(shape, dtype=torch.float16) for shape in shapes)
        x = x.to(memory_format=LAST)
        gm = make_fx(program)(x, weight, bias)
    made = Options(candidate="reference", **options)
    decisions = rewrite_aten(gm.graph, made, ())
    return Counter(one.rule for one in decisions if one.outcome == "applied")


@pytest.mark.parametrize(("activation", "rule"), [("relu", "conv_relu"), ("silu", "conv_1x1")])
def test_writes_inside_the_chain_prevent_the_rewrite(activation: str, rule: str) -> None:
    act = getattr(F, activation)

    def before(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        scale = bias * 2
        bias.add_(1)
        return act(F.conv2d(x, weight) * scale)

    def behind(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        made = act(F.conv2d(x, weight) * (bias * 2))
        bias.add_(1)
        return made

    assert rule not in _acts(before)
    assert _acts(behind)[rule] == 1


def test_a_norm_that_takes_statistics() -> None:
    _, found = agrees(Layer(plain).train(), torch.randn(2, CHANNELS, 7, 5))
    assert found == 0


@pytest.mark.parametrize("name", ["plain", "residual", "shortcut", "bare"])
@pytest.mark.parametrize("frozen", [False, True])
def test_gradients(name: str, frozen: bool) -> None:
    module = Layer(AROUND[name]).eval()
    if frozen:  # else the backward of the scale reads what the convolution gives
        module.norm.requires_grad_(False)
        module.norm2.requires_grad_(False)
    _, found = agrees(module, torch.randn(2, CHANNELS, 7, 5), train=True)
    assert found == (name == "bare" or frozen)


def test_weights_that_change_between_calls() -> None:
    module = Layer(AROUND["shortcut"]).eval()
    compiled = torch.compile(module, backend="fusepass", options=OPTIONS)
    x = torch.randn(2, CHANNELS, 6, 6)

    def same() -> None:
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), module(x))

    same()
    module.conv.weight.data.add_(1.0)  # leaves the version counter alone
    same()
    assert module.norm.running_var is not None
    module.norm.running_var.mul_(3.0)
    same()
    other = Layer(AROUND["shortcut"])
    module.load_state_dict(other.state_dict())
    same()
    module.train()
    same_in_training = copy.deepcopy(module)
    torch.testing.assert_close(compiled(x), same_in_training(x))
    module.eval()
    same()
    module.half()
    with torch.no_grad():
        got, want = compiled(x.half()), module(x.half())
    torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nonfinite_values(value: float) -> None:
    x = torch.randn(2, CHANNELS, 7, 5)
    x[0, 3, 2, 2] = value
    _, found = agrees(Layer(AROUND["residual"]).eval(), x)
    assert found == 1


CONSTANTS: dict[str, Callable[[Layer, Tensor, Tensor], Tensor]] = {
    "times 0": lambda m, y, x: F.relu(y * 0.0 * m.scale + 1),
    "times 0, a vector with a nan": lambda m, y, x: F.relu(y * 0.0 * (m.scale / 0.0)),
    "plus 0": lambda m, y, x: F.relu((y + 0.0) * m.scale),
    "minus a vector, from 0": lambda m, y, x: F.relu(0.0 - y - m.scale),
    "numbers only": lambda m, y, x: F.relu((3 - y * 2) / 4 + 1),
    "divided by a vector": lambda m, y, x: F.relu((y - 1) / m.scale),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_numbers_in_the_chain(name: str) -> None:
    _, found = agrees(Layer(CONSTANTS[name], bias=True).eval(), torch.randn(2, CHANNELS, 7, 5))
    assert found == 1


@pytest.mark.parametrize("wrapper", [False, True])
def test_a_wrapper_in_cpp(wrapper: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that is not there: the call has no place in Inductor's C++ code."""
    cudnn = tune.Choice(conv_relu.CUDNN, {}, "measured", "a test says so")
    monkeypatch.setattr(conv_relu, "choose", lambda *given: cudnn)
    monkeypatch.setattr(conv_relu, "_nonfinite_difference", lambda problem: None)
    monkeypatch.setattr(kernel_call, "kernel_calls_tested", lambda: True)  # nothing is tried

    def program(x: Tensor, weight: Tensor) -> Tensor:
        return F.relu(F.conv2d(x, weight))

    with FakeTensorMode():
        given = [torch.empty(2, 8, 6, 6, device="cuda"), torch.empty(8, 8, 3, 3, device="cuda")]
        gm = make_fx(program)(*given)
    decisions = rewrite_aten(gm.graph, Options(inductor={"cpp_wrapper": wrapper}), ())
    (one,) = (one for one in decisions if one.rule == "conv_relu")
    assert (one.outcome == "applied") == (not wrapper)


@pytest.mark.parametrize("residual", [False, True])
def test_what_is_timed_against_it_is_the_same(residual: bool) -> None:
    problem = tune.ConvProblem(
        op="conv_relu",
        activation="relu",
        bias=True,
        dtype=torch.float32,
        m=0,
        n=8,
        k=36,
        x_strides=(0, 0),
        weight_strides=(0, 0),
        device=torch.device("cpu"),
        images=(2, 4, 5, 6),
        kernel=(8, 4, 3, 3),
        sizes=((1, 2), (1, 0), (1, 1)),
        residual=residual,
    )
    x, weight, bias, *rest = problem.inputs(torch.Generator().manual_seed(0))
    epilogue = parse(conv_relu._epilogue(problem))
    made = torch.conv2d(x, weight, None, *problem.sizes)
    assert made.shape == problem.result
    matrices = [one.permute(0, 2, 3, 1).reshape(-1, 8) for one in (made, *rest)]
    (got,) = evaluate(epilogue, [matrices[0]], [bias, *matrices[1:]])
    given = x, weight, bias, rest[0] if rest else None, problem.sizes, 1
    want = conv_relu.kernel.reference(*given).permute(0, 2, 3, 1).reshape(-1, 8)
    torch.testing.assert_close(got, want)


def test_switched_off() -> None:
    options = {**OPTIONS, "rules": {"conv_relu": False}}
    _, found = agrees(Layer(plain).eval(), torch.randn(2, CHANNELS, 7, 5), options=options)
    assert found == 0


def test_on_the_cpu_it_is_left_to_inductor() -> None:
    module = Layer(plain).eval()
    compiled = torch.compile(module, backend="fusepass")
    x = torch.randn(2, CHANNELS, 7, 5)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x))
    assert applied(compiled) == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("last", [False, True])
def test_through_inductor(last: bool) -> None:
    module = nn.Sequential(Layer(AROUND["residual"]), Layer(AROUND["shortcut"]), nn.MaxPool2d(2))
    module, x = module.eval(), torch.randn(2, CHANNELS, 8, 6)
    if last:
        module, x = module.to(memory_format=LAST), x.to(memory_format=LAST)  # type: ignore[call-overload]
    _, found = agrees(module, x, options={"candidate": "reference"})
    assert found == 2
    fusepass.reset()


def drops_nan(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.0)


def cuts(x: Tensor) -> Tensor:
    return x.clamp(0, torch.finfo(x.dtype).max)


def fails(x: Tensor) -> Tensor:
    raise RuntimeError("no such kernel")


RELUS: dict[str, tuple[Callable[[Tensor], Tensor], str | None]] = {
    "torch's": (torch.relu, None),
    "drops nan": (drops_nan, "cuDNN's ReLU is another: of nan it makes 0.0"),
    "cuts": (cuts, "cuDNN's ReLU is another: of inf it makes 3.38"),
    "fails": (fails, "cuDNN's ReLU is another: it could not be asked (RuntimeError: no such"),
}


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("name", RELUS)
def test_a_library_whose_relu_is_another(
    name: str, residual: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel that is there is asked, here a stand-in on the CPU."""
    relu, expected = RELUS[name]

    def library(
        x: Tensor, weight: Tensor, bias: Tensor, more: Tensor | None, sizes: Any, groups: int
    ) -> Tensor:
        made = F.conv2d(x, weight, bias, *sizes, groups)
        return relu(made if more is None else made + more)

    def inputs(problem: tune.ConvProblem) -> tuple[Tensor, ...]:
        return dataclasses.replace(problem, device=torch.device("cpu")).inputs(torch.Generator())

    def program(x: Tensor, weight: Tensor) -> Tensor:
        made = F.conv2d(x, weight, padding=1)
        return F.relu(made + x if residual else made)

    cudnn = tune.Choice(conv_relu.CUDNN, {}, "measured", "a test says so")
    monkeypatch.setattr(conv_relu, "choose", lambda *given: cudnn)
    monkeypatch.setattr(conv_relu, "make_inputs", inputs)
    monkeypatch.setattr(conv_relu.kernel, "fused_conv_relu", library)
    monkeypatch.setattr(kernel_call, "kernel_calls_tested", lambda: True)  # nothing is tried
    conv_relu._choose.cache_clear()
    with FakeTensorMode():
        sizes = (2, 8, 6, 6), (8, 8, 3, 3)
        gm = make_fx(program)(
            *(torch.empty(one, device="cuda", dtype=torch.bfloat16) for one in sizes)
        )
    decisions = rewrite_aten(gm.graph, Options(), ())
    conv_relu._choose.cache_clear()
    (one,) = (one for one in decisions if one.rule == "conv_relu")
    if expected is None:
        assert (one.outcome, one.reason_code) == ("applied", "measured")
    else:
        assert (one.outcome, one.reason_code) == ("rejected", "inexact")
        assert one.reason.startswith(expected)


def test_a_full_device_is_asked_with_one_image(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def full(problem: tune.ConvProblem) -> tuple[Tensor, ...]:
        asked.append(problem.images[0])
        if problem.images[0] > 1:
            raise NotEnoughMemory("1 MiB needed, 0 MiB free")
        return problem.inputs(torch.Generator())

    monkeypatch.setattr(conv_relu, "make_inputs", full)
    monkeypatch.setattr(conv_relu.kernel, "fused_conv_relu", conv_relu.kernel.reference)
    conv_relu._choose.cache_clear()
    assert conv_relu._nonfinite_difference(problem_on_the_cpu(images=(3, 4, 5, 5))) is None
    assert asked == [3, 1]
    conv_relu._choose.cache_clear()


def problem_on_the_cpu(images: tuple[int, int, int, int]) -> tune.ConvProblem:
    return tune.ConvProblem(
        op="conv_relu",
        activation="relu",
        bias=True,
        dtype=torch.float32,
        m=0,
        n=4,
        k=images[1] * 9,
        x_strides=(0, 0),
        weight_strides=(0, 0),
        device=torch.device("cpu"),
        images=images,
        kernel=(4, images[1], 3, 3),
        sizes=((1, 1), (1, 1), (1, 1)),
    )
