"""GEMM regions: what they take in, what comes close and must not, and that nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from fusepass.errors import RewriteFault
from fusepass.fusion.gemm.grow import is_gemm
from fusepass.numerics import error_bound, half_ulp, passes, rms, rms_error
from fusepass.patterns import gemm_region
from tests.patterns.gemm_programs import (
    ACTIVATIONS,
    AROUND,
    COMBINED,
    NOT,
    OPTIONS,
    PACKED,
    RULES,
    SCALED,
    Activation,
    Gated,
    K,
    Linear,
    M,
    N,
    agrees,
    applied,
)

# Activations whose derivative is a function of their result, which the backward keeps.
FROM_ITS_RESULT = ("relu", "sigmoid", "tanh", "bilinear")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("bias", [False, True])
def test_a_gated_pair(packed: str, bias: bool) -> None:
    taken = not (bias and packed.startswith("alternating"))  # its columns do not lie side by side
    for train in (False, True):
        torch.compiler.reset()
        x = torch.randn(2, M // 2, K).bfloat16()
        _, found = agrees(Gated(F.silu, torch.mul, packed, bias=bias), x, train=train)
        if train:  # both products are kept for the backward; unpacked, its gradients are GEMMs
            assert found == {"gemm_epilogue": 1 if packed else 4}
        else:
            assert found == ({"gated_gemm": 1} if taken else {})


@pytest.mark.parametrize("bias", [(), (1,), (2 * N,), (1, 2 * N), (M, 2 * N), (M, 1)], ids=str)
def test_biases_of_a_packed_pair(bias: tuple[int, ...]) -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(2 * N, K))
            self.bias = nn.Parameter(torch.randn(bias))

        def forward(self, x: Tensor) -> Tensor:
            h = torch.addmm(self.bias, x, self.weight.t())
            return F.silu(h[:, :N]) * h[:, N:]

    _, found = agrees(Packed(), torch.randn(M, K).bfloat16(), train=False)
    assert found == ({"gated_gemm": 1} if bias in ((2 * N,), (1, 2 * N)) else {})


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_any_activation(name: str, dtype: torch.dtype) -> None:
    for train in (False, True):
        torch.compiler.reset()
        module = Gated(ACTIVATIONS[name], torch.mul, "")
        _, found = agrees(module, torch.randn(M, K).to(dtype), train=train)
        if not train:
            assert found == {"gated_gemm": 1}
        elif name in FROM_ITS_RESULT:
            assert found == {"gated_gemm": 1, "gemm_epilogue": 3}
        else:  # the forward keeps the gate's product: two GEMMs with an epilogue each
            assert found == {"gemm_epilogue": 4}


@pytest.mark.parametrize("name", COMBINED)
def test_any_way_to_combine(name: str) -> None:
    module = Gated(F.gelu, COMBINED[name], "")
    _, found = agrees(module, torch.randn(1, 3, M, K).bfloat16(), train=False)
    assert found == {"gated_gemm": 1}


@pytest.mark.parametrize("name", AROUND)
def test_epilogues_of_one_gemm(name: str) -> None:
    for train in (False, True):
        torch.compiler.reset()
        _, found = agrees(Linear(AROUND[name]), torch.randn(M, K).bfloat16(), train=train)
        backward = train and name != "a comparison"  # which has no gradient
        assert found == {"gemm_epilogue": 1 + backward}


@pytest.mark.parametrize("name", SCALED)
def test_alpha_and_beta_of_addmm(name: str) -> None:
    given = [torch.randn(*size).bfloat16() for size in ((N,), (M, K), (K, N))]
    compiled = torch.compile(SCALED[name], backend="fusepass", options=OPTIONS)
    exact = SCALED[name](*(one.double() for one in given))
    eager, got = SCALED[name](*given), compiled(*given)
    bound = error_bound(half_ulp(got.dtype, rms(exact)), rms_error(eager, exact), None)
    assert passes(rms_error(got, exact), bound)
    assert applied(compiled) == {"gemm_epilogue": 1}


@pytest.mark.parametrize("name", NOT)
def test_non_pointwise_ops_stay_out_of_the_epilogue(name: str) -> None:
    _, found = agrees(Linear(NOT[name], bias=False), torch.randn(M, K).bfloat16(), train=False)
    assert not found


def test_the_backward_takes_the_derivative_in() -> None:
    """The gradient of the activation's result is a GEMM; around it stands the derivative."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(K, N, bias=False), nn.Linear(N, K, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.down(F.relu(self.up(x)).square() * 3)

    _, found = agrees(Layer(), torch.randn(M, K).bfloat16(), train=True)
    assert found == {"gemm_epilogue": 3}


