"""GEMM regions: what they take in, what comes close and must not, and that nothing changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import fusepass
from fusepass.error_rule import error_bound, half_ulp, passes, rms, rms_error
from fusepass.errors import RewriteFault
from fusepass.graph.gemm_region import Region, is_gemm, region_at
from fusepass.patterns import gemm_region

OPTIONS = {"codegen": "eager-decomposed", "candidate": "reference"}
RULES = ("gated_gemm", "gemm_epilogue")
M, K, N = 72, 16, 24  # more rows than are few
Activation = Callable[[Tensor], Tensor]


class Gated(nn.Module):
    """The first half of a gated MLP, with two weights or one packed."""

    def __init__(self, act: Activation, combine: Callable[..., Tensor], packed: str) -> None:
        super().__init__()
        self.act, self.combine, self.packed = act, combine, packed
        if packed:
            self.both = nn.Linear(K, 2 * N, bias=False)
        else:
            self.gate, self.up = nn.Linear(K, N, bias=False), nn.Linear(K, N, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.packed == "chunk":
            gate, up = self.both(x).chunk(2, dim=-1)
        elif self.packed == "split":
            gate, up = self.both(x).split(N, dim=-1)
        elif self.packed == "slices":
            both = self.both(x)
            gate, up = both[..., :N], both[..., N:]
        elif self.packed == "second":
            up, gate = self.both(x).chunk(2, dim=-1)
        else:
            gate, up = self.gate(x), self.up(x)
        return self.combine(self.act(gate), up)


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Activation] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "squared_relu": lambda x: F.relu(x).square(),
    "leaky": lambda x: F.leaky_relu(x, 0.1),
    "elu": F.elu,
    "hardswish": F.hardswish,
    "clamped": lambda x: x.clamp(-1, 2),
    "bilinear": lambda x: x + 0,
}
COMBINED: dict[str, Callable[..., Tensor]] = {
    "product": torch.mul,
    "difference": lambda a, b: b - a,
    "maximum": torch.maximum,
    "scaled": lambda a, b: 0.5 * a * (b + 1),
}


class Linear(nn.Module):
    """One linear layer, with what stands around it."""

    def __init__(self, after: Callable[[Tensor, Tensor], Any], *, bias: bool = True) -> None:
        super().__init__()
        self.linear, self.after = nn.Linear(K, N, bias=bias), after
        self.scale = nn.Parameter(torch.rand(N) + 0.5)
        self.out = nn.Linear(N, K)

    def forward(self, x: Tensor) -> Any:
        return self.after(self.linear(x), self.scale)


AROUND: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "hardswish": lambda h, s: F.hardswish(h),
    "scaled by a row": lambda h, s: F.relu6(h * s),
    "half of it": lambda h, s: h * 0.5,
    "two results": lambda h, s: (h * 2, F.relu(h)),
    "itself too": lambda h, s: (h, F.hardswish(h) * s),
    # at the bound a rounding decides whether there is a gradient: it stays out of reach
    "clamped, of a power": lambda h, s: (h**2).clamp_max(1e3) - h,
    "a comparison": lambda h, s: torch.where(h > 0.2, h, h.abs() / 4),
    "of its columns": lambda h, s: h / (1 + s.abs()),
    "a number per row": lambda h, s: h * torch.arange(h.shape[-2]).to(h.dtype).unsqueeze(-1),
}
NOT: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "a softmax": lambda h, s: h.softmax(-1),
    "its transpose": lambda h, s: h.transpose(-1, -2) * 2,
    "other columns": lambda h, s: h.roll(1, -1) * 2,
    "a sum": lambda h, s: h.sum(-1),
    "a sort": lambda h, s: h.sort(-1).values,
    "another shape": lambda h, s: h.reshape(-1)[: K * 2].reshape(K, 2) * 2,
    "integers": lambda h, s: h.int() * 2,
    "nothing": lambda h, s: h,
    "too many results": lambda h, s: (h, h * 2, h * 3, h * 4),
}


def applied(compiled: Any) -> Counter[str]:
    report = fusepass.last_report(compiled)
    found = (one.rule for one in report.decisions if one.outcome == "applied" and one.rule in RULES)
    return Counter(found)


def agrees(
    module: nn.Module, x: Tensor, *, train: bool, codegen: str = "eager-decomposed"
) -> tuple[Any, Counter[str]]:
    """Compare with eager by the error rule, gradients included."""
    module = module.to(x.dtype)
    options = {**OPTIONS, "codegen": codegen}
    compiled = torch.compile(module, backend="fusepass", options=options)
    x = x.requires_grad_(train)
    leaves = [x, *module.parameters()] if train else []

    def run(function: Callable[..., Any], x: Tensor) -> list[Tensor]:
        with torch.set_grad_enabled(train):
            outs = function(x)
            outs = list(outs) if isinstance(outs, (tuple, list)) else [outs]
        if train:
            floating = [out for out in outs if out.requires_grad]
            total = sum((out.double() * out.double().cos().detach()).sum() for out in floating)
            given = [x, *module.parameters()]
            outs += [
                g for g in torch.autograd.grad(total, given, allow_unused=True) if g is not None
            ]
        return [out.detach() for out in outs]

    got, eager = run(compiled, x), run(module, x)
    module.double()
    exact = run(module, x.detach().double().requires_grad_(train))
    module.to(x.dtype)
    for mine, theirs, truth in zip(got, eager, exact, strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        assert mine.stride() == theirs.stride()
        if mine.dtype.is_floating_point:
            bound = error_bound(half_ulp(mine.dtype, rms(truth)), rms_error(theirs, truth), None)
            assert passes(rms_error(mine, truth), bound)
        else:
            assert torch.equal(mine, theirs)
    assert len(leaves) == 0 or x.grad is None
    return compiled, applied(compiled)


# Without Inductor's choice of what to save (codegen="eager-decomposed") every value between is saved
# in training: then there are too many results, and only the numbers are compared.


@pytest.mark.parametrize("packed", ["", "chunk", "split", "slices", "second"])
def test_a_gated_pair(packed: str) -> None:
    for train in (False, True):
        torch.compiler.reset()
        x = torch.randn(2, M // 2, K).bfloat16()
        _, found = agrees(Gated(F.silu, torch.mul, packed), x, train=train)
        assert train or found == {"gated_gemm": 1}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_any_activation(name: str, dtype: torch.dtype) -> None:
    for train in (False, True):
        torch.compiler.reset()
        module = Gated(ACTIVATIONS[name], torch.mul, "")
        _, found = agrees(module, torch.randn(M, K).to(dtype), train=train)
        assert train or found == {"gated_gemm": 1}


@pytest.mark.parametrize("name", COMBINED)
def test_any_way_to_combine(name: str) -> None:
    module = Gated(F.gelu, COMBINED[name], "")
    _, found = agrees(module, torch.randn(1, 3, M, K).bfloat16(), train=False)
    assert found == {"gated_gemm": 1}


@pytest.mark.parametrize("name", AROUND)
def test_what_stands_around_one_product(name: str) -> None:
    for train in (False, True):
        torch.compiler.reset()
        _, found = agrees(Linear(AROUND[name]), torch.randn(M, K).bfloat16(), train=train)
        assert train or found == {"gemm_epilogue": 1}


@pytest.mark.parametrize("name", NOT)
def test_what_no_epilogue_is(name: str) -> None:
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
    assert found["gemm_epilogue"] >= 1


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


def test_a_residual_that_comes_later_is_no_operand() -> None:
    def program(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x @ w
        later = h.sum(-1, keepdim=True)
        return h * 2, h * later  # the second needs what the first product alone gives

    x, w = torch.randn(M, K).bfloat16(), torch.randn(K, N).bfloat16()
    compiled = torch.compile(program, backend="fusepass", options=OPTIONS)
    for mine, theirs in zip(compiled(x, w), program(x, w), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)


def region_of(program: Callable[..., Any]) -> Region:
    """The region at the first product of a program of x and two weights, traced to ATen."""
    x, w = torch.randn(M, K).bfloat16(), torch.randn(K, N).bfloat16()
    graph = make_fx(program, select_decomp_table(), tracing_mode="fake")(x, w, w.clone()).graph
    return region_at(next(filter(is_gemm, graph.nodes)), pairs=True)


def test_what_goes_into_generated_code() -> None:
    """Inductor would compute the region there; its own calls are no such code."""

    def saved(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        gate, up = x @ w, x @ v
        return (F.silu(gate) * up) @ w.t(), gate, up

    def reduced(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return (F.silu(x @ w) * (x @ v)).view(3, -1, N).sum(1)

    region = region_of(saved)
    assert len(region.outputs) == 3
    assert not gemm_region._feeds_generated_code(region)
    assert gemm_region._feeds_generated_code(region_of(reduced))


def test_halves_taken_one_after_the_other() -> None:
    """The second half is taken when the first has been computed with."""

    def program(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        both = x @ torch.cat([w, v], 1)
        return F.silu(both[..., :N]) * both[..., N:]

    region = region_of(program)
    assert [part.start for part in region.weights] == [0, N]
    assert not region.operands
    assert region.nodes[-1].target == torch.ops.aten.mul.Tensor


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
    region = gemm_region._region(next(filter(is_gemm, graph.nodes)), pairs=False, few=True)
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


def test_what_is_pulled_in() -> None:
    def alone(x: Tensor, w: Tensor, saved: Tensor) -> Tensor:
        return (x @ w) * (saved.sigmoid() * 2)

    def needed(x: Tensor, w: Tensor, saved: Tensor) -> tuple[Tensor, Tensor]:
        gate = saved.sigmoid()
        return (x @ w) * gate, gate.sum()

    given = torch.randn(M, K).bfloat16(), torch.randn(K, N).bfloat16(), torch.randn(M, N).bfloat16()
    for program, operand in ((alone, "placeholder"), (needed, "call_function")):
        graph = make_fx(program, select_decomp_table(), tracing_mode="fake")(*given).graph
        region = region_at(next(filter(is_gemm, graph.nodes)), pairs=False)
        assert [node.op for node in region.operands] == [operand]
        assert bool(region.pulled) == (program is alone)


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
