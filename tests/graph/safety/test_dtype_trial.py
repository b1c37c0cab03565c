from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

import fusepass
from fusepass.graph.dataflow.effects import is_random
from fusepass.graph.ops.op_names import op_name
from fusepass.graph.safety import dtype_trial
from fusepass.graph.safety.dtype_trial import dtype_reason
from fusepass.graph.safety.totality import partial_reason
from tests.graph.arms import captured

B, I, X, C = (
    torch.tensor(v) for v in ([True, False, True], [1, 0, 3], [1.0, 0.0, -3.0], [1 + 1j, 0, 2])
)
OPERANDS = [B, I, I.byte(), X, X.bfloat16(), C]
ONE: list[Callable[..., Any]] = [
    lambda a: -a,
    lambda a: ~a,
    lambda a: 1 - a,
    lambda a: a - True,
    lambda a: a + True,
    lambda a: a + 1j,
    lambda a: a > 1.5,
    lambda a: a > 1j,
    lambda a: a == 1j,
    lambda a: a & 300,
    lambda a: a | -1,
    lambda a: a ^ True,
    lambda a: a << 2,
    lambda a: 2**a,
    lambda a: a**0.5,
    lambda a: a.abs().sum(),
    lambda a: a.std(),
    lambda a: a.var(0),
    lambda a: a.median(),
    lambda a: a.max(),
    lambda a: a.argmax(),
    lambda a: a.cummax(0)[0],
    lambda a: a.sort()[0],
    lambda a: a.topk(1)[0],
    lambda a: a.logcumsumexp(0),
    lambda a: a.cumsum(0),
    lambda a: a.prod(),
    lambda a: a.any(),
    lambda a: a.round(),
    lambda a: a.floor(),
    lambda a: a.frac(),
    lambda a: a.sign(),
    lambda a: a.signbit(),
    lambda a: a.isnan(),
    lambda a: a.logit(),
    lambda a: a.erfinv(),
    lambda a: a.clamp(min=0.5),
    lambda a: a.clamp(0, 1),
    lambda a: a.flip(0),
    lambda a: a.roll(1),
    lambda a: a[None].triu(),
    lambda a: F.pad(a[None], (1, 1), mode="reflect"),
    lambda a: a.clone().mul_(1j),
    lambda a: a.clone().add_(1.5),
    lambda a: a.clone().sub_(True),
    lambda a: torch.add(a, a, alpha=0.5),
    lambda a: torch.add(a, a, alpha=True),
    lambda a: torch.addcmul(a, a, a, value=0.5),
    lambda a: torch.mv(a.expand(3, 3), a),
    lambda a: F.softmax(a, 0),
    lambda a: F.softmax(a, 0, dtype=torch.float32),
    lambda a: F.relu(a),
    lambda a: F.gelu(a),
    lambda a: F.silu(a),
    lambda a: F.mish(a),
    lambda a: F.hardswish(a),
    lambda a: F.softplus(a),
    lambda a: F.layer_norm(a, (3,)),
]
TWO: list[Callable[..., Any]] = [
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: a / b,
    lambda a, b: a**b,
    lambda a, b: a & b,
    lambda a, b: a < b,
    lambda a, b: a == b,
    lambda a, b: a.clone().add_(b),
    lambda a, b: a.clone().mul_(b),
    lambda a, b: a.clone().copy_(b),
    lambda a, b: torch.maximum(a, b),
    lambda a, b: torch.where(a != 0, a, b),
    lambda a, b: torch.cat([a, b]),
    lambda a, b: torch.dot(a, b),
    lambda a, b: torch.outer(a, b),
    lambda a, b: torch.lerp(a, b, 0.5),
    lambda a, b: torch.nextafter(a, b),
    lambda a, b: torch.hypot(a, b),
    lambda a, b: torch.atan2(a, b),
    lambda a, b: torch.addcdiv(a, b, b),
    lambda a, b: torch.heaviside(a, b),
    lambda a, b: torch.cross(a, b, dim=0),
    lambda a, b: torch.cdist(a[None], b[None]),
    lambda a, b: torch.add(a, b, alpha=2),
    lambda a, b: F.l1_loss(a, b),
    lambda a, b: F.smooth_l1_loss(a, b),
    lambda a, b: F.prelu(a, b[:1]),
]


class Valued(fx.Interpreter):
    """Runs a graph on fake tensors and keeps what each call gave."""

    def run_node(self, n: fx.Node) -> Any:
        n.meta["example_value"] = super().run_node(n)
        return n.meta["example_value"]