class Updated(nn.Module):
    """A buffer that is multiplied and then written: graphs put the write at their end."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.randn(M, K))
        self.gate, self.up = nn.Linear(K, N, bias=False), nn.Linear(K, N, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = F.silu(self.gate(self.state)) * self.up(self.state)
        self.state.copy_(x)
        return out


@pytest.mark.parametrize("codegen", ["eager-decomposed", "inductor"])
def test_an_operand_that_is_written_behind_the_region(codegen: str) -> None:
    module, x = Updated().bfloat16(), torch.randn(M, K).bfloat16()
    held = module.state.clone()
    options = {**OPTIONS, "codegen": codegen}
    compiled = torch.compile(module, backend="fusepass", options=options)
    with torch.no_grad():
        for _ in range(2):
            module.state.copy_(held)
            expected = module(x)
            module.state.copy_(held)
            torch.testing.assert_close(compiled(x), expected, rtol=2e-2, atol=2e-2)
            assert torch.equal(module.state, x)
    assert applied(compiled) == {"gated_gemm": 1}


def test_a_second_product_made_of_the_first_is_no_pair(recwarn: pytest.WarningsRecorder) -> None:
    def program(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        gate = F.relu(x @ w)
        return gate * torch.addmm(gate, x, v), gate

    x, w, v = (torch.randn(*size).bfloat16() for size in ((M, K), (K, N), (K, N)))
    compiled = torch.compile(program, backend="fusepass", options=OPTIONS)
    for mine, theirs in zip(compiled(x, w, v), program(x, w, v), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)
    assert "gated_gemm" not in applied(compiled)
    assert not [one for one in recwarn if issubclass(one.category, RewriteFault)]


def test_two_inputs_are_no_pair() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.up = nn.Linear(K, N, bias=False), nn.Linear(K, N, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return F.silu(self.gate(x)) * self.up(x + 1)

    _, found = agrees(Two(), torch.randn(M, K).bfloat16(), train=False)
    assert found["gated_gemm"] == 0


def test_single_precision_and_switched_off() -> None:
    _, found = agrees(Gated(F.silu, torch.mul, ""), torch.randn(M, K), train=False)
    assert not found
    module, x = Gated(F.silu, torch.mul, "").bfloat16(), torch.randn(M, K).bfloat16()
    off = {**OPTIONS, "rules": dict.fromkeys(RULES, False)}
    compiled = torch.compile(module, backend="fusepass", options=off)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x), rtol=2e-2, atol=2e-2)
    assert not applied(compiled)


@pytest.mark.parametrize("packed", ["", "chunk"])
def test_single_precision_where_tf32_is_allowed(tf32: None, packed: str) -> None:
    module = Gated(F.silu, torch.mul, packed, bias=True)
    _, found = agrees(module, torch.randn(M, K), train=False)
    assert found == {"gated_gemm": 1}


def test_the_backward_in_tf32(tf32: None) -> None:
    _, found = agrees(Mlp(F.silu), torch.randn(M, M), train=True, codegen="inductor")
    assert found == {"gated_gemm": 1, "gemm_epilogue": 2}


def test_a_residual_that_comes_later_is_no_operand() -> None:
    def program(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x @ w
        later = h.cumsum(-1)
        return h * 2, h * later  # the second needs what the first product alone gives

    x, w = torch.randn(M, K).bfloat16(), torch.randn(K, N).bfloat16()
    compiled = torch.compile(program, backend="fusepass", options=OPTIONS)
    for mine, theirs in zip(compiled(x, w), program(x, w), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("codegen", ["eager-decomposed", "inductor"])
def test_two_sizes_that_vary(codegen: str) -> None:
    def program(x: Tensor, w: Tensor, v: Tensor, scale: Tensor) -> Tensor:
        return F.silu(x @ w) * (x @ v) * scale

    weights = [torch.randn(K, N).bfloat16() for _ in range(2)]
    options = {**OPTIONS, "codegen": codegen}
    compiled = torch.compile(program, backend="fusepass", options=options, dynamic=True)
    for batch, length in ((3, 5), (4, 9), (7, 2)):
        x, scale = torch.randn(batch, length, K).bfloat16(), torch.rand(batch, length, 1).bfloat16()
        given = x, *weights, scale
        torch.testing.assert_close(compiled(*given), program(*given), rtol=2e-2, atol=2e-2)
    assert applied(compiled) == {"gated_gemm": 1}


def test_every_rounding_wanted() -> None:
    """With Inductor's emulate_precision_casts nothing may go from operation to operation in fp32."""
    module, x = Gated(F.silu, torch.mul, "").bfloat16(), torch.randn(M, K).bfloat16()
    options = {"candidate": "reference", "inductor.emulate_precision_casts": True}
    compiled = torch.compile(module, backend="fusepass", options=options)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x), rtol=2e-2, atol=2e-2)
    assert not applied(compiled)


