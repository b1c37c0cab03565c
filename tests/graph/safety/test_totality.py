from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import fx

from fusepass.graph.dataflow.effects import is_random, written_nodes
from fusepass.graph.ops.op_names import op_name
from fusepass.graph.safety.gradient_gates import ZERO_SAFE_BACKWARD, zero_safe
from fusepass.graph.safety.totality import EXCLUDED, TOTAL, partial_reason

X = torch.randn(3, 4)
I = torch.tensor([[1, 2], [0, 1]])


def call(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """One call node; tensor arguments become inputs that carry their value."""
    graph = fx.Graph()

    def node(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        made = graph.placeholder("x")
        made.meta["example_value"] = value
        return made

    args = fx.node.map_aggregate(args, node)
    kwargs = fx.node.map_aggregate(kwargs, node)
    if isinstance(target, str):
        return graph.call_method(target, args, kwargs)
    return graph.call_function(target, args, kwargs)


@pytest.mark.parametrize(
    "spelled",
    [
        call(torch.add, X, X),
        call(operator.add, X, X),
        call("add", X, X),
        call(torch.ops.aten.add.Tensor, X, X),
    ],
    ids=lambda n: getattr(n.target, "__name__", str(n.target)),
)
def test_spellings_of_one_operation_have_one_name(spelled: fx.Node) -> None:
    assert op_name(spelled) == "add"
    assert partial_reason(spelled) is None


def test_in_place_spellings_keep_their_own_name() -> None:
    assert op_name(call(operator.iadd, X, X)) == "add_"
    assert op_name(call("add_", X, X)) == "add_"


def test_a_foreign_function_has_no_name_and_is_partial() -> None:
    def mine(x: torch.Tensor) -> torch.Tensor:
        return x

    node = call(mine, X)
    assert op_name(node) is None
    assert "not an operation of torch" in str(partial_reason(node))
    assert written_nodes(node) == node.all_input_nodes


PARTIAL = [
    call(operator.getitem, X, I),
    call(operator.getitem, X, (slice(None), [0, 1])),
    call(torch.nn.functional.embedding, I, X),
    call(torch.gather, X, 1, I),
    call(torch.linalg.inv, X),
    call(operator.floordiv, I, I),
    call(torch.remainder, I, I),
    call(torch.div, I, I, rounding_mode="floor"),
    call(torch.pow, I, -1),
    call(torch.where, X),
    call(operator.not_, X),
    call(torch.sym_not, X),
    call(torch.sym_float, X),
    call(torch.sym_max, X, 2),
    call(torch.sym_min, 2.5, X),
    call(torch.nonzero, X),
    call(torch.masked_select, X, X > 0),
    call("item", X),
    call(torch.nn.functional.cross_entropy, X, I[0]),
    call(torch.full, (2,), X),
]


@pytest.mark.parametrize(
    "node", PARTIAL, ids=lambda n: getattr(n.target, "__name__", str(n.target))
)
def test_what_can_fail_for_some_values_is_partial(node: fx.Node) -> None:
    assert partial_reason(node)


ALWAYS_FINE = [
    call(operator.getitem, X, (slice(None), 1)),
    call(operator.getitem, X, (None, slice(0, 2))),
    call(operator.floordiv, I, 2),
    call(torch.remainder, X, X),
    call(torch.div, X, X, rounding_mode="floor"),
    call(torch.div, I, I),
    call(torch.pow, X, -1),
    call(torch.where, X > 0, X, X),
    call(torch.nn.functional.linear, X, X),
    call(torch.nn.functional.layer_norm, X, (4,)),
    call("clamp", X, -1, 1),
    call(torch.cdist, X, X),
    call(operator.not_, 2),
    call(torch.sym_not, True),
    call(torch.sym_float, 3),
    call(torch.sym_max, 2.5, 3),
    call(torch.sym_min, float("nan"), 3),
]


@pytest.mark.parametrize(
    "node", ALWAYS_FINE, ids=lambda n: getattr(n.target, "__name__", str(n.target))
)
def test_what_depends_only_on_shapes_is_total(node: fx.Node) -> None:
    assert partial_reason(node) is None


NAN, INF = float("nan"), float("inf")
C = torch.complex(X, X)
BEYOND = [
    call(torch.nn.functional.pad, I, (0, 1), value=NAN),
    call(torch.full, (2,), NAN, dtype=torch.int64),
    call("masked_fill", I, I > 0, NAN),
    call("masked_fill", I, I > 0, INF),
    call("masked_fill", I.byte(), I > 0, 256),
    call("fill_", X.half(), 1e6),
    call(torch.nn.functional.threshold, I, 2, NAN),
    call("masked_fill", C, X > 0, 1e300),
    call("masked_fill", C, X > 0, complex(0, 1e300)),
    call("masked_fill", X, X > 0, 10**400),
    call("pow", X.half(), 1e6),
]
WITHIN = [
    call(torch.nn.functional.pad, X, (0, 1), value=NAN),
    call(torch.full, (2,), -INF, dtype=torch.float16),
    call("masked_fill", I > 0, I > 0, NAN),
    call("masked_fill", I.byte(), I > 0, 255),
    call(torch.where, I > 0, I, NAN),
    call("clamp", I, min=NAN),
    call(torch.eq, I, NAN),
    call("pow", X, 1e300),
    call("pow", X.half(), 1e3),
    call("masked_fill", C, X > 0, complex(NAN, INF)),
    call("masked_fill", C.to(torch.complex128), X > 0, 1e300),
]


@pytest.mark.parametrize("name", ["fill_", "masked_fill"])
@pytest.mark.parametrize(
    ("filled", "number", "total"),
    [
        (X, torch.tensor(1e300, dtype=torch.float64), False),
        (X.half(), torch.tensor(10**6), False),
        (X.half(), torch.tensor(1e6), False),
        (I.byte(), torch.tensor(-1, dtype=torch.int8), False),
        (I, torch.tensor(1.5), False),
        (X, torch.tensor(1.5), True),
        (X, torch.tensor(2**62), True),
        (X, torch.tensor(1.5).half(), True),
        (I, torch.tensor(255).byte(), True),
        (I > 0, torch.tensor(1e300, dtype=torch.float64), True),
    ],
)
def test_a_fill_with_a_tensor_of_one_number(
    name: str, filled: torch.Tensor, number: torch.Tensor, total: bool
) -> None:
    given = (filled, number) if name == "fill_" else (filled, filled > 0, number)
    reason = partial_reason(valued(call(name, *given)))
    assert (reason is None) is total
    if total:
        getattr(filled.clone(), name)(*given[1:])


def valued(node: fx.Node) -> fx.Node:
    """With the result that Dynamo knows; where the call raises, with what it would fill."""
    given = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["example_value"].clone())
    args, kwargs = given
    try:
        is_method = node.op == "call_method"
        target: Any = getattr(args[0], str(node.target)) if is_method else node.target
        value = target(*(args[1:] if is_method else args), **kwargs)
    except (RuntimeError, OverflowError):
        first = args[0]
        value = first if isinstance(first, torch.Tensor) else torch.zeros(first, **kwargs)
    node.meta["example_value"] = value
    return node


@pytest.mark.parametrize("node", BEYOND, ids=lambda n: f"{op_name(n)}-{n.args[1:]}")
def test_a_number_that_does_not_fit_the_dtype_is_partial(node: fx.Node) -> None:
    assert "does not fit the dtype" in str(partial_reason(valued(node)))


@pytest.mark.parametrize("node", WITHIN, ids=lambda n: f"{op_name(n)}-{n.args[1:]}")
def test_a_number_that_fits_or_is_compared_is_not(node: fx.Node) -> None:
    assert "does not fit" not in str(partial_reason(valued(node)))


def test_no_operation_is_both_total_and_excluded() -> None:
    conditional = {"floor_divide", "remainder", "fmod"}
    assert not (TOTAL & EXCLUDED.keys()) - conditional


@pytest.mark.parametrize(
    ("node", "random"),
    [
        (call(torch.nn.functional.dropout, X, 0.5, True), True),
        (call(torch.nn.functional.dropout, X), True),
        (call(torch.nn.functional.dropout, X, 0.5, False), False),
        (call(torch.nn.functional.dropout, X, p=0.0), False),
        (call(torch.nn.functional.scaled_dot_product_attention, X, X, X), False),
        (call(torch.nn.functional.scaled_dot_product_attention, X, X, X, None, 0.1), True),
        (call(torch.rand_like, X), True),
        (call("uniform_", X), True),
        (call(torch.add, X, X), False),
    ],
)
def test_random_draws(node: fx.Node, random: bool) -> None:
    assert is_random(node) is random


@pytest.mark.parametrize(
    ("node", "writes"),
    [
        (call("add_", X, 1), True),
        (call("__setitem__", X, 0, 1), True),
        (call(operator.setitem, X, 0, 1), True),
        (call(operator.imul, X, 2), True),
        (call(torch.nn.functional.relu, X, inplace=True), True),
        (call(torch.nn.functional.relu, X, True), True),
        (call(torch.nn.functional.relu, X), False),
        (call(torch.relu_, X), True),
        (call(torch.mul, 2, 3, out=X), True),
        (call(torch.ops.aten.add_.Tensor, X, X), True),
        (call(torch.ops.aten.add.Tensor, X, X), False),
        (call(torch.nn.functional.batch_norm, X, X, X, training=True), True),
        (call(torch.nn.functional.batch_norm, X, X, X), False),
        (call("__and__", X, X), False),
    ],
    ids=lambda v: getattr(getattr(v, "target", v), "__name__", str(getattr(v, "target", v))),
)
def test_writes(node: fx.Node, writes: bool) -> None:
    assert bool(written_nodes(node)) is writes


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 0.0, -1e30])
@pytest.mark.parametrize("name", ["clamp", "relu", "masked_fill", "sum", "flatten", "where"])
def test_zero_safe_backward_gives_zero_whatever_the_input(name: str, value: float) -> None:
    assert name in ZERO_SAFE_BACKWARD
    run = {
        "clamp": lambda t: t.clamp(-1, 1),
        "relu": torch.relu,
        "masked_fill": lambda t: t.masked_fill(torch.tensor([True, False]), 1.0),
        "sum": lambda t: t.sum(),
        "flatten": lambda t: t.flatten(),
        "where": lambda t: torch.where(torch.tensor([True, False]), t, t * 0 + 1),
    }[name]
    x = torch.tensor([value, 1.0], requires_grad=True)
    if name == "where":  # the operand through which the gradient comes
        run = lambda t: torch.where(torch.tensor([True, False]), t, torch.ones(2))  # noqa: E731
    result = run(x)
    (gradient,) = torch.autograd.grad(result, x, torch.zeros_like(result))
    assert torch.equal(gradient, torch.zeros(2))


def test_multiplying_by_a_tensor_is_not_zero_safe() -> None:
    left = X.clone().requires_grad_()
    node = call(torch.mul, left, X)
    node.meta["example_value"] = left * X
    assert not zero_safe(node)
    scaled = call(torch.mul, left, 2.0)
    scaled.meta["example_value"] = left * 2
    assert zero_safe(scaled)
