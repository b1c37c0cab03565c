"""Many small kernels in one: through whole programs, with what Inductor makes of the rest."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from fusepass.fusion import kernel_gate
from fusepass.inductor import device_proof
from fusepass.inductor.passes import rewrite_aten
from fusepass.options import Options
from fusepass.patterns import horizontal
from fusepass.report.decision import Outcome
from fusepass.rewrite.registry import default_rules
from tests.patterns.conv_programs import AROUND, CHANNELS, Layer, applied

REFERENCE = {"candidate": "reference"}
SIZES = [3, 64, 100, 777] * 5


def updated(ps: list[Tensor], gs: list[Tensor]) -> list[Tensor]:
    pairs = zip(ps, gs, strict=True)
    return [p * 0.99 - 0.01 * g * torch.sigmoid(p) for p, g in pairs]


def mixed(ps: list[Tensor], gs: list[Tensor]) -> list[Tensor]:
    return [F.silu(p) if i % 3 else (p > 0) | (p < -1) for i, p in enumerate([*ps, *gs])]


def in_two_steps(ps: list[Tensor], gs: list[Tensor]) -> list[Tensor]:
    return [((p * g) @ g).relu() for p, g in zip(ps, gs, strict=True)]


VECTORS = [(size,) for size in SIZES]
PROGRAMS: list[tuple[Callable[..., Any], list[tuple[int, ...]]]] = [
    (updated, VECTORS),
    (mixed, VECTORS),
    (in_two_steps, [(16, 16)] * 20),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("program", "shapes"), PROGRAMS)
@pytest.mark.parametrize("codegen", ["inductor", "eager-decomposed"])
def test_values(program: Callable[..., Any], shapes: list[tuple[int, ...]], codegen: str) -> None:
    ps, gs = ([torch.randn(shape) for shape in shapes] for _ in range(2))
    ps[3].view(-1)[1], gs[2].view(-1)[0] = float("nan"), float("inf")
    options = {**REFERENCE, "codegen": codegen}
    compiled = torch.compile(program, backend="fusepass", options=options)
    with torch.no_grad():
        for got, want in zip(compiled(ps, gs), program(ps, gs), strict=True):
            assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride())
            torch.testing.assert_close(got, want, equal_nan=True)
    assert applied(compiled, "horizontal") == 1


# --- inputs that are overwritten ------------------------------------------------------------------


def averaged(ps: list[Tensor], gs: list[Tensor]) -> None:
    for p, g in zip(ps, gs, strict=True):
        p.mul_(0.9).add_(g, alpha=0.1)


def copied(ps: list[Tensor], gs: list[Tensor]) -> None:
    for p, g in zip(ps, gs, strict=True):
        p.copy_(g.sigmoid() * p)


def stepped(ps: list[Tensor], gs: list[Tensor]) -> None:
    """Adam's, with its averages among ``gs``."""
    third = len(gs) // 3
    for p, m, v, g in zip(ps, gs, gs[third:], gs[2 * third :], strict=False):
        m.lerp_(g, 0.1)
        v.mul_(0.99).addcmul_(g, g, value=0.01)
        p.addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-3)


def exchanged(ps: list[Tensor], gs: list[Tensor]) -> None:
    for p, g in zip(ps, gs, strict=True):
        old = p * 2
        p.copy_(g + 1)
        g.copy_(old)


def returned(ps: list[Tensor], gs: list[Tensor]) -> list[Tensor]:
    return [p.mul_(0.9).sub_(g) for p, g in zip(ps, gs, strict=True)]


def read_before(ps: list[Tensor], gs: list[Tensor]) -> list[Tensor]:
    """Products of what is there before, and sums of what is there afterwards."""
    made = [p @ g for p, g in zip(ps, gs, strict=True)]
    averaged(ps, gs)
    return [*made, *(p.sum() for p in ps)]


def a_few_read_before(ps: list[Tensor], gs: list[Tensor]) -> list[Tensor]:
    """Too few for a kernel of their own: Inductor computes them, of what is there before."""
    made = [p.exp() for p in ps[:3]]
    averaged(ps, gs)
    return made


def many_read_before(ps: list[Tensor], gs: list[Tensor]) -> list[Tensor]:
    made = [p.exp() for p in ps]
    averaged(ps, gs)
    return made


def of_products(ps: list[Tensor], gs: list[Tensor]) -> list[Tensor]:
    made = [(p @ g).relu() for p, g in zip(ps, gs, strict=True)]
    for p, x in zip(ps, made, strict=True):
        p.sub_(x)
    return [x @ x for x in made]


def each_reads_the_last(ps: list[Tensor], gs: list[Tensor]) -> None:
    """Each what the last one has become, so that one member would have to compute all."""
    for i, (p, g) in enumerate(zip(ps, gs, strict=True)):
        p.add_(ps[max(i - 1, 0)] * g)


