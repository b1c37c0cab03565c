"""Which calls are made by an operator's own kernel, and near misses that Inductor generates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fusepass.inductor.faults import aten_kernels
from fusepass.inductor.faults.aten_kernels import use_eager_kernels
from fusepass.inductor.faults.fault import Fault
from tests.inductor.faults.graphs import traced

BYTES = torch.tensor([[0, 3], [0, 0]], dtype=torch.uint8)
ROWS = torch.randn(2, 3)
LAST = torch.channels_last
Program = Callable[[Tensor], Any]


def mean_gradient(x: Tensor, *options: Any) -> Tensor:
    """The gradient of a mean of three numbers in steps of two."""
    pool = torch.ops.aten.avg_pool2d.default(x, [3, 3], [2, 2], [1, 1], *options)
    rest = (*options, *(False, True)[len(options) :])
    backward = torch.ops.aten.avg_pool2d_backward.default
    made: Tensor = backward(pool, x, [3, 3], [2, 2], [1, 1], *rest, None)
    return made


MET: dict[str, tuple[str, Program, Tensor]] = {
    "transposed": ("flattened_index", lambda x: (x.t() + 1).argmax(), torch.randn(5, 7)),
    "copied": ("flattened_index", lambda x: x.t().contiguous().argmin(), torch.randn(5, 7)),
    "channels last": (
        "flattened_index",
        lambda x: (x * 2).argmax(),
        torch.randn(2, 3, 4, 5).contiguous(memory_format=LAST),
    ),
    "along one": ("index", lambda x: (x.t() + 1).max(dim=1), torch.randn(8, 8)),
    "pair": ("pair_of_functions", lambda x: x.atan().sin(), torch.randn(4)),
    "bytes": ("any_of_bytes", lambda x: (x.any(), x.any(0)), BYTES),
    "bound": ("clamp_out_of_range", lambda x: x.clamp_min(-3.4e39), torch.randn(4)),
    "bound of bytes": ("clamp_out_of_range", lambda x: x.clamp_max(300), BYTES),
    "window": ("overhanging_mean", lambda x: mean_gradient(x, True, True), torch.randn(1, 2, 6, 6)),
    "dtypes": ("ldexp_dtype", lambda x: torch.ldexp(x, x.half()), torch.ones(3, dtype=torch.bool)),
    "integers": ("batched_integers", lambda x: torch.bmm(x, x), BYTES[None, :, :].long()),
    "near one": ("erfinv", torch.erfinv, torch.randn(3)),
    "smaller of two": ("sign_of_zero", lambda x: torch.minimum(x, -x), torch.randn(3)),
    "larger of two": ("sign_of_zero", lambda x: 1 / -torch.maximum(x, -x).view(-1), ROWS),
    "clamped to zero": ("sign_of_zero", lambda x: x.clamp_max(0).reciprocal(), torch.randn(3)),
    "clamped by a tensor": ("sign_of_zero", lambda x: 1 / x.clamp(x.flip(0), -x), torch.randn(3)),
    "clamped on both sides": (
        "sign_of_zero",
        lambda x: 1 / F.hardtanh(x, 0.0, 1.0),
        torch.randn(3),
    ),
    "an extremum that is clamped": (
        "sign_of_zero",
        lambda x: torch.signbit(torch.minimum(x, -x).clamp_max(0.0)),
        torch.randn(3),
    ),
    "wraps round": ("compared_overflow", lambda x: x + 1 > x, torch.arange(3)),
    "no opposite": ("compared_overflow", lambda x: x.int().abs() >= 0, torch.arange(3)),
    "both sides": ("compared_overflow", lambda x: (x * 3 - 1) < (x + 2), torch.arange(3)),
    "product": ("long_range", lambda x: torch.arange(11) * 10**9 + x.long(), torch.zeros(1)),
    "sum": ("long_range", lambda x: (torch.arange(9) + 2**31) * 1, torch.zeros(1)),
    "shift": ("long_range", lambda x: torch.arange(9).view(3, 3) << 30, torch.zeros(1)),
    "start": ("long_range", lambda x: torch.arange(2**40, 2**40 + 3) + 0, torch.zeros(1)),
    "tensor": (
        "long_range",
        lambda x: torch.arange(9) * torch.full((1,), 10**9),
        torch.zeros(1),
    ),
}
NOT_MET: dict[str, tuple[Program, Tensor]] = {
    "in order": (lambda x: (x + 1).argmax(), torch.randn(5, 7)),
    "along a dimension in order": (lambda x: (x + 1).max(dim=1), torch.randn(5, 7)),
    "no pair": (lambda x: x.sin().atan(), torch.randn(4)),
    "one dimension": (lambda x: x[:, None].argmax(), torch.randn(7)[::2]),
    "behind a product": (lambda x: (x.t() @ x).argmax(), torch.randn(5, 7)),
    "floats": (lambda x: x.any(0), torch.randn(5, 7)),
    "all": (lambda x: torch.all(x), BYTES),
    "largest": (lambda x: x.clamp_min(-3.4e38).clamp_max(float("inf")), torch.randn(4)),
    "of a float": (lambda x: x.clamp_max(255), BYTES),
    "fits": (lambda x: mean_gradient(x, True, True), torch.randn(1, 2, 7, 7)),
    "floor": (lambda x: mean_gradient(x, False, True), torch.randn(1, 2, 6, 6)),
    "numbers that count": (lambda x: mean_gradient(x, True, False), torch.randn(1, 2, 6, 6)),
    "floating": (lambda x: torch.ldexp(x, torch.ones(3)), torch.randn(3)),
    "small": (lambda x: torch.arange(11) * 1000 + 1, torch.zeros(1)),
    "float range": (lambda x: torch.arange(11) * 1e9, torch.zeros(1)),
    "a product of floats": (lambda x: torch.bmm(x, x), torch.randn(2, 3, 3)),
    "smaller of integers": (lambda x: torch.minimum(x, -x), torch.arange(3)),
    "a sign that nobody sees": (lambda x: torch.maximum(x, -x) + 1, torch.randn(3)),
    "a dividend": (lambda x: torch.maximum(x, -x).abs() / (x + 1), torch.randn(3)),
    "clamped above zero": (lambda x: 1 / x.clamp_min(1e-6), torch.randn(3)),
    "clamped away from zero": (lambda x: 1 / x.clamp_max(0).clamp_max(-1e-6), torch.randn(3)),
    "clamped by a tensor, not divided by": (lambda x: x.clamp(min=-x) + 1, torch.randn(3)),
    "handed out": (lambda x: x.clamp_min(0), torch.randn(3)),
    "of two tensors": (lambda x: x + 1 > x.flip(0), torch.arange(3)),
    "with a number": (lambda x: (x + 1 > 2, x.abs() < 3), torch.arange(3)),
    "floats that wrap not": (lambda x: x + 1 > x, torch.randn(3)),
    "short": (lambda x: torch.arange(11, dtype=torch.int32) * 10**9, torch.zeros(1)),
    "by a given tensor": (lambda x: torch.arange(1) * x.long(), torch.zeros(1)),
}


@pytest.fixture(autouse=True)
def _every_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pattern is looked for also where torch has mended the fault."""
    monkeypatch.setattr(Fault, "is_here", True)


