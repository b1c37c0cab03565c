"""Products of one operand in one launch: what is taken, what comes close, that nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import fusepass
from fusepass.inductor.passes import rewrite_aten
from fusepass.options import Options
from fusepass.patterns import sibling_gemms
from fusepass.tune import Choice
from tests.patterns.gemm_programs import OPTIONS, agrees, applied

RULE = "sibling_gemms"
K = 16
Around = Callable[["Layers", Tensor], Any]


class Layers(nn.Module):
    """Linear layers of several widths, and what is made of them."""

    def __init__(
        self, around: Around, widths: tuple[int, ...] = (24, 8, 16), *, bias: bool = True
    ) -> None:
        super().__init__()
        self.around = around
        self.layers = nn.ModuleList(nn.Linear(K, width, bias=bias) for width in widths)
        self.packed = nn.Parameter(torch.randn(3 * K, K) / 4)
        self.scale = nn.Parameter(torch.rand(K) + 0.5)

    def forward(self, x: Tensor) -> Any:
        return self.around(self, x)


def found_in(
    module: nn.Module, x: Tensor, *, train: bool = False, codegen: str = "eager-decomposed"
) -> int:
    torch.compiler.reset()
    return agrees(module, x, train=train, codegen=codegen, rules=(RULE,))[1][RULE]


def every(m: Layers, x: Tensor) -> list[Tensor]:
    return [layer(x) for layer in m.layers]


def attention(m: Layers, x: Tensor) -> Tensor:
    q, k, v = (layer(x).unflatten(-1, (2, 8)).transpose(-2, -3) for layer in m.layers)
    return F.scaled_dot_product_attention(q, k, v)


TAKEN: dict[str, Around] = {
    "results": every,
    "attention": lambda m, x: attention(m, x[None]),
    "far apart": lambda m, x: [m.layers[0](x), (x * 2).softmax(-1), m.layers[1](x)],
    "what comes in between": lambda m, x: [
        y := m.layers[0](x).softmax(-1),
        (m.layers[1](x) @ y[:8, :8]).softmax(-1),
    ],
    "slices of one weight": lambda m, x: [x @ m.packed[i * K : (i + 1) * K].t() for i in range(3)],
    "a scaled bias": lambda m, x: [
        torch.addmm(m.scale, x, m.packed[:K].t(), beta=0.5),
        m.layers[0](x),
    ],
    "a norm behind": lambda m, x: (
        [F.rms_norm(layer(x), (8,)) for layer in m.layers[1:2]] + [m.layers[0](x)]
    ),
    "of a tensor that is made": lambda m, x: every(m, x.softmax(-1)),
    "one of them with more": lambda m, x: [*every(m, x), F.hardswish(x @ m.packed.t())],
    "a cast weight": lambda m, x: [m.layers[0](x), x @ m.packed.float().to(x.dtype).t()],
    "a cast of x for each": lambda m, x: [
        x.float().to(x.dtype) @ m.packed[i * 8 : (i + 1) * 8].t() for i in range(3)
    ],
    "a part of x for each": lambda m, x: [x[1:] @ m.packed[:8].t(), x[1:] @ m.packed[8:24].t()],
    "one is read twice": lambda m, x: [y := m.layers[0](x), y.t(), m.layers[1](x)],
}


def layers(name: str) -> Layers:
    return Layers(TAKEN[name], (16, 16, 16) if name == "attention" else (24, 8, 16))


@pytest.mark.sampled(3)  # each of them once, in one way or another
@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [8, 72])  # a product of one row is none on the CPU
def test_what_is_taken(name: str, dtype: torch.dtype, rows: int) -> None:
    assert found_in(layers(name), torch.randn(rows, K).to(dtype)) == 1


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(2, 9), (1, 4, 3)])
def test_other_shapes_of_x(shape: tuple[int, ...], bias: bool) -> None:
    """Each layer makes a view of its own of x then."""
    x = torch.randn(*shape, K).bfloat16()
    assert found_in(Layers(every, bias=bias), x) == 1


@pytest.mark.parametrize("name", ["results", "attention", "what comes in between"])
@pytest.mark.parametrize("rows", [9, 72])
def test_gradients(name: str, rows: int) -> None:
    assert found_in(layers(name), torch.randn(rows, K).bfloat16(), train=True) == 1


CLOSE: dict[str, Around] = {
    "one product": lambda m, x: m.layers[0](x),
    "other operands": lambda m, x: [m.layers[0](x), m.layers[1](x * 2), m.layers[2](x + 1)],
    "a weight made of the first": lambda m, x: [y := x @ m.packed[:K].t(), x @ y[:K].t()],
    "a bias made of the first": lambda m, x: [
        y := m.layers[0](x),
        torch.addmm(y[0], x, m.packed[:24].t()),
    ],
    "a weight that is computed": lambda m, x: [
        m.layers[0](x),
        x @ (m.packed[:24] * x.sum()).t(),
    ],
    "other views of x": lambda m, x: [x[1:] @ m.packed[:8].t(), x[:-1] @ m.packed[:8].t()],
    "a bias of one number": lambda m, x: [
        m.layers[0](x),
        torch.addmm(m.scale[:1], x, m.packed[:24].t()),
    ],
    "the other operand": lambda m, x: [m.packed[:, :8] @ x[:8], m.packed[:, 8:] @ x[:8]],
    "a weight that lies otherwise": lambda m, x: [m.layers[0](x), x @ m.packed[:K]],
    "batches": lambda m, x: [x[None] @ m.packed.t()[None], x[None] @ m.packed[:8].t()[None]],
    "one kernel computes more": lambda m, x: [F.hardswish(layer(x)) for layer in m.layers],
    "a gated pair": lambda m, x: F.silu(x @ m.packed[:K].t()) * (x @ m.packed[K : 2 * K].t()),
}


@pytest.mark.parametrize("name", CLOSE)
def test_what_comes_close(name: str) -> None:
    assert found_in(Layers(CLOSE[name]), torch.randn(72, K).bfloat16()) == 0


@pytest.mark.parametrize("write", [True, False])
def test_a_write_in_between(write: bool) -> None:
    """What is read behind it could not be read in front of it."""

    def program(x: Tensor, one: Tensor, other: Tensor) -> list[Tensor]:
        first = x @ one.t()
        if write:
            other.mul_(2)
        return [first, x @ other.t()]

    given = [torch.randn(n, K).bfloat16() for n in (5, 8, 24)]
    gm = make_fx(program, tracing_mode="fake")(*given)
    rewrite_aten(gm.graph, Options(candidate="reference"), ())
    gm.recompile()
    assert ("sibling_gemms" in gm.code) == (not write)
    want = program(*[one.clone() for one in given])
    for got, exact in zip(gm(*given), want, strict=True):
        torch.testing.assert_close(got, exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    assert found_in(Layers(every), torch.randn(5, K).to(dtype)) == 0


@pytest.mark.parametrize("name", ["attention", "a scaled bias", "slices of one weight"])
@pytest.mark.parametrize("train", [False, True])
def test_tf32(name: str, train: bool, tf32: None) -> None:
    assert found_in(layers(name), torch.randn(9, K), train=train) == 1


@pytest.mark.parametrize("shape", [(0, K), (3, 0, K)], ids=str)
def test_no_rows(shape: tuple[int, ...]) -> None:
    assert found_in(Layers(every), torch.randn(shape).bfloat16()) == 0


@pytest.mark.parametrize("count", [8, 9, 10, 17])
def test_many(count: int) -> None:
    """Eight in a launch; one alone stays a product."""
    module = Layers(every, (8,) * count)
    assert found_in(module, torch.randn(3, K).bfloat16()) == {8: 1, 9: 1, 10: 2, 17: 2}[count]


def test_results_are_not_held_beyond_the_bound() -> None:
    module, x = Layers(every, (32, 32, 32, 32)).bfloat16(), torch.randn(64, K).bfloat16()
    for allowed, taken in ((0, 0), (64 * 32 * 2, 2), (3 * 64 * 32 * 2, 1)):
        torch.compiler.reset()
        options = {**OPTIONS, "max_saved_bytes": allowed}
        compiled = torch.compile(module, backend="fusepass", options=options)
        with torch.no_grad():
            compiled(x)
        assert applied(compiled, (RULE,))[RULE] == taken


def test_casts_that_are_made_earlier_count() -> None:
    weights = [torch.randn(32, K) for _ in range(3)]

    def program(x: Tensor) -> list[Tensor]:
        return [x @ weight.bfloat16().t() for weight in weights]

    each, x = 8 * 32 * 2 + 32 * K * 2, torch.randn(8, K).bfloat16()  # a result and a weight
    for allowed, found in (
        (each - 1, []),
        (2 * each - 1, ["2 products"]),
        (2 * each, ["3 products"]),
    ):
        torch.compiler.reset()
        options = {**OPTIONS, "max_saved_bytes": allowed}
        compiled = torch.compile(program, backend="fusepass", options=options)
        for got, want in zip(compiled(x), program(x), strict=True):
            torch.testing.assert_close(got, want)
        decisions = fusepass.last_report(compiled).decisions
        assert [one.reason[:10] for one in decisions if one.rule == RULE] == found


def test_under_autocast() -> None:
    """Each layer casts x, and its own weight."""
    module, x = Layers(every), torch.randn(2, 9, K)
    compiled = torch.compile(module, backend="fusepass", options=OPTIONS)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for got, want in zip(compiled(x), module(x), strict=True):
            torch.testing.assert_close(got, want)
    assert applied(compiled, (RULE,)) == {RULE: 1}


@pytest.mark.filterwarnings("error::fusepass.errors.RewriteFault")
@pytest.mark.parametrize("rows", [True, False], ids=["as rows", "as columns"])
def test_sizes_that_vary(rows: bool) -> None:
    """No guard, and so no second graph."""
    graphs = torch._dynamo.utils.counters["stats"]

    def program(x: Tensor, one: Tensor, other: Tensor) -> list[Tensor]:
        return [x @ one.t(), x @ other.t()] if rows else [x @ one, x @ other]

    compiled = torch.compile(program, backend="fusepass", options=OPTIONS, dynamic=True)
    torch.compiler.reset()
    graphs.clear()
    with torch.no_grad():
        for widths in ((8, 24), (32, 40), (24, 24)):
            given = [torch.randn((n, K) if rows else (K, n)).bfloat16() for n in widths]
            x = torch.randn(9, K).bfloat16()
            for got, want in zip(compiled(x, *given), program(x, *given), strict=True):
                torch.testing.assert_close(got, want)
    assert graphs["unique_graphs"] == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite(value: float) -> None:
    module, x = Layers(every).bfloat16(), torch.randn(5, K).bfloat16()
    x[2, 3] = value
    with torch.no_grad():
        module.layers[1].weight[0, 3] = 0  # times infinity
        compiled = torch.compile(module, backend="fusepass", options=OPTIONS)
        for got, want in zip(compiled(x), module(x), strict=True):
            torch.testing.assert_close(got, want, equal_nan=True)
    assert applied(compiled, (RULE,)) == {RULE: 1}


def test_weights_that_change_between_calls() -> None:
    module, x = Layers(every).bfloat16(), torch.randn(6, K).bfloat16()
    compiled = torch.compile(module, backend="fusepass", options=OPTIONS)
    for _ in range(3):
        with torch.no_grad():
            for got, want in zip(compiled(x), module(x), strict=True):
                torch.testing.assert_close(got, want)
            module.layers[0].weight.data.mul_(0.5)
            module.load_state_dict({k: v + 0.25 for k, v in module.state_dict().items()})
    assert applied(compiled, (RULE,)) == {RULE: 1}


def test_rows_that_vary() -> None:
    module = Layers(every).bfloat16()
    compiled = torch.compile(module, backend="fusepass", options=OPTIONS)
    for rows in (5, 70, 2):
        x = torch.randn(rows, K).bfloat16()
        torch._dynamo.mark_dynamic(x, 0)
        with torch.no_grad():
            for got, want in zip(compiled(x), module(x), strict=True):
                torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    assert applied(compiled, (RULE,)) == {RULE: 1}


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("error::fusepass.errors.InductorFault")
@pytest.mark.parametrize("name", ["results", "what comes in between"])
@pytest.mark.parametrize("train", [False, True])
def test_through_inductor(name: str, train: bool) -> None:
    """Also where it generates code that reads the results, and says what it reads."""
    x = torch.randn(9, K).bfloat16()
    assert found_in(layers(name), x, train=train, codegen="inductor") == 1


def test_switched_off() -> None:
    compiled = torch.compile(
        Layers(every).bfloat16(), backend="fusepass", options={**OPTIONS, "rules": {RULE: False}}
    )
    with torch.no_grad():
        compiled(torch.randn(5, K).bfloat16())
    found = {d.reason_code for d in fusepass.last_report(compiled).decisions if d.rule == RULE}
    assert found == {"rule_off"}


@pytest.mark.gpu
@pytest.mark.filterwarnings("error::fusepass.errors.InductorFault")
@pytest.mark.parametrize("name", ["attention", "what comes in between"])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("rows", [24, 304])
@pytest.mark.parametrize("train", [False, True])
def test_on_a_device(
    name: str, rows: int, mode: str, train: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken whatever it costs, through Inductor."""

    def first_of_ours(problem: Any, options: Any, candidates: Any) -> Choice:
        return Choice(candidates[1].name, {}, "forced", "the test asks for it")

    def results(module: Callable[[Tensor], Any], given: Tensor) -> Tensor:
        with torch.set_grad_enabled(train):
            made = module(given)
        return made if isinstance(made, Tensor) else torch.cat([one.flatten() for one in made])

    monkeypatch.setattr(sibling_gemms, "choose", first_of_ours)
    module, x = layers(name).cuda().half(), torch.randn(rows, K).cuda().half()
    wide = layers(name).cuda().double()
    wide.load_state_dict(module.state_dict())
    compiled = torch.compile(module, backend="fusepass", mode=mode)
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        given, exact = (one.clone().requires_grad_(train) for one in (x, x.double()))
        got, want = results(compiled, given), results(wide, exact)
        torch.testing.assert_close(got.double(), want, rtol=2e-3, atol=2e-3)
        if train:
            module.zero_grad()
            got.square().sum().backward()
            want.square().sum().backward()
            assert given.grad is not None
            torch.testing.assert_close(given.grad.double(), exact.grad, rtol=1e-2, atol=1e-2)
    assert applied(compiled, (RULE,)) == {RULE: 1}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_one_row_on_a_device(dtype: torch.dtype, tf32: None) -> None:
    """Measured; whatever wins, and also where a row is a vector to Inductor."""
    module = Layers(every, (512, 128, 128)).cuda().to(dtype)
    compiled = torch.compile(module, backend="fusepass")
    with torch.no_grad():
        x = torch.randn(1, K).cuda().to(dtype)
        for got, want in zip(compiled(x), module(x), strict=True):
            torch.testing.assert_close(got, want, rtol=2e-3, atol=2e-3)
    found = [d for d in fusepass.last_report(compiled).decisions if d.rule == RULE]
    assert [one.reason_code for one in found] in (["measured"], ["slower"])