def read_by_some_and_replaced(ps: list[Tensor], gs: list[Tensor]) -> None:
    """By what lies otherwise, so by Inductor, whose copies stand in front of the others."""
    for i, (p, g) in enumerate(zip(ps[8:], gs[8:], strict=True)):
        p.add_(ps[i % 8] * g)
    for p, g in zip(ps[:8], gs[:8], strict=True):
        p.copy_(g.t())


def read_by_all_and_replaced(ps: list[Tensor], gs: list[Tensor]) -> None:
    """One kernel of Inductor's, for what all read."""
    first = ps[0]
    for p, g in zip(ps[1:], gs[1:], strict=True):
        p.add_(first * g)
    first.copy_(gs[0].t())


def in_rows(ps: list[Tensor], gs: list[Tensor]) -> None:
    for p, g in zip(ps, gs, strict=True):
        p.view(-1).mul_(0.5)
        p[0].add_(g[0])


SQUARES = [(16, 16)] * 12
OVERWRITING: list[tuple[Callable[..., Any], list[tuple[int, ...]], int]] = [
    (averaged, VECTORS, 1),
    (copied, VECTORS, 1),
    (stepped, VECTORS * 3, 1),
    (exchanged, VECTORS, 1),
    (returned, VECTORS, 1),
    (read_before, SQUARES, 0),
    (a_few_read_before, VECTORS, 1),
    (many_read_before, VECTORS, 1),
    (of_products, SQUARES, 0),
    (each_reads_the_last, SQUARES, 0),
    (in_rows, SQUARES, 0),
    (read_by_all_and_replaced, SQUARES, 0),
    (read_by_some_and_replaced, SQUARES * 2, 1),
]


def both(
    program: Callable[..., Any], given: list[list[Tensor]], options: dict[str, Any]
) -> tuple[Any, list[list[Tensor]]]:
    """A compiled program, and its inputs after two calls that agree with eager's."""
    mine = [[one.clone() for one in some] for some in given]
    compiled = torch.compile(program, backend="fusepass", options=options)
    with torch.no_grad():
        for _ in range(2):
            got, want = compiled(*mine), program(*given)
            for one, other in zip(got or [], want or [], strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, equal_nan=True)
            for some, others in zip(mine, given, strict=True):
                for one, other in zip(some, others, strict=True):
                    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, equal_nan=True)
    return compiled, mine


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("program", "shapes", "found"), OVERWRITING)
@pytest.mark.parametrize("codegen", ["inductor", "eager-decomposed"])
def test_inputs_that_are_overwritten(
    program: Callable[..., Any], shapes: list[tuple[int, ...]], found: int, codegen: str
) -> None:
    given = [[torch.rand(shape) for shape in shapes] for _ in range(2)]
    given[0][3].view(-1)[1], given[1][2].view(-1)[0] = float("nan"), float("inf")
    if program is stepped:
        given[0] = given[0][: len(shapes) // 3]
    compiled, _ = both(program, given, {**REFERENCE, "codegen": codegen})
    if codegen == "inductor":  # what is run op by op returns what inputs become
        assert applied(compiled, "horizontal") == found


@pytest.mark.gpu
@pytest.mark.parametrize("program", [updated, averaged, copied, stepped, exchanged, returned])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_device(program: Callable[..., Any], mode: str, dtype: torch.dtype) -> None:
    """One launch for all of them, and inputs as eager leaves them."""
    given = [[torch.rand(size, device="cuda") for size in SIZES * 3] for _ in range(2)]
    if program is stepped:
        given[0] = given[0][: len(SIZES)]
    given = [[one.to(dtype) for one in some] for some in given]
    torch._dynamo.reset()
    mine = [[one.clone() for one in some] for some in given]
    exact = [[one.double() for one in some] for some in given]
    compiled = torch.compile(program, backend="fusepass", options={"mode": mode})
    with torch.no_grad():
        for _ in range(3):
            got, want = compiled(*mine), program(*exact)
            pairs = [*zip(got or [], want or [], strict=True)]
            pairs += [
                pair for some in zip(mine, exact, strict=True) for pair in zip(*some, strict=True)
            ]
            for one, other in pairs:
                tolerance = 1e-5 if dtype is torch.float32 else 0.03
                torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance)
    assert applied(compiled, "horizontal") == 1
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        with torch.no_grad():
            compiled(*mine)
        torch.cuda.synchronize()
    kernels = [one.name for one in profile.events() if "fusepass_horizontal" in one.name]
    assert len(kernels) == 1