def calls(program: Callable[..., Any], operands: tuple[torch.Tensor, ...]) -> list[fx.Node] | None:
    """The calls of a program with their fake results; None where a trace fails."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    graph = fx.symbolic_trace(program).graph
    with FakeTensorMode() as mode:
        try:
            Valued(fx.GraphModule(torch.nn.Module(), graph)).run(*map(mode.from_tensor, operands))
        except (RuntimeError, TypeError, ValueError):
            return None
    return [node for node in graph.nodes if node.op.startswith("call_")]


def programs() -> Iterator[tuple[Callable[..., Any], tuple[torch.Tensor, ...]]]:
    yield from ((f, (a,)) for f in ONE for a in OPERANDS)
    yield from ((f, pair) for f in TWO for pair in itertools.product(OPERANDS, repeat=2))


def test_a_call_is_total_exactly_where_eager_takes_the_dtypes() -> None:
    wrong, raising = [], 0
    for number, (program, operands) in enumerate(programs()):
        nodes = calls(program, operands)
        if nodes is None:
            continue
        try:
            program(*operands)
            runs = True
        except (RuntimeError, TypeError):  # which of them depends on torch
            runs = False
        raising += not runs
        reasons = [partial_reason(node) for node in nodes if not is_random(node)]
        of_dtypes = [why for node in nodes if (why := dtype_reason(node, op_name(node) or ""))]
        if (runs and of_dtypes) or (not runs and not any(reasons)):
            wrong.append((number, [o.dtype for o in operands], runs, reasons))
    assert not wrong
    assert raising > 300


UNTAKEN: list[Callable[..., Any]] = [
    lambda b, i, x, c: b.topk(1)[0],
    lambda b, i, x, c: b.median(),
    lambda b, i, x, c: i.logcumsumexp(0),
    lambda b, i, x, c: x > c,
    lambda b, i, x, c: i.clone().mul_(1j),
    lambda b, i, x, c: x & 1,
    lambda b, i, x, c: 1 - b,
    lambda b, i, x, c: F.gelu(i),
    lambda b, i, x, c: torch.cross(x, x.bfloat16(), dim=0),
    lambda b, i, x, c: torch.arange(3, dtype=torch.bool),
]


def branching(arm: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    def f(p: torch.Tensor, *operands: torch.Tensor) -> torch.Tensor:
        y = p * 2
        if p.sum() > 0:
            y = y + arm(*operands)
        return y

    return f


@pytest.mark.parametrize("number", range(len(UNTAKEN)))
def test_an_arm_that_raises_for_its_dtypes_does_so_only_if_taken(number: int) -> None:
    f = branching(UNTAKEN[number])
    compiled = torch.compile(f, backend="fusepass", options={"codegen": "eager"})
    p = torch.ones(3)
    for one in (-p, p, -p):
        try:
            expected = f(one, B, I, X, C)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                compiled(one, B, I, X, C)
        else:
            assert torch.equal(compiled(one, B, I, X, C), expected)


def test_the_report_says_which_dtype() -> None:
    f = branching(UNTAKEN[0])
    compiled = torch.compile(f, backend="fusepass", options={"codegen": "eager"})
    assert torch.equal(compiled(-torch.ones(3), B, I, X, C), -2 * torch.ones(3))
    assert "topk of bool raises in eager" in str(fusepass.last_report(compiled))


TAKEN: list[Callable[..., Any]] = [
    lambda b, i, x, c: (i * 3 + 1).clamp(0, 7),
    lambda b, i, x, c: (b & (i > 0)) | ~b,
    lambda b, i, x, c: torch.where(b, i, 0).float() * x.bfloat16(),
    lambda b, i, x, c: i.sum() + b.sum() + b.float().mean(),
    lambda b, i, x, c: (c * 1j).abs() + i.argmax(),
    lambda b, i, x, c: x.half().softmax(0).masked_fill(b, 0),
]


@pytest.mark.parametrize("number", range(len(TAKEN)))
def test_arms_of_integers_and_masks_are_still_selected(number: int) -> None:
    f = branching(TAKEN[number])
    compiled = torch.compile(
        f, backend="fusepass", options={"codegen": "eager", "treatment": "where"}, fullgraph=True
    )
    for one in (torch.ones(3), -torch.ones(3)):
        assert torch.equal(compiled(one, B, I, X, C), f(one, B, I, X, C))
    assert "where" in str(fusepass.last_report(compiled))


def test_autocast_around_a_call_takes_what_it_casts() -> None:
    def inside(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = torch.mm(x, y)
        return z.float()

    nodes = captured(inside, torch.randn(3, 3), torch.randn(3, 3, dtype=torch.bfloat16))
    assert [partial_reason(node) for node in nodes] == [None] * len(nodes)


def test_large_operands_and_their_sizes_are_made_small() -> None:
    x = torch.empty(64, 4096, dtype=torch.bfloat16)

    def f(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (4096,)).topk(500)[0].logcumsumexp(0)

    assert [partial_reason(node) for node in captured(f, x)] == [None] * 4
    i = torch.empty(64, 4096, dtype=torch.int64)
    nodes = calls(lambda i: i.expand(9, 64, 4096).logcumsumexp(0), (i,))
    assert nodes is not None
    assert "int64 raises in eager" in str(partial_reason(nodes[-1]))


def test_a_trial_leaves_everything_as_it_was() -> None:
    node = captured(lambda x: F.dropout(x, 0.5), X.bfloat16())[0]
    tried = captured(lambda x: x.logcumsumexp(0), X.bfloat16())[0]
    before = torch.get_rng_state(), torch.is_warn_always_enabled(), torch.is_grad_enabled()
    assert dtype_reason(node, "dropout") is None
    assert dtype_reason(tried, "logcumsumexp") is None
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (torch.is_warn_always_enabled(), torch.is_grad_enabled()) == before[1:]


@pytest.mark.parametrize("autocast", [False, True])
def test_large_calls_of_ordinary_code_stay_total(autocast: bool) -> None:
    """Whose sizes cannot be halved: groups, heads that share keys, kernels as large as strides."""
    single, image = torch.randn(320), torch.randn(2, 320, 64, 64)
    numbers = torch.zeros(600, 1024, dtype=torch.int64)
    kind = torch.float32 if autocast else torch.bfloat16
    grouped, patches = torch.randn(320, 10, 3, 3).to(kind), torch.randn(64, 320, 16, 16).to(kind)
    programs: list[tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = [
        (lambda x, w: F.group_norm(x, 32, w, w), (image.bfloat16(), single)),
        (lambda x, w: F.conv2d(x, w, groups=32), (image.bfloat16(), grouped)),
        (lambda x, w: F.conv2d(x, w, stride=16), (image.bfloat16(), patches)),
        (
            lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True),
            (torch.randn(1, 28, 64, 64).bfloat16(), torch.randn(1, 4, 64, 64).bfloat16()),
        ),
        (lambda m: m.clone().__setitem__((slice(None), 300), 5), (numbers,)),
        (lambda m: m.topk(500)[0], (numbers,)),
    ]
    for program, operands in programs:

        def inside(*given: torch.Tensor, program: Callable[..., Any] = program) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                return program(*given)

        nodes = captured(inside, *operands)
        assert [dtype_reason(node, op_name(node) or "") for node in nodes] == [None] * len(nodes)


@pytest.mark.parametrize("outside", [False, True])
def test_autocast_that_is_off_inside_another(outside: bool) -> None:
    """The innermost region says what is cast: there are no distances of bfloat16."""

    def f(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        y = p * 2
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=outside):
            if p.sum() > 0:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    with torch.autocast("cpu", enabled=False):
                        y = y + torch.cdist(x, x)[0, 0]
        return y

    x, p = torch.randn(3, 3).bfloat16(), torch.ones(3)
    compiled = torch.compile(f, backend="fusepass", options={"codegen": "eager"})
    assert torch.equal(compiled(-p, x), f(-p, x))
    with pytest.raises(RuntimeError, match="cdist"):
        compiled(p, x)


def test_large_tensors_that_are_made_of_nothing_are_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = calls(lambda i: i.new_zeros(1 << 27), (I,))
    assert nodes is not None

    def never(*given: Any) -> bool:
        raise AssertionError("a call was tried")

    monkeypatch.setattr(dtype_trial, "_succeeds", never)
    assert dtype_reason(nodes[-1], "new_zeros") is None


def test_warnings_that_torch_gives_once_stay_due() -> None:
    """Those of the trial are not shown, and are no first ones."""
    program = """
import warnings, torch
from fusepass.graph.safety.dtype_trial import _without_warnings
def halves():
    return torch.ones(2, dtype=torch.complex32) * 2
with _without_warnings():
    halves()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    halves()
print([str(one.message).split()[0] for one in caught], torch.is_warn_always_enabled())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout == "['ComplexHalf'] False\n"
    assert "ComplexHalf" not in done.stderr


def test_thousands_of_numbers() -> None:
    one = torch.zeros((), dtype=torch.int64)
    nodes = calls(lambda i: torch.stack([i] * 5000), (one,))
    assert nodes is not None
    assert dtype_reason(nodes[-1], "stack") is None
