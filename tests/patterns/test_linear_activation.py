"""Linear + activation: the spellings that match, and those that come close and must not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fusepass
from fusepass.numerics import error_bound, half_ulp, passes, rms, rms_error

# What these rules leave alone is for the rules of GEMM regions.
OFF = {"gated_gemm": False, "gemm_epilogue": False}
OPTIONS = {"codegen": "eager-decomposed", "candidate": "reference", "rules": OFF}
FUSED = "fusepass::linear_activation"

M, K, N = 6, 5, 7


NOISE = torch.Generator().manual_seed(0)


def matrix(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=NOISE)


X, W, WT, B = matrix(M, K), matrix(N, K), matrix(K, N), matrix(N)


@dataclass(frozen=True)
class Spelling:
    """A program, its arguments, and how often which rule must act on it."""

    program: Callable[..., Any]
    args: tuple[Any, ...]
    rule: str
    count: int = 1
    exact: Callable[..., Any] | None = None  # what to run in float64; None for the program
    how: dict[str, Any] = field(default_factory=dict)


def gelu_tanh(a: Tensor) -> Tensor:
    return F.gelu(a, approximate="tanh")


def in_place_add(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    h = x @ w
    h += b
    return h.relu_()


def conv1d_of_gpt2(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    size = (*x.size()[:-1], w.shape[1])
    return gelu_tanh(torch.addmm(b, x.view(-1, x.size(-1)), w).view(size))


def silu_by_hand(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    h = F.linear(x, w, b)
    return torch.sigmoid(h) * h


def relu_times_relu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    r = F.linear(x, w, b).relu()
    return r * r


def under_autocast(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return gelu_tanh(F.linear(x, w, b))


def in_bfloat16(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """What autocast computes, but for the rounding of results."""
    return gelu_tanh(F.linear(*(one.bfloat16().to(one.dtype) for one in (x, w, b))))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(K, K), nn.Linear(K, K)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.second(torch.tanh(self.first(x))))


SPELLINGS: dict[str, Spelling] = {
    "functional": Spelling(lambda x, w, b: F.relu(F.linear(x, w, b)), (X, W, B), "linear_relu"),
    "modules": Spelling(
        nn.Sequential(nn.Linear(K, N), nn.GELU(approximate="tanh")), (X,), "linear_gelu_tanh"
    ),
    "two layers": Spelling(
        nn.Sequential(nn.Linear(K, N), nn.SiLU(), nn.Linear(N, K), nn.SiLU()),
        (X,),
        "linear_silu",
        2,
    ),
    "erf": Spelling(nn.Sequential(nn.Linear(K, N), nn.GELU()), (X,), "linear_gelu"),
    "method": Spelling(lambda x, w, b: F.linear(x, w, b).sigmoid(), (X, W, B), "linear_sigmoid"),
    "addmm": Spelling(lambda x, w, b: torch.addmm(b, x, w).tanh(), (X, WT, B), "linear_tanh"),
    "matmul, add": Spelling(lambda x, w, b: F.silu(x @ w + b), (X, WT, B), "linear_silu"),
    "add, matmul": Spelling(
        lambda x, w, b: F.gelu(b + torch.matmul(x, w)), (X, WT, B), "linear_gelu"
    ),
    "mm": Spelling(lambda x, w: torch.mm(x, w).relu(), (X, WT), "linear_relu_no_bias"),
    "no bias": Spelling(lambda x, w: F.gelu(F.linear(x, w)), (X, W), "linear_gelu_no_bias"),
    "activation in place": Spelling(
        nn.Sequential(nn.Linear(K, N), nn.ReLU(inplace=True)), (X,), "linear_relu"
    ),
    "everything in place": Spelling(in_place_add, (X, WT, B), "linear_relu"),
    "keywords": Spelling(
        lambda x, w, b: F.gelu(input=F.linear(bias=b, input=x, weight=w), approximate="tanh"),
        (X, W, B),
        "linear_gelu_tanh",
    ),
    "x sigmoid(x)": Spelling(silu_by_hand, (X, W, B), "linear_silu_by_hand"),
    "square of relu": Spelling(
        lambda x, w, b: F.relu(F.linear(x, w, b)).square(), (X, W, B), "linear_squared_relu"
    ),
    "relu ** 2": Spelling(
        lambda x, w, b: torch.pow(F.relu(F.linear(x, w, b)), 2.0), (X, W, B), "linear_squared_relu"
    ),
    "relu * relu": Spelling(relu_times_relu, (X, W, B), "linear_squared_relu"),
    "three dimensions": Spelling(
        lambda x, w, b: gelu_tanh(F.linear(x, w, b)), (matrix(2, 3, K), W, B), "linear_gelu_tanh"
    ),
    "four dimensions": Spelling(
        lambda x, w, b: F.silu(F.linear(x, w, b)), (matrix(2, 3, 2, K), W, B), "linear_silu"
    ),
    "three dimensions, matmul": Spelling(
        lambda x, w, b: F.relu(x @ w + b), (matrix(2, 3, K), WT, B), "linear_relu"
    ),
    "reshaped to rows": Spelling(conv1d_of_gpt2, (matrix(2, 3, K), WT, B), "linear_gelu_tanh"),
    "not contiguous": Spelling(
        lambda x, w, b: F.relu(F.linear(x.t(), w, b)), (matrix(K, M), W, B), "linear_relu"
    ),
    "slices": Spelling(
        lambda x, w, b: F.tanh(F.linear(x[:, ::2], w[:, ::2], b[::2])),
        (matrix(M, 2 * K), matrix(N, 2 * K), matrix(2 * N)),
        "linear_tanh",
    ),
    "tied weights": Spelling(Tied(), (X,), "linear_tanh", 2),
    "dynamic batch": Spelling(
        lambda x, w, b: gelu_tanh(F.linear(x, w, b)),
        (X, W, B),
        "linear_gelu_tanh",
        how={"dynamic": True},
    ),
    "dynamic batch and sequence": Spelling(
        lambda x, w, b: gelu_tanh(F.linear(x, w, b)),
        (matrix(2, 3, K), W, B),
        "linear_gelu_tanh",
        how={"dynamic": True},
    ),
    "autocast": Spelling(under_autocast, (X, W, B), "linear_gelu_tanh", exact=in_bfloat16),
    **{
        f"{dtype}": Spelling(
            lambda x, w, b: gelu_tanh(F.linear(x, w, b)),
            (X.to(dtype), W.to(dtype), B.to(dtype)),
            "linear_gelu_tanh",
        )
        for dtype in (torch.bfloat16, torch.float16, torch.float64)
    },
}


def compiled(program: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    options = {**OPTIONS, **how.pop("options", {})}
    return torch.compile(program, backend="fusepass", options=options, **how)


def operations(call: Callable[[], Any]) -> Counter[str]:
    """Operations a call runs, without those inside fused ones."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        call()
    found: Counter[str] = Counter()
    for event in profile.events() or ():
        inside, outer = False, event.cpu_parent
        while outer is not None:
            inside, outer = inside or outer.name.startswith("fusepass::"), outer.cpu_parent
        if not inside:
            found[event.name] += 1
    return found


