"""One rule, every spelling: how often it acts, what goes and comes, and the numbers."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

import fusepass
from fusepass.report.decision import Outcome

from .linear_programs import RELU, RELU_NEAR_MISSES, Spelling, Weights

EXAMPLE = (torch.randn(4, 6), torch.randn(8, 6), torch.randn(8))


@torch.library.custom_op("fusepass_test::linear_relu", mutates_args=())
def linear_relu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.relu(F.linear(x, w, b))


@linear_relu.register_fake
def _(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], w.shape[0]))


def _setup(ctx: Any, inputs: Any, output: Tensor) -> None:
    x, w, _ = inputs
    ctx.save_for_backward(x, w, output)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, w, out = ctx.saved_tensors
    grad = grad * (out > 0)
    rows = grad.reshape(-1, grad.shape[-1])
    return grad @ w, rows.t() @ x.reshape(-1, x.shape[-1]), rows.sum(0)


linear_relu.register_autograd(_backward, setup_context=_setup)
linear_relu.register_autocast("cpu", torch.bfloat16)

RULE = fusepass.Rule(
    "test_linear_relu",
    lambda x, w, b: F.relu(F.linear(x, w, b)),
    lambda x, w, b: linear_relu(x, w, b),
    EXAMPLE,
)


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[fx.GraphModule]]:
    """Graphs as they are handed on."""
    from fusepass import backend

    seen: list[fx.GraphModule] = []
    original = backend.hand_off

    def hand_off(gm: fx.GraphModule, *args: Any) -> Any:
        seen.append(gm)
        return original(gm, *args)

    monkeypatch.setattr(backend, "hand_off", hand_off)
    with fusepass.rules(RULE):
        yield seen


def calls(graphs: list[fx.GraphModule]) -> list[str]:
    nodes = [n for gm in graphs for n in gm.graph.nodes if n.op.startswith("call_")]
    return [str(getattr(n.target, "__name__", n.target)) for n in nodes]


def compare(spelling: Spelling, *, grad: bool) -> Any:
    """Run eager and compiled; return the report."""
    model, other = Weights(spelling.run), Weights(spelling.run)
    options = {"codegen": "eager"}
    dynamic = True if spelling.dynamic else None
    compiled = torch.compile(other, backend="fusepass", options=options, dynamic=dynamic)
    sizes = [spelling.shape]
    if spelling.dynamic:
        sizes.append((spelling.shape[0] + 3, *spelling.shape[1:]))
    for size in sizes:
        x = torch.randn(size, generator=torch.Generator().manual_seed(0))
        inputs = [x.clone().requires_grad_(grad) for _ in range(2)]
        context = (
            torch.autocast("cpu", dtype=torch.bfloat16)
            if spelling.autocast
            else contextlib.nullcontext()
        )
        with context, torch.set_grad_enabled(grad):
            torch.manual_seed(3)
            wanted = model(inputs[0])
            torch.manual_seed(3)
            got = compiled(inputs[1])
        same(got, wanted)
        if grad:
            total(wanted).backward()
            total(got).backward()
            same(inputs[1].grad, inputs[0].grad, exact=False)
            for a, b in zip(other.parameters(), model.parameters(), strict=True):
                assert (a.grad is None) == (b.grad is None)
                same(a.grad, b.grad, exact=False)
    return fusepass.last_report(compiled)


def total(value: Any) -> Tensor:
    parts = value if isinstance(value, tuple) else (value,)
    return sum(part.float().sin().sum() for part in parts)  # type: ignore[return-value]


def same(got: Any, wanted: Any, *, exact: bool = True) -> None:
    if wanted is None:
        return
    for a, b in zip(*((v if isinstance(v, tuple) else (v,)) for v in (got, wanted)), strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        tolerance = {"rtol": 1e-5, "atol": 1e-5} if not exact else {}
        torch.testing.assert_close(a, b, **tolerance)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(("spelling", "count"), RELU, ids=lambda v: getattr(v, "name", None))
def test_spelling(spelling: Spelling, count: int, grad: bool, graphs: list[fx.GraphModule]) -> None:
    report = compare(spelling, grad=grad)
    applied = [d for d in report.decisions if d.rule == RULE.name and d.outcome is Outcome.APPLIED]
    found = calls(graphs)
    ours = [name for name in found if name == "linear_relu.default" or name == "linear_relu"]
    assert len(applied) == count * len(graphs), report
    assert len(ours) == count * len(graphs), found
    assert not {"relu", "relu_", "linear", "addmm", "mm", "matmul"} & set(found)
    assert all(d.file.endswith("linear_programs.py") and d.line for d in applied)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(
    ("spelling", "code"), RELU_NEAR_MISSES, ids=lambda v: getattr(v, "name", v)
)
def test_near_miss(spelling: Spelling, code: str, grad: bool, graphs: list[fx.GraphModule]) -> None:
    report = compare(spelling, grad=grad)
    ours = [d for d in report.decisions if d.rule == RULE.name]
    assert [d.outcome for d in ours] == [Outcome.REJECTED]
    assert ours[0].reason_code.value == code, ours[0].reason
    assert "linear_relu" not in " ".join(calls(graphs))


def test_spellings_and_near_misses_are_many() -> None:
    assert len({s.name for s, _ in RELU}) >= 16
    assert len({s.name for s, _ in RELU_NEAR_MISSES}) >= 14


# ---- other forms of rules ------------------------------------------------------------------------


def one(rule: fusepass.Rule, program: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
    """Compile with one rule, compare with eager, and return what the report says of the rule."""
    with fusepass.rules(rule):
        compiled = torch.compile(
            program, backend="fusepass", options={"codegen": "eager", **options}
        )
        with torch.no_grad():
            same(compiled(*inputs), program(*inputs), exact=False)
        decisions = fusepass.last_report(compiled).decisions
    found = [(d.outcome.value, d.reason_code.value) for d in decisions if d.rule == rule.name]
    # These rules put in other words for the same: that they match themselves is no news here.
    return [pair for pair in found if pair != ("rejected", "repeat")]


APPLIED = ("applied", "proved")


def rms(x: Tensor, w: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


RMS = fusepass.Rule(
    "test_rms",
    rms,
    lambda x, w, eps: F.rms_norm(x, (x.shape[-1],), w, eps),
    (torch.randn(3, 5), torch.randn(5), 1e-5),
)


@pytest.mark.parametrize("eps", [1e-5, 1e-2, 1.0])
@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 5), (7, 1, 2, 5)])
def test_scalars_bind(eps: float, shape: tuple[int, ...]) -> None:
    w = torch.randn(5)
    assert one(RMS, lambda x: rms(x, w, eps), torch.randn(shape)) == [APPLIED]


def test_square_is_a_product() -> None:
    w = torch.randn(5)

    def by_hand(x: Tensor) -> Tensor:
        scale = torch.rsqrt(0.1 + torch.mean(x * x, dim=1, keepdim=True))
        return w * (scale * x)

    assert one(RMS, by_hand, torch.randn(3, 5)) == [APPLIED]


def test_a_constant_in_the_pattern_must_be_equal() -> None:
    rule = fusepass.Rule(
        "test_half", lambda x: (x * 0.5).sin(), lambda x: (x / 2).sin(), EXAMPLE[:1]
    )
    x = torch.randn(3, 4)
    assert one(rule, lambda x: torch.sin(0.5 * x), x) == [APPLIED]
    assert one(rule, lambda x: torch.sin(0.25 * x), x) == [("rejected", "flavour")]


def test_a_dimension_counted_from_the_end_stays_there() -> None:
    rule = fusepass.Rule(
        "test_last",
        lambda x: x.exp().sum(-1, keepdim=True),
        lambda x: x.exp().sum(-1, True),
        EXAMPLE[:1],
    )
    x = torch.randn(2, 3, 4)
    assert one(rule, lambda x: x.exp().sum(2, keepdim=True), x) == [APPLIED]
    assert one(rule, lambda x: x.exp().sum(1, keepdim=True), x) == [("rejected", "flavour")]
    assert one(rule, lambda x: x.exp().sum((-1,), keepdim=False), x) == [("rejected", "flavour")]


def test_sizes_are_not_baked_in() -> None:
    rule = fusepass.Rule(
        "test_heads",
        lambda x, h: x.view(x.shape[0], x.shape[1], h, -1).transpose(1, 2),
        lambda x, h: x.unflatten(-1, (h, -1)).movedim(1, 2),
        (torch.randn(2, 3, 8), 4),
    )
    heads = lambda x: x.view(x.shape[0], x.shape[1], 2, -1).transpose(1, 2)  # noqa: E731
    assert one(rule, heads, torch.randn(5, 7, 6)) == [APPLIED]
    merged = lambda x: x.view(x.shape[0] * 7, 1, 2, -1).transpose(1, 2)  # noqa: E731
    assert one(rule, merged, torch.randn(5, 7, 6)) == [("rejected", "shape_mismatch")]


def test_several_outputs() -> None:
    def both(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ w
        return y, F.relu(y)

    rule = fusepass.Rule(
        "test_both",
        both,
        lambda x, w: (torch.mm(x, w), torch.mm(x, w).clamp(min=0)),
        (torch.randn(3, 4), torch.randn(4, 5)),
    )
    x, w = torch.randn(2, 4), torch.randn(4, 3)
    assert one(rule, lambda x, w: (lambda y: (y.relu() + 1, y * 2))(torch.matmul(x, w)), x, w) == [
        APPLIED
    ]
    assert one(rule, lambda x, w: (lambda y: y.relu() + y.t().sum())(torch.matmul(x, w)), x, w) == [
        APPLIED
    ]


def test_an_operand_computed_from_an_output_is_a_cycle() -> None:
    rule = fusepass.Rule(
        "test_pair",
        lambda x, y: (x.sin(), x.cos() * y),
        lambda x, y: (torch.sin(x), torch.cos(x).mul(y)),
        (torch.randn(3), torch.randn(3)),
    )
    x = torch.randn(3)
    assert one(rule, lambda x: (x.sin(), x.cos() * (x + 1)), x) == [APPLIED]

    def cycle(x: Tensor) -> Tensor:
        s = x.sin()
        return x.cos() * (s + 1)

    assert one(rule, cycle, x) == [("rejected", "cycle")]


def test_commuted_operands_are_tried_all_the_way() -> None:
    rule = fusepass.Rule(
        "test_deep",
        lambda a, b, c: (a.sin() * b + c.cos() * a).tanh(),
        lambda a, b, c: torch.tanh(torch.sin(a) * b + torch.cos(c) * a),
        (torch.randn(3), torch.randn(3), torch.randn(3)),
    )
    a, b, c = torch.randn(3, 4).unbind()
    program = lambda a, b, c: (a * c.cos() + b * a.sin()).tanh()  # noqa: E731
    assert one(rule, program, a, b, c) == [APPLIED]


def test_work_is_bounded() -> None:
    """A long sum of products in which every operand could be every other one."""

    def long_sum(*xs: Tensor) -> Tensor:
        total = xs[0] * xs[1]
        for i in range(2, len(xs) - 1):
            total = xs[i] * xs[i + 1] + total
        return total

    example = tuple(torch.randn(3) for _ in range(14))
    names = ", ".join(f"x{i}" for i in range(14))
    scope: dict[str, Any] = {"f": long_sum}
    exec(f"def pattern({names}): return f({names})", scope)
    rule = fusepass.Rule("test_long", scope["pattern"], scope["pattern"], example)
    inputs = [torch.randn(3) for _ in range(14)]
    program = lambda *xs: long_sum(*xs[:-1], xs[0])  # noqa: E731
    assert one(rule, program, *inputs)[0][0] in ("rejected", "applied")


def test_a_nested_graph_is_searched_too() -> None:
    rule = fusepass.Rule("test_sin", lambda x: x.sin() + 1, lambda x: 1 + torch.sin(x), EXAMPLE[:1])

    def program(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x - 1, (x,))

    assert APPLIED in one(rule, program, torch.randn(4, 6))


def test_no_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert one(RMS, lambda x: rms(x, x[0], 0.1), torch.randn(3, 5)) == [APPLIED]


# ---- where and how it is compiled ----------------------------------------------------------------


def test_inference_mode() -> None:
    model = Weights(lambda m, x: F.relu(m.linear(x)))
    compiled = torch.compile(model, backend="fusepass", options={"codegen": "eager"})
    with torch.inference_mode():
        x = torch.randn(4, 6)
        torch.testing.assert_close(compiled(x), model(x))
    decisions = fusepass.last_report(compiled).decisions
    assert [d.outcome for d in decisions if d.rule == RULE.name] == [Outcome.APPLIED]


def test_an_operand_written_before_is_an_operand() -> None:
    def program(m: Weights, x: Tensor) -> Tensor:
        x.mul_(2)
        return F.relu(m.linear(x))

    model = Weights(program)
    compiled = torch.compile(model, backend="fusepass", options={"codegen": "eager"})
    x, y = torch.ones(4, 6), torch.ones(4, 6)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(y))
    assert torch.equal(x, y)
    decisions = fusepass.last_report(compiled).decisions
    assert [d.outcome for d in decisions if d.rule == RULE.name] == [Outcome.APPLIED]


def test_neighbours_are_applied_together() -> None:
    """Matches that feed one another, in one round."""
    rule = fusepass.Rule(
        "test_pairs",
        lambda x, y: (x.sin() * y, x.sin() + y),
        lambda x, y: (torch.mul(torch.sin(x), y), y + torch.sin(x)),
        (torch.randn(3, 4), torch.randn(3, 4)),
    )

    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(4):
            s = x.sin()
            x, y = s * y, s + y
        return x, y

    assert one(rule, program, torch.randn(2, 5), torch.randn(2, 5)) == [APPLIED] * 4


def test_graph_breaks_and_branches_beside_rules() -> None:
    def program(m: Weights, x: Tensor) -> Tensor:
        y = F.relu(m.linear(x))
        if y.sum() > 0:
            y = F.relu(F.linear(y[:, :6], m.w, m.b))
        return y

    report = compare(Spelling("branch", program), grad=False)
    outcomes = [d.outcome for d in report.decisions if d.rule == RULE.name]
    assert outcomes == [Outcome.APPLIED] * 2


def test_a_match_does_not_reach_across_the_arms_of_a_branch() -> None:
    def program(m: Weights, x: Tensor) -> Tensor:
        y = m.linear(x)
        if x.sum() > 0:
            y = F.relu(y)
        return y

    report = compare(Spelling("arm", program), grad=False)
    ours = [d.reason_code.value for d in report.decisions if d.rule == RULE.name]
    assert ours == ["extra_user"]


# ---- found by running the corpus of tests/capture with such rules in force -----------------------

PLAIN = (
    fusepass.Rule("test_add", lambda a, s: a + s, torch.add, (torch.randn(3, 4), 0.7)),
    fusepass.Rule("test_mul", lambda a, s: a * s, torch.mul, (torch.randn(3, 4), 0.7)),
    fusepass.Rule(
        "test_where",
        lambda p, a, b: torch.where(p, a, b),
        lambda p, a, b: a.where(p, b),
        (torch.tensor(True), torch.randn(3, 4), torch.randn(3, 4)),
    ),
)


def written_after_its_replacement(x: Tensor) -> Tensor:
    y = torch.where(x.sum() > 0, x * 2, x * 3)
    y.add_(1)
    y[0] = 0
    return y


def written_through_a_view_of_a_replacement(x: Tensor) -> Tensor:
    y = torch.where(x.sum() > 0, x * 2, x * 3)
    y.t().add_(1)
    return y


def two_views(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    a, b = y.view(-1), y.t()
    a.mul_(2)
    b.add_(3)
    return y, b * 2


@pytest.mark.parametrize(
    "program", [written_after_its_replacement, written_through_a_view_of_a_replacement, two_views]
)
def test_writes_to_what_a_rule_made(program: Callable[..., Any]) -> None:
    with fusepass.rules(*PLAIN):
        compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
        x = torch.randn(3, 4)
        same(compiled(x), program(x))
        assert Outcome.APPLIED in {d.outcome for d in fusepass.last_report(compiled).decisions}


def test_a_number_drawn_by_python() -> None:
    import random

    def program(x: Tensor) -> Tensor:
        return x * 2 + random.random()

    with fusepass.rules(*PLAIN):
        compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
        x = torch.randn(3, 4)
        random.seed(5)
        got = compiled(x)
        random.seed(5)
        same(got, program(x))