def test_a_gpu_whose_results_are_only_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of what a copy returns, which is all that such a graph returns."""
    monkeypatch.setattr(horizontal, "prepare", lambda *given: None)
    monkeypatch.setattr(kernel_gate, "gate_reason", lambda *given: None)
    monkeypatch.setattr(device_proof, "first_failure", lambda *given: None)
    graph = fx.Graph()
    with FakeTensorMode():
        value = torch.empty(64, device="cuda")
    inputs = [graph.placeholder(f"x{i}") for i in range(20)]
    halves = [graph.call_function(torch.ops.aten.mul.Tensor, (x, 0.5)) for x in inputs]
    for node in [*inputs, *halves]:
        node.meta["val"] = value
    pairs = zip(inputs, halves, strict=True)
    graph.output(tuple(graph.call_function(torch.ops.aten.copy_.default, two) for two in pairs))
    gm = fx.GraphModule(torch.nn.Module(), graph)
    (decision,) = rewrite_aten(gm.graph, Options(), default_rules())
    assert (decision.rule, decision.outcome) == ("horizontal", Outcome.APPLIED)
    assert [str(node.target) for node in gm.graph.nodes if node.op == "call_function"] == [
        "fusepass.horizontal_into.default"
    ]


def test_inputs_that_share_memory() -> None:
    """Overlapping, or the same one twice."""
    for make in (lambda x: [x, x], lambda x: [x[:6], x[3:]], lambda x: [x.view(3, 3)[0], x]):
        results = []
        for compiled in (False, True):
            torch._dynamo.reset()
            ps = [one for i in range(10) for one in make(torch.arange(9.0) + i)]
            gs = [torch.ones_like(p) * i for i, p in enumerate(ps)]
            call = torch.compile(averaged, backend="fusepass", options=REFERENCE)
            with torch.no_grad():
                (call if compiled else averaged)(ps, gs)
            results.append(ps)
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other)


OPERATIONS: list[Callable[[Tensor, Tensor, Tensor], Any]] = [
    lambda x, y, z: x.mul_(0.5),
    lambda x, y, z: x.add_(y, alpha=0.5),
    lambda x, y, z: x.sub_(y * z),
    lambda x, y, z: x.copy_(y.tanh()),
    lambda x, y, z: x.lerp_(z, 0.3),
    lambda x, y, z: x.clamp_(-1, 1),
    lambda x, y, z: x.add_(y.mean()),
    lambda x, y, z: x.add_(y @ z),
    lambda x, y, z: None,
    lambda x, y, z: x.add_(y[0].clone()),
    lambda x, y, z: x[1:].mul_(0.7),
    lambda x, y, z: x.copy_(z.t()),
]


@pytest.mark.sampled(20)
@pytest.mark.parametrize("seed", range(20))
def test_random_writes(seed: int) -> None:
    dice = random.Random(seed)
    count = 30
    among = OPERATIONS if seed % 2 else OPERATIONS[:-3]  # without views
    turns = [(dice.choice(among), *dice.sample(range(count), k=3)) for _ in range(40)]
    turns += [(OPERATIONS[dice.randrange(4)], i, i, dice.randrange(count)) for i in range(count)]
    returned = dice.sample(range(count), 3)

    def program(xs: list[Tensor]) -> list[Tensor]:
        for operation, i, j, k in turns:
            operation(xs[i], xs[j], xs[k])
        return [xs[i] * 2 if i % 2 else xs[i] for i in returned]

    given = [[torch.randn(4, 4) for _ in range(count)]]
    if torch.__version__ < "2.13" and not _right_by_inductor(program, given):
        pytest.skip("this torch's Inductor itself reads an input of that program too late")
    torch._dynamo.reset()
    both(program, given, REFERENCE)


def _right_by_inductor(program: Callable[..., Any], given: list[list[Tensor]]) -> bool:
    mine, right = ([one.clone() for one in given[0]] for _ in range(2))
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(program)(mine)
        program(right)
    return all(map(torch.allclose, mine, right))


def test_weights_of_many_convolutions() -> None:
    module = nn.Sequential(*(Layer(AROUND["shortcut"]) for _ in range(4))).eval()
    x = torch.randn(2, CHANNELS, 6, 5)
    compiled = torch.compile(module, backend="fusepass", options=REFERENCE)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-4)
        module[0].norm.running_var.mul_(2)  # type: ignore[union-attr]
        torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-4)
    assert applied(compiled) == 4
    assert applied(compiled, "horizontal") == 1


def test_too_few_and_switched_off() -> None:
    ps, gs = ([torch.randn(size) for size in SIZES] for _ in range(2))
    off = {**REFERENCE, "rules": {"horizontal": False}}
    for options, count in ((REFERENCE, 3), (off, len(ps)), ({}, len(ps))):
        torch.compiler.reset()
        compiled = torch.compile(updated, backend="fusepass", options=options)
        with torch.no_grad():
            compiled(ps[:count], gs[:count])
        assert applied(compiled, "horizontal") == 0
