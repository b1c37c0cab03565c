"""Rules of every form: scalars, constants, sizes, several outputs, commuted operands."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusepass
from fusepass import errors
from fusepass.report.decision import Outcome

from .linear_rule import EXAMPLE, same


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
    assert one(rule, lambda x: torch.sin(0.25 * x), x) == [("rejected", "variant")]


def test_a_dimension_counted_from_the_end_stays_there() -> None:
    rule = fusepass.Rule(
        "test_last",
        lambda x: x.exp().sum(-1, keepdim=True),
        lambda x: x.exp().sum(-1, True),
        EXAMPLE[:1],
    )
    x = torch.randn(2, 3, 4)
    assert one(rule, lambda x: x.exp().sum(2, keepdim=True), x) == [APPLIED]
    assert one(rule, lambda x: x.exp().sum(1, keepdim=True), x) == [("rejected", "variant")]
    assert one(rule, lambda x: x.exp().sum((-1,), keepdim=False), x) == [("rejected", "variant")]


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


def test_a_replacement_may_write_to_what_it_made() -> None:
    """Also by calls that return nothing: these are recorded as well."""

    def by_rows(x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        y[:1] = x[:1].sin().exp()
        y[1:] = x[1:].sin().exp()
        add_one(y)
        return y - 1

    rule = fusepass.Rule("test_rows", lambda x: x.sin().exp(), by_rows, EXAMPLE[:1])
    assert APPLIED in one(rule, lambda x: x.sin().exp(), torch.randn(3, 4))


@torch.library.custom_op("fusepass_test::add_one", mutates_args={"x"})
def add_one(x: Tensor) -> None:
    x.add_(1)


def by_index(x: Tensor) -> Tensor:
    y = x.sin()
    y[0] = 7
    return y.exp()


def by_operator(x: Tensor) -> Tensor:
    y = x.sin()
    add_one(y)
    return y.exp()


def by_data(x: Tensor) -> Tensor:
    y = x.sin()
    y.data = x
    return y.exp()


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (by_index, "setitem writes to its memory"),
        (by_operator, "add_one_default writes to its memory"),
        (by_data, r"cannot be recorded \(data\)"),
    ],
)
def test_a_write_in_a_pattern_is_not_overlooked(
    written: Callable[[Tensor], Tensor], problem: str
) -> None:
    rule = fusepass.Rule("test_written", written, written, EXAMPLE[:1])
    with pytest.raises(errors.RuleError, match=problem):
        fusepass.register(rule)


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


def a_copy_from_before_the_write(x: Tensor) -> Tensor:
    y = x + 1
    z = y.clone()
    y.mul_(2)
    return z * 3 - y


@pytest.mark.parametrize(
    "program",
    [
        written_after_its_replacement,
        written_through_a_view_of_a_replacement,
        two_views,
        a_copy_from_before_the_write,
    ],
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
        assert Outcome.APPLIED in {d.outcome for d in fusepass.last_report(compiled).decisions}


# ---- found by fusepass.testing.check_rule ---------------------------------------------------------


def test_an_interior_write_that_is_read_later() -> None:
    rule = fusepass.Rule(
        "test_gated",
        lambda x, y: F.silu(x) * y,
        lambda x, y: y * F.silu(x),
        (torch.randn(3, 4), torch.randn(3, 4)),
    )

    def by_its_own_name(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = x * 2
        return F.silu(x, inplace=True) * y, x

    def not_at_all(x: Tensor, y: Tensor) -> Tensor:
        x = x * 2
        return F.silu(x, inplace=True) * y

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    assert one(rule, by_its_own_name, x, y) == [("rejected", "extra_user")]
    assert one(rule, not_at_all, x, y) == [APPLIED]


@pytest.mark.parametrize("grad", [False, True])
def test_an_operand_written_after_the_match(grad: bool) -> None:
    """In training the replacement may have saved it where the original had no need to."""
    rule = fusepass.Rule(
        "test_sum", lambda x, w: x + w, lambda x, w: w + x, (torch.randn(3, 4), torch.randn(3, 4))
    )

    def program(x: Tensor, w: Tensor) -> Tensor:
        y = x * 1
        out = y + w
        y.mul_(2)
        return out * y

    x, w = torch.randn(3, 4), torch.randn(3, 4, requires_grad=grad)
    with fusepass.rules(rule):
        compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
        got = compiled(x, w)
        same(got.detach(), program(x, w).detach())
        if grad:
            got.sum().backward()
        decisions = fusepass.last_report(compiled).decisions
    ours = [d.reason_code.value for d in decisions if d.rule == rule.name]
    assert ours == (["alias"] if grad else ["proved", "repeat"])