def applied(program: Callable[..., Any]) -> Counter[str]:
    decisions = fusepass.last_report(program).decisions
    return Counter(d.rule for d in decisions if d.outcome.value == "applied")


def in_double(value: Any) -> Any:
    if isinstance(value, nn.Module):
        import copy

        return copy.deepcopy(value).double()
    return value.double() if isinstance(value, Tensor) else value


def within_the_error_rule(got: Tensor, want: Tensor, truth: Tensor) -> bool:
    bound = error_bound(half_ulp(got.dtype, rms(truth)), rms_error(want, truth), None)
    return passes(rms_error(got, truth), bound)


@pytest.mark.parametrize("name", SPELLINGS)
def test_spelling(name: str) -> None:
    one = SPELLINGS[name]
    program = compiled(one.program, **one.how)
    with torch.no_grad():
        got, want = program(*one.args), one.program(*one.args)
        ran = operations(lambda: program(*one.args))
        truth = in_double(one.exact or one.program)(*map(in_double, one.args))
    assert within_the_error_rule(got, want, truth)
    assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride())
    assert applied(program) == {one.rule: one.count}
    assert ran[FUSED] == one.count
    left = {"addmm", "mm", "bmm", "linear", "relu", "gelu", "silu", "tanh", "sigmoid", "erf", "exp"}
    assert not {f"aten::{op}" for op in left} & ran.keys()


def test_one_compile_serves_many_batch_sizes() -> None:
    program = compiled(lambda x, w, b: F.silu(F.linear(x, w, b)), dynamic=True)
    counter = Counter[str]()
    for rows in (6, 9, 33, 128):
        x = matrix(rows, K)
        torch.testing.assert_close(program(x, W, B), F.silu(F.linear(x, W, B)))
        counter = applied(program)
    assert counter == {"linear_silu": 1}


@pytest.mark.parametrize("how", ["inference_mode", "no_grad", "frozen"])
def test_without_gradients(how: str) -> None:
    model = nn.Sequential(nn.Linear(K, N), nn.GELU())
    program = compiled(model)
    if how == "frozen":
        model.requires_grad_(False)
        torch.testing.assert_close(program(X), model(X))
    else:
        with getattr(torch, how)():
            torch.testing.assert_close(program(X), model(X))
    assert applied(program) == {"linear_gelu": 1}


# --- what comes close -----------------------------------------------------------------------------


