"""Linear + activation on a CUDA device: the library's epilogue, its lowering, and the tuner."""

from __future__ import annotations

import copy
import gc
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fusepass
from fusepass import tune
from fusepass.kernels.gemm import cublaslt as kernel
from fusepass.numerics import error_bound, half_ulp, passes, rms, rms_error
from fusepass.options import Options
from fusepass.patterns import gemm_region
from fusepass.patterns import linear_activation as pattern
from fusepass.torch_private.inductor import kernel_call

pytestmark = pytest.mark.gpu

HALF = (torch.bfloat16, torch.float16)
FLAVOURS = [*((name, dtype) for name in ("relu", "gelu_tanh") for dtype in HALF)]
FLAVOURS.append(("relu", torch.float32))
# (m, k, n), with what cuBLASLt aligns for and what it does not.
SIZES = [(1, 1, 1), (1, 64, 128), (7, 33, 65), (64, 1, 31), (128, 64, 1), (256, 512, 384)]


def operands(m: int, k: int, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(m, k, device="cuda", dtype=dtype)
    weight = torch.randn(n, k, device="cuda").div(math.sqrt(max(k, 1))).to(dtype)
    return x, weight.t(), torch.randn(n, device="cuda", dtype=dtype)


def eager(x: Tensor, weight_t: Tensor, bias: Tensor, name: str) -> Tensor:
    return kernel.ACTIVATIONS[name](torch.addmm(bias, x, weight_t))


def exact(x: Tensor, weight_t: Tensor, bias: Tensor, name: str) -> Tensor:
    return eager(x.double(), weight_t.double(), bias.double(), name)


def within_the_error_rule(got: Tensor, args: tuple[Tensor, Tensor, Tensor], name: str) -> bool:
    truth = exact(*args, name)
    want = rms_error(eager(*args, name), truth)
    return passes(rms_error(got, truth), error_bound(half_ulp(got.dtype, rms(truth)), want, None))


@pytest.fixture
def choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty table of choices."""
    monkeypatch.setenv("FUSEPASS_CACHE_DIR", str(tmp_path / "choices"))
    tune.reset()
    yield
    tune.reset()


@pytest.mark.parametrize(("name", "dtype"), FLAVOURS)
def test_the_library_call_is_within_the_error_rule(name: str, dtype: torch.dtype) -> None:
    for size in SIZES:
        args = operands(*size, dtype)
        got = kernel.fused_linear(*args, name)
        assert (got.dtype, got.stride()) == (dtype, eager(*args, name).stride())
        assert within_the_error_rule(got, args, name), size


STRIDES: dict[str, Callable[[Tensor], Tensor]] = {
    "other order": lambda t: t.t().contiguous().t(),
    "rows apart": lambda t: torch.cat([t, t], dim=1)[:, : t.shape[1]],
    "off by one": lambda t: torch.cat([t[:, :1], t], dim=1)[:, 1:],
    "every second": lambda t: t.repeat_interleave(2, dim=1)[:, ::2],
    "expanded": lambda t: t[:1].expand_as(t),
}


@pytest.mark.parametrize("how", STRIDES)
@pytest.mark.parametrize("name", ["relu", "gelu_tanh"])
def test_strides(how: str, name: str) -> None:
    x, weight_t, bias = operands(96, 128, 64, torch.bfloat16)
    apart = bias.repeat_interleave(2)[::2]
    for args in [
        (STRIDES[how](x), weight_t, bias),
        (x, STRIDES[how](weight_t), bias),
        (x, weight_t, apart),
    ]:
        assert within_the_error_rule(kernel.fused_linear(*args, name), args, name)


@pytest.mark.parametrize("size", [(64, 64, 64), (1, 8, 8)])
@pytest.mark.parametrize(("name", "dtype"), FLAVOURS)
def test_special_values_are_eagers(dtype: torch.dtype, name: str, size: Any) -> None:
    m, k, n = size
    x, weight_t = torch.zeros(m, k, device="cuda", dtype=dtype), torch.zeros(k, n, device="cuda")
    weight_t = weight_t.to(dtype).t().contiguous().t()
    for value in (math.nan, math.inf, -math.inf, -0.0, 1e4, -1e4):
        bias = torch.full((n,), value, device="cuda", dtype=dtype)
        got, want = kernel.fused_linear(x, weight_t, bias, name), eager(x, weight_t, bias, name)
        torch.testing.assert_close(got, want, equal_nan=True, msg=f"{value}: {got[0, 0]}")


def problem(m: int, k: int, n: int, activation: str = "gelu_tanh", **change: Any) -> tune.Problem:
    plain: dict[str, Any] = {
        "op": "linear_activation",
        "activation": activation,
        "bias": True,
        "dtype": torch.bfloat16,
        "m": m,
        "n": n,
        "k": k,
        "x_strides": (k, 1),
        "weight_strides": (1, k),
        "device": torch.device("cuda", 0),
    }
    return tune.Problem(**{**plain, **change})


def choose(one: tune.Problem, **options: Any) -> tune.Choice:
    return tune.choose(one, Options(**options), pattern.candidates(one.activation))


def test_tuning_is_quick_right_and_remembered(choices: None) -> None:
    first = choose(problem(8192, 1024, 5120))  # not in the shipped table
    again = choose(problem(8192, 1024, 5120))
    assert (first.source, again.source) == ("measured", "table")
    assert first.candidate == again.candidate == "cublaslt", first.why
    small = choose(problem(8, 64, 64))
    assert small.source == "measured"
    assert tune.decide._state.seconds < 3.0  # the library's own start included


def test_random_state_and_memory_are_left_as_they_were(choices: None) -> None:
    state, held = torch.cuda.get_rng_state(), torch.cuda.memory_allocated()
    choose(problem(1024, 1024, 1024))
    assert torch.equal(state, torch.cuda.get_rng_state())
    assert torch.cuda.memory_allocated() - held < 1 << 20


@pytest.mark.gpu_alone
def test_a_full_device_is_no_error(choices: None) -> None:
    gc.collect()
    torch.cuda.empty_cache()  # what other tests left in torch's cache is no free memory, but usable
    free, _ = torch.cuda.mem_get_info()
    hog = torch.empty(free - (400 << 20), dtype=torch.uint8, device="cuda")
    try:
        choice = choose(problem(8192, 1024, 5120))
    finally:
        del hog
        torch.cuda.empty_cache()
    assert choice.source == "model"


@pytest.mark.gpu_alone
def test_max_autotune_times_what_inductor_would_generate(choices: None) -> None:
    choice = choose(problem(512, 256, 512), mode="max-autotune-no-cudagraphs")
    assert choice.source == "measured"
    assert choice.microseconds.keys() == {"inductor", "cublaslt"}


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("bias", [True, False])
def test_inductor_calls_the_library(mode: str, bias: bool, cache_dir: Path) -> None:
    import torch._inductor.lowering  # as in a compile
    from torch._inductor.utils import run_and_get_code

    def program(x: Tensor, weight: Tensor, vector: Tensor | None) -> Tensor:
        operator = torch.ops.fusepass.linear_activation
        out: Tensor = operator(x.sin(), weight.t(), vector, "gelu_tanh")
        return out.cos()

    kernel.install_lowering()
    x, weight_t, vector = operands(64, 128, 256, torch.bfloat16)
    args = x, weight_t.t().contiguous(), vector if bias else None
    compiled = torch.compile(program, mode=mode)
    with torch.no_grad():
        got, code = run_and_get_code(lambda: compiled(*args).clone())
        for _ in range(3):
            torch.testing.assert_close(compiled(*args).clone(), program(*args), atol=2e-2, rtol=0)
    assert "torch._addmm_activation(" in "".join(code)
    torch.testing.assert_close(got, program(*args), atol=2e-2, rtol=0)


# --- the whole road -------------------------------------------------------------------------------


class FeedForward(nn.Module):
    """Linear, activation, linear: what follows the activation is not pointwise."""

    def __init__(self, activation: nn.Module, bias: bool = True) -> None:
        super().__init__()
        self.up = nn.Linear(1024, 4096, bias=bias)
        self.activation = activation
        self.down = nn.Linear(4096, 1024)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


def outcomes(compiled: Callable[..., Any]) -> set[tuple[str, str]]:
    """Rules and what came of them; a rule that acts in one place may come close in another."""
    decisions = fusepass.last_report(compiled).decisions
    return {(d.rule, d.outcome.value) for d in decisions if d.rule.startswith("linear_")}


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "activation", [nn.GELU(approximate="tanh"), nn.ReLU()], ids=["gelu", "relu"]
)
def test_a_feed_forward_block_takes_the_epilogue(
    activation: nn.Module, bias: bool, mode: str, choices: None, cache_dir: Path
) -> None:
    model = FeedForward(activation, bias).cuda().bfloat16()
    x = torch.randn(4, 2048, 1024, device="cuda", dtype=torch.bfloat16)
    options = {"mode": mode, "rules": {"gemm_epilogue": False}}  # whose kernel may be faster yet
    compiled = torch.compile(model, backend="fusepass", options=options)
    with torch.no_grad():
        for _ in range(3):
            got = compiled(x).clone()
        want, truth = model(x), copy.deepcopy(model).double()(x.double())
    bound = error_bound(half_ulp(got.dtype, rms(truth)), rms_error(want, truth), None)
    assert passes(rms_error(got, truth), bound)
    assert "applied" in {outcome for _, outcome in outcomes(compiled)}
    code = "".join(path.read_text() for path in cache_dir.rglob("*.py"))
    assert code.count("torch._addmm_activation(") == 1


@pytest.mark.parametrize("winner", ["inductor", "cublaslt", "triton 128x128x64w4s3c2h"])
def test_one_choice_of_the_library_and_our_kernel(
    winner: str, choices: None, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both rules see the layer; the tuner is asked once for all three ways."""
    if not kernel_call.kernel_calls_tested():
        pytest.skip("our kernel is not used with this version of torch")
    asked: list[list[str]] = []

    def choose(problem: Any, options: Any, candidates: Any) -> tune.Choice:
        asked.append([one.name for one in candidates])
        return tune.Choice(winner, dict.fromkeys(asked[-1], 1.0), "measured", "a test says so")

    monkeypatch.setattr(gemm_region, "choose", choose)
    model = FeedForward(nn.ReLU()).cuda().bfloat16()
    x = torch.randn(256, 1024, device="cuda", dtype=torch.bfloat16)
    compiled = torch.compile(model, backend="fusepass")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), atol=0.02, rtol=0.02)
    decisions = fusepass.last_report(compiled).decisions
    applied = {d.rule for d in decisions if d.outcome.value == "applied"}
    expected = {"inductor": set(), "cublaslt": {"linear_relu"}}.get(winner, {"gemm_epilogue"})
    assert applied == expected
    assert {"inductor", "cublaslt"} <= set(asked[0])
    assert any(name.startswith("triton ") for name in asked[0])