@pytest.mark.parametrize("name", MET)
def test_met(name: str) -> None:
    rule, program, x = MET[name]
    gm = traced(program, x, decomposed=True)
    (decision,) = use_eager_kernels(gm.graph)
    assert decision.rule == rule
    assert decision.reason_code == "inductor_fault"
    assert "pytorch #" in decision.reason
    marked = [n for n in gm.graph.nodes if "should_fallback" in n.meta]
    operators = {o for fault in aten_kernels._FAULTS if fault.name == rule for o in fault.operators}
    assert marked
    assert {node.target for node in marked} <= operators


@pytest.mark.parametrize("name", NOT_MET)
def test_not_met(name: str) -> None:
    program, x = NOT_MET[name]
    gm = traced(program, x, decomposed=True)
    assert use_eager_kernels(gm.graph) == []
    assert not any("should_fallback" in node.meta for node in gm.graph.nodes)


def test_fixed_faults_are_left_to_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fault, "is_here", False)
    gm = traced(lambda x: (x.t() + 1).argmax(), torch.randn(5, 7), decomposed=True)
    assert use_eager_kernels(gm.graph) == []


def test_versions() -> None:
    assert Fault("one", (1,), "is wrong").message == "is wrong (pytorch #1)"


def test_gradient_in_training() -> None:
    """The backward graph is looked at, too."""
    x = torch.randn(1, 2, 6, 6, requires_grad=True)

    def program(x: Tensor) -> Tensor:
        return F.avg_pool2d(x, 3, 2, 1, ceil_mode=True).square()

    (wanted,) = torch.autograd.grad(program(x).sum(), [x])
    made = torch.compile(program, backend="fusepass")(x)
    torch.testing.assert_close(torch.autograd.grad(made.sum(), [x])[0], wanted)
