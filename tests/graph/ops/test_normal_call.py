"""The normal form of a call says what the call computes: run through ATen, it gives the same."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from fusepass.graph.ops.normal_call import NormalCall, default_of, normal_call
from fusepass.graph.ops.schemas import REQUIRED
from fusepass.rewrite.match.trace import record_torch
from fusepass.torch_private.fx.tracing import plain_fake_mode

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(3, 4, generator=GENERATOR)
Y = torch.randn(3, 4, generator=GENERATOR)
W = torch.randn(5, 4, generator=GENERATOR)
B = torch.randn(5, generator=GENERATOR)
P, Q, R = (torch.rand(3, 4, generator=GENERATOR) > 0.5 for _ in range(3))
IMAGE, KERNEL = torch.randn(2, 3, 6, 8), torch.randn(4, 3, 3, 3)
INTS = torch.arange(12).reshape(3, 4) - 5

# Spellings of one call each; those of a group have one normal form.
GROUPS: dict[str, tuple[tuple[Tensor, ...], list[Callable[..., Tensor]]]] = {
    "softmax": (
        (X,),
        [
            lambda x: F.softmax(x, -1),
            lambda x: torch.softmax(x, dim=-1),
            lambda x: x.softmax(-1),
            lambda x: F.softmax(input=x, dim=-1, dtype=None),
        ],
    ),
    "add": ((X, Y), [torch.add, lambda x, y: x + y, lambda x, y: x.add(other=y)]),
    "add a number": ((X,), [lambda x: x + 2, lambda x: 2 + x, lambda x: torch.add(x, 2)]),
    "add scaled": (
        (X, Y),
        [lambda x, y: torch.add(x, y, alpha=3), lambda x, y: x.add(y, alpha=3)],
    ),
    "subtract from": ((X,), [lambda x: 2 - x, lambda x: torch.rsub(x, 2), lambda x: x.__rsub__(2)]),
    "divide by": ((X,), [lambda x: 2 / x, lambda x: torch.div(2, x), lambda x: x.__rdiv__(2)]),
    "divide whole": ((X,), [lambda x: 7 // x, lambda x: torch.floor_divide(7, x)]),
    "rest of a number": ((X,), [lambda x: 7 % x, lambda x: torch.remainder(7, x)]),
    "power of a number": ((X,), [lambda x: 2**x, lambda x: torch.pow(2, x)]),
    "greater": (
        (X,),
        [lambda x: x > 0, lambda x: operator.lt(0, x), lambda x: torch.gt(x, 0), lambda x: x.gt(0)],
    ),
    "at most": ((X,), [lambda x: x <= 1, lambda x: operator.ge(1, x), lambda x: x.le(1)]),
    "where": (
        (P, X, Y),
        [lambda p, x, y: torch.where(p, x, y), lambda p, x, y: x.where(p, y)],
    ),
    "where of truth values": (
        (P, Q, R),
        [lambda p, x, y: torch.where(p, x, y), lambda p, x, y: x.where(p, y)],
    ),
    "linear": (
        (X, W, B),
        [lambda x, w, b: F.linear(x, w, b), lambda x, w, b: F.linear(bias=b, input=x, weight=w)],
    ),
    "addmm": ((B, X, W.t()), [torch.addmm, lambda b, x, w: b.addmm(x, w)]),
    "view": ((X,), [lambda x: x.view(2, 6), lambda x: x.view((2, 6)), lambda x: x.view([2, 6])]),
    "permute": ((X,), [lambda x: x.permute(1, 0), lambda x: torch.permute(x, (1, 0))]),
    "sum": (
        (X,),
        [
            lambda x: x.sum(1, True),
            lambda x: torch.sum(x, dim=(1,), keepdim=True),
            lambda x: x.sum([1], keepdim=True),
        ],
    ),
    "mean": ((X,), [lambda x: x.mean(-1), lambda x: torch.mean(x, dim=[-1], keepdim=False)]),
    "variance along": ((X,), [lambda x: x.var(-1), lambda x: x.var(dim=-1)]),
    "variance": ((X,), [lambda x: x.var(False), lambda x: x.var(unbiased=False)]),
    "gelu": ((X,), [F.gelu, lambda x: F.gelu(x, approximate="none")]),
    "gelu tanh": ((X,), [lambda x: F.gelu(x, approximate="tanh")]),
    "leaky": ((X,), [lambda x: F.leaky_relu(x, 0.01), lambda x: F.leaky_relu(x)]),
    "layer norm": (
        (X,),
        [lambda x: F.layer_norm(x, (4,)), lambda x: F.layer_norm(x, [4], eps=1e-5, weight=None)],
    ),
    "clamp": ((X,), [lambda x: x.clamp(min=0), lambda x: torch.clip(x, 0)]),
    "power": ((X,), [lambda x: x**3, lambda x: torch.pow(x, 3), lambda x: x.pow(exponent=3)]),
    "power of": ((X,), [lambda x: torch.pow(2, x)]),
    "convolution": (
        (IMAGE, KERNEL),
        [
            lambda x, w: F.conv2d(x, w, padding=1),
            lambda x, w: F.conv2d(x, w, None, (1, 1), (1, 1), (1, 1), 1),
            lambda x, w: torch.conv2d(x, w, stride=1, padding=[1, 1]),
        ],
    ),
    "pooling": (
        (IMAGE,),
        [
            lambda x: F.max_pool2d(x, 2),
            lambda x: F.max_pool2d(x, 2, 2, 0, 1, ceil_mode=False, return_indices=False),
            lambda x: F.max_pool2d(x, kernel_size=(2, 2), stride=(2, 2)),
        ],
    ),
    "average pooling": ((IMAGE,), [lambda x: F.avg_pool2d(x, 2), lambda x: F.avg_pool2d(x, 2, 2)]),
    "cat": ((X, Y), [lambda x, y: torch.cat((x, y), 1), lambda x, y: torch.cat([x, y], dim=1)]),
    "masked fill": ((X, P), [lambda x, p: x.masked_fill(p, 0.5)]),
    "floor divide": ((INTS,), [lambda x: x // 3, lambda x: torch.floor_divide(x, 3)]),
    "remainder": ((INTS,), [lambda x: x % 3, lambda x: torch.remainder(x, 3)]),
    "shift left": (
        (INTS,),
        [lambda x: x << 2, lambda x: x.__lshift__(2), lambda x: torch.bitwise_left_shift(x, 2)],
    ),
    "shift right": (
        (INTS,),
        [lambda x: x >> 1, lambda x: x.__rshift__(1), lambda x: torch.bitwise_right_shift(x, 1)],
    ),
    "shift a number": (
        (INTS.abs(),),
        [
            lambda x: 5 << x,
            lambda x: operator.lshift(5, x),
            lambda x: x.__rlshift__(5),
            lambda x: torch.bitwise_left_shift(5, x),
        ],
    ),
    "addcmul": ((X, Y), [lambda x, y: torch.addcmul(x, y, y, value=0.5)]),
    "lerp": ((X, Y), [lambda x, y: torch.lerp(x, y, 0.25), lambda x, y: x.lerp(y, weight=0.25)]),
    "polygamma": ((X.abs() + 1,), [lambda x: torch.polygamma(1, x), lambda x: x.polygamma(1)]),
    "deviation": (
        (X,),
        [lambda x: x.std(1, keepdim=True), lambda x: torch.std(x, dim=1, keepdim=True)],
    ),
    "narrow": ((X,), [lambda x: x.narrow(1, 0, 2), lambda x: torch.narrow(x, 1, 0, length=2)]),
}
# Run with the reflected operation's own meaning: ATen has no operator of that name.
REFLECTED = {
    "rdiv": lambda self, other: other / self,
    "rfloor_divide": lambda self, other: other // self,
    "rrem": lambda self, other: other % self,
}


def traced(
    program: Callable[..., Tensor], inputs: tuple[Tensor, ...]
) -> tuple[NormalCall, fx.Graph]:
    mode = plain_fake_mode()  # C functions take no proxies
    graph = record_torch(program, [mode.from_tensor(x) for x in inputs], mode)
    (node,) = [n for n in graph.nodes if n.op.startswith("call_")]
    call = normal_call(node)
    assert call is not None
    return call, graph


def run(call: NormalCall, args: dict[str, Any]) -> Tensor:
    if call.op in REFLECTED:
        return REFLECTED[call.op](**args)
    packet = getattr(torch.ops.aten, call.op)
    schemas = [getattr(packet, name)._schema for name in packet.overloads()]
    own = {argument.name for schema in schemas for argument in schema.arguments}
    if "self" not in own:  # the normal form has one name for it, ATen two
        args = {"input" if name == "self" else name: value for name, value in args.items()}
    return packet(**args)  # type: ignore[no-any-return]


def concrete(value: Any, given: dict[str, Tensor]) -> Any:
    if isinstance(value, fx.Node):
        return given[value.name]
    return [concrete(v, given) for v in value] if isinstance(value, tuple) else value


@pytest.mark.parametrize("name", GROUPS)
def test_normal_form_evaluates_to_the_call(name: str) -> None:
    inputs, programs = GROUPS[name]
    forms = set()
    for program in programs:
        call, graph = traced(program, inputs)
        places = [n.name for n in graph.nodes if n.op == "placeholder"]
        given = dict(zip(places, inputs, strict=True))
        args = {k: concrete(v, given) for k, v in call.args}
        torch.testing.assert_close(run(call, args), program(*inputs), rtol=0, atol=0)
        forms.add(str((call.op, sorted((k, str(v)) for k, v in call.args))))
    assert len(forms) == 1, forms


@pytest.mark.parametrize(
    ("program", "other"),
    [
        (lambda x: F.gelu(x), lambda x: F.gelu(x, approximate="tanh")),
        (lambda x: x.sum(0), lambda x: x.sum(1)),
        (lambda x: 2 - x, lambda x: x - 2),
        (lambda x: x.var(0), lambda x: x.var(False)),
        (lambda x: x.var(1), lambda x: x.var(True)),
        (lambda x: x.std(1), lambda x: x.std(1, unbiased=False)),
        (lambda x: x > 0, lambda x: x < 0),
        (lambda x: F.leaky_relu(x), lambda x: F.leaky_relu(x, 0.1)),
        (lambda x: torch.pow(x, 2), lambda x: torch.pow(2, x)),
        (lambda x: torch.add(x, 2, alpha=3), lambda x: torch.add(2, x, alpha=3)),
    ],
)
def test_different_calls_have_different_forms(
    program: Callable[..., Tensor], other: Callable[..., Tensor]
) -> None:
    first, second = (traced(one, (X,))[0] for one in (program, other))
    assert (first.op, str(first.args)) != (second.op, str(second.args))


def test_in_place_is_the_operation_with_a_flag() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = X
    calls = [
        normal_call(graph.call_method("relu_", (x,))),
        normal_call(graph.call_function(F.relu, (x,), {"inplace": True})),
        normal_call(graph.call_function(F.relu, (x,))),
    ]
    assert [(c.op, c.inplace) for c in calls if c] == [
        ("relu", True),
        ("relu", True),
        ("relu", False),
    ]
    assert len({c.args for c in calls if c}) == 1


def test_defaults() -> None:
    assert default_of("layer_norm", "eps") == 1e-5
    assert default_of("gelu", "approximate") == "none"
    assert default_of("conv2d", "padding") == (0, 0)
    assert default_of("batch_norm", "eps") == 1e-5
    assert default_of("dropout", "p") == 0.5
    assert default_of("dropout", "train") is True
    assert default_of("batch_norm", "running_mean") is REQUIRED
