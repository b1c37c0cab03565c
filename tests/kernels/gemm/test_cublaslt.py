"""Linear + activation: the reference against float64, the operators' contracts, the lowering."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fusepass.errors import UnknownActivation
from fusepass.kernels.gemm import cublaslt as kernel
from fusepass.numerics import error_bound, half_ulp, passes, rms, rms_error

EXACT: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda a: a.clamp(min=0),
    "gelu": lambda a: a * 0.5 * (1 + torch.erf(a / math.sqrt(2))),
    "gelu_tanh": lambda a: (
        0.5 * a * (1 + torch.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)))
    ),
    "silu": lambda a: a / (1 + torch.exp(-a)),
    "tanh": lambda a: torch.exp(2 * a).sub(1) / torch.exp(2 * a).add(1),
    "sigmoid": lambda a: 1 / (1 + torch.exp(-a)),
    "squared_relu": lambda a: a.clamp(min=0) ** 2,
}
SIZES = [(1, 1, 1), (1, 7, 3), (33, 65, 129), (64, 1, 31), (5, 300, 1), (128, 64, 256)]
OPS = torch.ops.fusepass
CALL = "torch.ops.fusepass.linear_activation.default("  # in generated code


def operands(
    m: int, k: int, n: int, dtype: torch.dtype, bias: bool = True, scale: float = 1.0
) -> tuple[Tensor, Tensor, Tensor | None]:
    x = torch.randn(m, k) * scale
    weight = torch.randn(n, k) / math.sqrt(max(k, 1))
    vector = torch.randn(n).to(dtype) if bias else None
    return x.to(dtype), weight.to(dtype).t(), vector


def exact(x: Tensor, weight_t: Tensor, bias: Tensor | None, name: str) -> Tensor:
    product = x.double() @ weight_t.double()
    return EXACT[name](product if bias is None else product + bias.double())


def eager(x: Tensor, weight_t: Tensor, bias: Tensor | None, name: str) -> Tensor:
    product = x @ weight_t if bias is None else torch.addmm(bias, x, weight_t)
    return kernel.ACTIVATIONS[name](product)


def within_the_error_rule(got: Tensor, want: Tensor, truth: Tensor) -> bool:
    bound = error_bound(half_ulp(got.dtype, rms(truth)), rms_error(want, truth), None)
    return passes(rms_error(got, truth), bound)


def test_every_activation_has_an_oracle() -> None:
    assert EXACT.keys() == kernel.ACTIVATIONS.keys()


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_reference_is_within_the_error_rule(name: str, dtype: torch.dtype) -> None:
    for size in SIZES:
        for bias in (True, False):
            args = operands(*size, dtype, bias)
            got = OPS.linear_activation(*args, name)
            assert (got.dtype, got.stride()) == (dtype, eager(*args, name).stride())
            assert within_the_error_rule(got, eager(*args, name), exact(*args, name))


def test_half_precision_is_rounded_once() -> None:
    x, weight_t, bias = operands(64, 512, 64, torch.bfloat16, scale=3.0)
    got = OPS.linear_activation(x, weight_t, bias, "squared_relu")
    truth = exact(x, weight_t, bias, "squared_relu")
    # A second rounding would be felt: eager's error is about 1.7 times this one.
    assert rms_error(got, truth) < 0.75 * rms_error(eager(x, weight_t, bias, "squared_relu"), truth)


def test_gelu_flavours_are_told_apart() -> None:
    x, weight_t, bias = operands(64, 64, 64, torch.float64)
    erf = OPS.linear_activation(x, weight_t, bias, "gelu")
    tanh = OPS.linear_activation(x, weight_t, bias, "gelu_tanh")
    assert 1e-5 < (erf - tanh).abs().max() < 1e-3
    torch.testing.assert_close(erf, F.gelu(torch.addmm(bias, x, weight_t)))


@pytest.mark.parametrize("name", ["gelu", "silu", "squared_relu"])
def test_saved_pre_activation_is_the_product(name: str) -> None:
    args = operands(33, 65, 17, torch.float32)
    pre, out = OPS.linear_activation_saved(*args, name)
    x, weight_t, bias = args
    torch.testing.assert_close(pre, torch.addmm(bias, x, weight_t))
    assert torch.equal(out, OPS.linear_activation(*args, name))


@pytest.mark.parametrize("size", [(0, 8, 4), (8, 0, 4), (8, 4, 0), (0, 0, 0)])
@pytest.mark.parametrize("name", ["relu", "sigmoid"])
def test_empty_sizes(size: tuple[int, int, int], name: str) -> None:
    for bias in (True, False):
        args = operands(*size, torch.float32, bias)
        got, want = OPS.linear_activation(*args, name), eager(*args, name)
        assert torch.equal(got, want)
        assert got.stride() == want.stride()


STRIDES: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda t: t.t().contiguous().t(),
    "rows apart": lambda t: torch.cat([t, t], dim=1)[:, : t.shape[1]],
    "every second": lambda t: t.repeat_interleave(2, dim=1)[:, ::2],
    "expanded": lambda t: t[:1].expand_as(t),
}


@pytest.mark.parametrize("how", STRIDES)
def test_strides_of_operands_do_not_matter(how: str) -> None:
    x, weight_t, bias = operands(12, 20, 8, torch.float32)
    assert bias is not None
    for args in [(STRIDES[how](x), weight_t), (x, STRIDES[how](weight_t))]:
        got, want = OPS.linear_activation(*args, bias, "gelu"), eager(*args, bias, "gelu")
        torch.testing.assert_close(got, want)
        assert got.is_contiguous()
    twice = bias.repeat_interleave(2)[::2]
    assert torch.equal(
        OPS.linear_activation(x, weight_t, twice, "tanh"),
        OPS.linear_activation(x, weight_t, bias, "tanh"),
    )


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_special_values_are_eagers(name: str, dtype: torch.dtype) -> None:
    large = min(1e30, torch.finfo(dtype).max)
    x = torch.tensor([[math.nan], [math.inf], [-math.inf], [-0.0], [0.0], [large]], dtype=dtype)
    args = x, torch.ones(1, 1, dtype=dtype), torch.zeros(1, dtype=dtype)
    torch.testing.assert_close(
        OPS.linear_activation(*args, name), eager(*args, name), equal_nan=True
    )


@pytest.mark.parametrize("op", [kernel.linear_activation, kernel.linear_activation_saved])
@pytest.mark.parametrize("bias", [True, False])
def test_opcheck(op: Any, bias: bool) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        torch.library.opcheck(op, (*operands(6, 5, 4, dtype, bias), "gelu_tanh"))


def test_an_unknown_activation_is_named() -> None:
    args = operands(2, 2, 2, torch.float32)
    for call in (
        lambda: OPS.linear_activation(*args, "gelu_tan"),
        lambda: torch.compile(lambda: OPS.linear_activation(*args, "gelu_tan"), backend="eager")(),
    ):
        with pytest.raises(Exception, match="Did you mean 'gelu_tanh'"):
            call()
    with pytest.raises(UnknownActivation):
        kernel.activation_named("swish")


def test_there_is_no_backward() -> None:
    x, weight_t, bias = operands(2, 3, 4, torch.float32)
    out = OPS.linear_activation(x.requires_grad_(), weight_t, bias, "relu")
    with pytest.raises(RuntimeError, match="autograd"):
        out.sum().backward()


# --- the library's fused call, which on the CPU has erf-GELU --------------------------------------


def on_cpu(x: Tensor, weight_t: Tensor, bias: Tensor | None, activation: str) -> bool | None:
    return kernel.cublaslt_use_gelu(x.device.type, x.dtype, activation)


def test_flavours_are_never_swapped() -> None:
    half = torch.bfloat16
    assert kernel.cublaslt_use_gelu("cuda", half, "gelu") is None
    assert kernel.cublaslt_use_gelu("cpu", half, "gelu_tanh") is None
    assert kernel.cublaslt_use_gelu("cuda", half, "gelu_tanh") is (not torch.version.hip or None)
    for name in ("silu", "tanh", "sigmoid", "squared_relu"):
        assert kernel.cublaslt_use_gelu("cuda", half, name) is None
    assert kernel.cublaslt_use_gelu("cuda", torch.float32, "gelu_tanh") is None  # not exact enough
    for dtype in (torch.float64, torch.float8_e4m3fn, torch.int8):
        assert kernel.cublaslt_use_gelu("cuda", dtype, "relu") is None


@pytest.mark.parametrize("name", ["relu", "gelu"])
def test_the_library_call_is_the_reference(name: str) -> None:
    args = operands(33, 65, 17, torch.float32)
    x, weight_t, bias = args
    assert bias is not None
    got = kernel.fused_linear(x, weight_t, bias, name)
    assert within_the_error_rule(got, eager(*args, name), exact(*args, name))


def compiled_code(function: Callable[..., Any], *args: Any, **how: Any) -> tuple[Any, str]:
    from torch._inductor.utils import run_and_get_code

    with torch.no_grad():
        result, code = run_and_get_code(torch.compile(function, **how), *args)
    return result, "\n".join(code)


def program(name: str) -> Callable[..., tuple[Tensor, Tensor]]:
    def run(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        out = OPS.linear_activation(x * 2, weight.t(), bias, name)
        return out.sin(), out

    return run


@pytest.mark.sampled(5)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_inductor_calls_the_library_into_memory_it_planned(
    name: str, bias: bool, dynamic: bool, cache_dir: Any
) -> None:
    import torch._inductor.lowering  # as in a compile

    kernel.install_lowering(on_cpu)
    try:
        x, weight_t, vector = operands(12, 20, 8, torch.float32, bias)
        args = x, weight_t.t().contiguous(), vector
        got, code = compiled_code(program(name), *args, dynamic=dynamic)
        torch.testing.assert_close(got, program(name)(*args))
        in_library = name != "silu"
        assert ("torch._addmm_activation(" in code) == in_library
        assert (CALL in code) == (not in_library)
        if in_library:
            (line,) = (line for line in code.splitlines() if "torch._addmm_activation(" in line)
            assert "out=buf" in line
            assert f"use_gelu={name == 'gelu'}" in line
    finally:
        kernel.install_lowering()


@pytest.mark.parametrize("bias", [True, False])
def test_in_an_arm_of_cond(bias: bool, cache_dir: Path) -> None:
    """The code of an arm does not see constants of the graph around it."""
    import torch._inductor.lowering  # as in a compile

    def branches(x: Tensor, weight: Tensor, vector: Tensor) -> Tensor:
        def layer(x: Tensor, weight: Tensor, vector: Tensor) -> Tensor:
            operator = torch.ops.fusepass.linear_activation
            out: Tensor = operator(x, weight.t(), vector if bias else None, "relu")
            return out

        def plain(x: Tensor, weight: Tensor, vector: Tensor) -> Tensor:
            return x @ weight.t() + vector

        return torch.cond(x.sum() > 0, layer, plain, (x, weight, vector))

    kernel.install_lowering(on_cpu)
    try:
        x, weight_t, vector = operands(12, 20, 8, torch.float32)
        args = x.abs(), weight_t.t().contiguous(), vector
        got, code = compiled_code(branches, *args)
        torch.testing.assert_close(got, branches(*args))
        assert "torch._addmm_activation(" in code
    finally:
        kernel.install_lowering()


@pytest.mark.slow
def test_the_cpp_wrapper_calls_the_library_too(cache_dir: Path) -> None:
    import torch._inductor.lowering  # as in a compile

    kernel.install_lowering(on_cpu)
    try:
        x, weight_t, bias = operands(12, 20, 8, torch.float32)
        args = x, weight_t.t().contiguous()
        for vector in (bias, None):
            how = {"options": {"cpp_wrapper": True}}
            got, code = compiled_code(program("gelu"), *args, vector, **how)
            torch.testing.assert_close(got, program("gelu")(*args, vector))
            assert "aoti_torch_cpu__addmm_activation(" in code
    finally:
        kernel.install_lowering()


def test_without_a_gpu_the_operator_is_called(cache_dir: Any) -> None:
    import torch._inductor.lowering  # as in a compile

    kernel.install_lowering()
    x, weight_t, bias = operands(12, 20, 8, torch.float32)
    args = x, weight_t.t().contiguous(), bias
    got, code = compiled_code(program("relu"), *args)
    torch.testing.assert_close(got, program("relu")(*args))
    assert CALL in code


def test_installing_twice_is_installing_once() -> None:
    import torch._inductor.lowering as inductor

    overload = OPS.linear_activation.default
    kernel.install_lowering()
    first = inductor.lowerings[overload]
    kernel.install_lowering()
    assert inductor.lowerings[overload] is first


CACHED = """
import sys, torch
from torch._dynamo.utils import counters
from fusepass.kernels.gemm import cublaslt as kernel

if sys.argv[1] == "first":
    import torch._inductor.lowering
    kernel.install_lowering(lambda x, w, b, a: kernel.cublaslt_use_gelu("cpu", x.dtype, a))
torch.manual_seed(0)
x, w, b = torch.randn(12, 20), torch.randn(8, 20), torch.randn(8)
op = torch.ops.fusepass.linear_activation
compiled = torch.compile(lambda *a: (op(a[0], a[1].t(), a[2], "relu"), op(a[0], a[1].t(), None, "gelu")))
with torch.no_grad():
    got = compiled(x, w, b)
want = torch.relu(x @ w.t() + b), torch.nn.functional.gelu(x @ w.t())
torch.testing.assert_close(got, want)
print("hits", counters["inductor"]["fxgraph_cache_hit"])
"""


def test_cached_code_runs_where_the_lowering_was_never_installed(cache_dir: Path) -> None:
    def run(which: str) -> str:
        command = [sys.executable, "-c", CACHED, which]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.splitlines()[-1]

    assert [run("first"), run("second")] == ["hits 0", "hits 1"]
    code = "".join(path.read_text() for path in cache_dir.rglob("*.py"))
    assert code.count("torch._addmm_activation(") >= 2