def tanh_gelu_of_somebody_else(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    h = F.linear(x, w, b)
    inner = 0.7978845608028654 * (h + 0.0447 * h * h * h)
    return 0.5 * h * (1 + torch.tanh(inner))


def wide_activation(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b).float(), approximate="tanh")


BF = (X.bfloat16(), W.bfloat16(), B.bfloat16())


@dataclass(frozen=True)
class NearMiss:
    """A program no rule may touch, and the reason code that must be given."""

    program: Callable[..., Any]
    args: tuple[Any, ...]
    reason: str
    rule: str = "linear_relu"


# No rule got far enough for its nearest miss to be worth a line: the report says that much.
UNKNOWN = ("no_rule", "after_autograd")

NEAR_MISSES: dict[str, NearMiss] = {
    "the pre-activation is returned": NearMiss(
        lambda x, w, b: (lambda h: (h.relu(), h))(F.linear(x, w, b)), (X, W, B), "extra_user"
    ),
    "the pre-activation is used": NearMiss(
        lambda x, w, b: (lambda h: h.relu() + h)(F.linear(x, w, b)), (X, W, B), "extra_user"
    ),
    "the product is used": NearMiss(
        lambda x, w, b: (lambda h: ((h + b).relu(), h.sum()))(x @ w), (X, WT, B), "extra_user"
    ),
    "beta": NearMiss(lambda x, w, b: torch.addmm(b, x, w, beta=0.5).relu(), (X, WT, B), *UNKNOWN),
    "alpha": NearMiss(lambda x, w, b: torch.addmm(b, x, w, alpha=2).relu(), (X, WT, B), *UNKNOWN),
    "scaled bias": NearMiss(
        lambda x, w, b: torch.add(x @ w, b, alpha=2).relu(),
        (X, WT, B),
        "other_op",
        "linear_relu_no_bias",
    ),
    "a residual instead of a bias": NearMiss(
        lambda x, w, r: (x @ w + r).relu(), (X, WT, matrix(M, N)), "shape_mismatch"
    ),
    "a bias per row": NearMiss(
        lambda x, w, b: (x @ w + b).relu(), (X, WT, matrix(M, 1)), "shape_mismatch"
    ),
    "one number as bias": NearMiss(
        lambda x, w, b: (x @ w + b).relu(), (X, WT, matrix(1)), "shape_mismatch"
    ),
    "a matrix of one row as bias": NearMiss(
        lambda x, w, b: (x @ w + b).relu(), (X, WT, matrix(1, N)), "shape_mismatch"
    ),
    "a batch of weights": NearMiss(
        lambda x, w: torch.bmm(x, w).relu(),
        (matrix(2, M, K), matrix(2, K, N)),
        "shape_mismatch",
        "linear_relu_no_bias",
    ),
    "promotion by the bias": NearMiss(
        lambda x, w, b: F.relu(x @ w + b), (X.bfloat16(), WT.bfloat16(), B), "dtype_mismatch"
    ),
    "another activation": NearMiss(
        lambda x, w, b: F.leaky_relu(F.linear(x, w, b)), (X, W, B), "other_op"
    ),
    "relu with a ceiling": NearMiss(
        lambda x, w, b: F.relu6(F.linear(x, w, b)), (X, W, B), "other_op"
    ),
    "something in between": NearMiss(
        lambda x, w, b: F.relu(F.linear(x, w, b) * 2), (X, W, B), "other_op"
    ),
    "a part of it": NearMiss(lambda x, w, b: F.relu(F.linear(x, w, b)[:, :3]), (X, W, B), *UNKNOWN),
    "rows become columns": NearMiss(
        lambda x, w, b: F.relu(F.linear(x, w, b).t()), (X, W, B), *UNKNOWN
    ),
    "rows cut apart": NearMiss(
        lambda x, w, b: F.relu(F.linear(x, w, b).view(M * N)), (X, W, B), *UNKNOWN
    ),
    "a GELU with another constant": NearMiss(tanh_gelu_of_somebody_else, (X, W, B), "other_op"),
    "activation in float32 of a bfloat16 product": NearMiss(wide_activation, BF, "other_op"),
    "integers": NearMiss(
        lambda x, w: torch.mm(x, w).relu(),
        (torch.ones(M, K, dtype=torch.int64), torch.ones(K, N, dtype=torch.int64)),
        "dtype_mismatch",
        "linear_relu_no_bias",
    ),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_miss(name: str) -> None:
    one = NEAR_MISSES[name]
    program = compiled(one.program)
    with torch.no_grad():
        torch.testing.assert_close(program(*one.args), one.program(*one.args))
    report = fusepass.last_report(program)
    assert not applied(program)
    reasons = {d.rule: d.reason_code.value for d in report.decisions if d.station.value == "after"}
    assert reasons.get(one.rule) == one.reason