@pytest.mark.parametrize(
    ("after", "steps"),
    [
        (lambda h, s: h, 0),  # nothing behind it
        (lambda h, s: h * s, 1),
        (lambda h, s: (h * s).softmax(-1), 0),  # Inductor computes h * s with the softmax
        (lambda h, s: h.chunk(2, -1)[0] * 2, 0),
    ],
)
@pytest.mark.parametrize("bias", [False, True])
def test_few_rows_are_taken_alone_too(
    after: Callable[[Tensor, Tensor], Any], steps: int, bias: bool
) -> None:
    """What is slow there is reading the weights, with or without something behind it."""
    module, x = Linear(after, bias=bias), torch.randn(12, K).bfloat16()
    _, found = agrees(module, x, train=False)
    assert found == {"gemm_epilogue": 1}

    def program(x: Tensor, w: Tensor, b: Tensor | None, s: Tensor) -> Any:
        return after(F.linear(x, w, b), s)

    w, b, scale = module.linear.weight, module.linear.bias, module.scale
    given = x, w.detach(), None if b is None else b.detach(), scale.detach()
    graph = make_fx(program, select_decomp_table(), tracing_mode="fake")(*given).graph
    region = gemm_region.region_of(next(filter(is_gemm, graph.nodes)), pairs=False, few=True)
    assert len(region.epilogue.steps) == steps + bias