@pytest.mark.parametrize("after", [lambda h: h * 2, lambda h: h.sum(-1)], ids=["mul", "sum"])
def test_element_wise_work_behind_it_keeps_it_with_inductor(after: Any, choices: None) -> None:
    layer = nn.Linear(1024, 4096).cuda().bfloat16()
    x = torch.randn(8192, 1024, device="cuda", dtype=torch.bfloat16)
    compiled = torch.compile(lambda x: after(layer(x).relu()), backend="fusepass")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), after(layer(x).relu()), atol=0.5, rtol=0.02)
    assert ("linear_relu", "left_to_inductor") in outcomes(compiled)


@pytest.mark.parametrize("activation", [nn.GELU(approximate="tanh"), nn.ReLU(), nn.Tanh()])
def test_training(activation: nn.Module, choices: None) -> None:
    model = FeedForward(activation).cuda()
    x = torch.randn(512, 1024, device="cuda", requires_grad=True)
    gradients = []
    for run in (model, torch.compile(model, backend="fusepass")):
        run(x).square().sum().backward()
        gradients.append([x.grad, *(p.grad for p in model.parameters())])
        x.grad = None
        model.zero_grad()
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-3)


def test_forced_to_the_reference(choices: None) -> None:
    layer = nn.Linear(64, 128).cuda()
    x = torch.randn(32, 64, device="cuda")
    options = {"candidate": "reference"}
    compiled = torch.compile(lambda x: layer(x).relu(), backend="fusepass", options=options)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layer(x).relu())
    assert ("linear_relu", "applied") in outcomes(compiled)