class Mlp(nn.Module):
    """A gated MLP, whose backward has the derivative of the gate behind one product."""

    def __init__(self, act: Activation) -> None:
        super().__init__()
        self.act = act
        self.gate, self.up = nn.Linear(M, 96, bias=False), nn.Linear(M, 96, bias=False)
        self.down = nn.Linear(96, M, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


@pytest.mark.parametrize("name", ["silu", "gelu_tanh", "sigmoid"])
def test_the_backward_of_a_gated_mlp(name: str) -> None:
    """One kernel gives both gradients; what it needs of the saved values it computes itself.

    The other product with something behind it is the input's gradient: of a sum of two products
    Inductor makes an addmm, to which cuBLAS copies the matrix that is added.
    """
    module, x = Mlp(ACTIVATIONS[name]), torch.randn(M, M).bfloat16()
    _, found = agrees(module, x, train=True, codegen="inductor")
    assert found == {"gated_gemm": 1, "gemm_epilogue": 2}


def test_what_reads_a_result_early_is_moved() -> None:
    """A reader of one result stands between the parts of the region, and in front of an operand."""

    def program(x: Tensor, w: Tensor, v: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        h = x @ w
        early = F.relu(h) @ v
        late = scale.sum(0)
        return early, h * late

    x, w, v = (torch.randn(*size).bfloat16() for size in ((M, K), (K, N), (N, K)))
    scale = torch.rand(4, N).bfloat16()
    compiled = torch.compile(program, backend="fusepass", options=OPTIONS)
    mine, theirs = compiled(x, w, v, scale), program(x, w, v, scale)
    torch.testing.assert_close(mine[0], theirs[0], rtol=2e-2, atol=0.2)
    torch.testing.assert_close(mine[1], theirs[1], rtol=2e-2, atol=2e-2)
    assert applied(compiled)["gemm_epilogue"] == 1


def test_a_bias_alone_is_no_epilogue() -> None:
    """What cuBLAS adds for nothing is left to it; a matrix it copies first is not."""

    def program(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.addmm(b, x, w)

    x, w = torch.randn(M, K).bfloat16(), torch.randn(K, N).bfloat16()
    for b, expected in ((torch.randn(N).bfloat16(), 0), (torch.randn(M, N).bfloat16(), 1)):
        compiled = torch.compile(program, backend="fusepass", options=OPTIONS)
        torch.testing.assert_close(compiled(x, w, b), program(x, w, b), rtol=2e-2, atol=2e-2)
        assert applied(compiled)["gemm_epilogue"] == expected


def compiled_and_eager(
    program: Callable[..., Any], *given: Tensor, codegen: str = "eager-decomposed"
) -> tuple[Any, Any, Any]:
    """What a program gives compiled with the reference, what it gives, and the compiled program."""
    torch._dynamo.reset()
    options = {**OPTIONS, "codegen": codegen}
    compiled = torch.compile(program, backend="fusepass", options=options)
    with torch.no_grad():
        return compiled(*given), program(*given), compiled


def test_an_integer_tensor_of_one_number() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w) * torch.full((), 3.7, dtype=torch.int64)

    given = torch.randn(M, K).bfloat16(), torch.randn(K, N).bfloat16()
    mine, theirs, _ = compiled_and_eager(program, *given)
    torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)


def test_a_long_chain_is_an_operand() -> None:
    def program(x: Tensor, w: Tensor, a: Tensor) -> Tensor:
        for _ in range(120):
            a = (a + 0.001) * 0.999
        return x @ w + a

    given = torch.randn(M, K).bfloat16(), torch.randn(K, N).bfloat16(), torch.randn(M, N).bfloat16()
    mine, theirs, compiled = compiled_and_eager(program, *given)
    torch.testing.assert_close(mine, theirs, rtol=5e-2, atol=5e-2)
    assert applied(compiled) == {"gemm_epilogue": 1}


@pytest.mark.parametrize("codegen", ["eager-decomposed", "inductor"])
@pytest.mark.parametrize("on", [True, False])
def test_one_row_as_autotuning_writes_it(codegen: str, on: bool) -> None:
    """Inductor does so under max-autotune, on a GPU; it is a product all the same."""

    def product(x: Tensor, w: Tensor) -> Tensor:
        return (x.float().unsqueeze(2) * w.float().unsqueeze(0)).sum(1).to(x.dtype)

    def program(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        # relu casts nothing: where a cast follows, torch 2.11 drops the rounding of what a user wrote
        return F.relu(product(x, w)) * product(x, v)

    x, w, v = (torch.randn(*size).bfloat16() for size in ((1, K), (K, N), (K, N)))
    options = {**OPTIONS, "codegen": codegen, "rules": dict.fromkeys(RULES, on)}
    compiled = torch.compile(program, backend="fusepass", options=options)
    torch.testing.assert_close(compiled(x, w, v), program(x, w, v), rtol=2e-2, atol=2e-2)
    assert applied(compiled) == ({"gated_gemm": 1} if on else {})
