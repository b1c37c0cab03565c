"""A graph as terms: what is one value however it is written, and what only looks like it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from fusepass.graph.terms.term import INPUT, Term, operands, plain_name, root_names
from fusepass.graph.terms.term_graph import TermGraph

X, Y, W, B = torch.randn(3, 4), torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)


def returned(program: Callable[..., Any], *inputs: Tensor) -> tuple[TermGraph, list[Term]]:
    """The terms of what a program returns, in the graph that Dynamo makes of it."""
    graphs: list[fx.Graph] = []

    def keep(gm: fx.GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append(gm.graph)
        return gm.forward

    torch.compile(lambda *args: program(*args), backend=keep, fullgraph=True)(*inputs)
    (graph,) = graphs
    terms = TermGraph(graph)
    output = next(n for n in graph.nodes if n.op == "output")
    return terms, [terms.read(node, output) for node in output.args[0]]


def shown(value: Any) -> str:
    """A term as text; inputs by name, dtypes and numbers as they are."""
    if not isinstance(value, Term):
        return value.name if isinstance(value, fx.Node) else str(value)
    if value.op == INPUT:
        return value.owner.name.replace("l_args_", "input_").rstrip("_")
    return f"{value.op}({', '.join(shown(part) for _, part in value.args)})"


def text(program: Callable[..., Any], *inputs: Tensor) -> str:
    (term,) = returned(program, *inputs)[1]
    return shown(term)


PRODUCT = "matmul(input_0, permute(input_1, (1, 0)))"
SPELLINGS: list[tuple[str, tuple[Tensor, ...], list[Callable[..., Tensor]]]] = [
    (
        f"add({PRODUCT}, input_2)",
        (X, W, B),
        [
            F.linear,
            lambda x, w, b: x @ w.t() + b,
            lambda x, w, b: torch.mm(x, w.transpose(0, 1)) + b,
            lambda x, w, b: x.matmul(w.T).add_(b),
            lambda x, w, b: torch.addmm(b, x, w.mT),
        ],
    ),
    (PRODUCT, (X, W), [F.linear, lambda x, w: x @ w.permute(-1, -2)]),
    ("mul(input_0, sigmoid(input_0))", (X,), [F.silu, lambda x: x * x.sigmoid()]),
    ("mul(input_0, input_0)", (X,), [torch.square, lambda x: x**2, lambda x: x * x]),
    (
        "cast(input_0, torch.float64)",
        (X,),
        [Tensor.double, lambda x: x.to(torch.float64), lambda x: x.type(torch.float64)],
    ),
    (
        "sin(permute(input_0, (1, 0)))",
        (X,),
        [lambda x: x.t().sin(), lambda x: x.t().t().t().sin(), lambda x: x.mT.sin()],
    ),
    (
        "sin(input_0)",
        (X,),
        [
            torch.sin,
            lambda x: x.contiguous().sin(),
            lambda x: x.clone().sin(),
            lambda x: x.view(12).view(2, 6).view(3, 4).sin(),
            lambda x: x.t().t().sin(),
            lambda x: x.float().sin(),
            lambda x: F.dropout(x, 0.5, training=False).sin(),
        ],
    ),
]


@pytest.mark.parametrize(
    ("form", "inputs", "spellings"), SPELLINGS, ids=[form for form, *_ in SPELLINGS]
)
def test_one_computation_has_one_form(
    form: str, inputs: tuple[Tensor, ...], spellings: list[Callable[..., Tensor]]
) -> None:
    for program in spellings:
        assert text(program, *inputs) == form


@pytest.mark.parametrize(
    ("program", "form"),
    [
        (lambda x: x.view(4, 3).sin(), "sin(reshape(input_0, (4, 3)))"),
        (lambda x: x.t().contiguous().sin(), "sin(contiguous(permute(input_0, (1, 0))))"),
        (
            lambda x: x.t().clone(memory_format=torch.contiguous_format).t().sin(),
            "sin(permute(clone(permute(input_0, (1, 0)), torch.contiguous_format), (1, 0)))",
        ),
        (lambda x: x.double().float(), "cast(cast(input_0, torch.float64), torch.float32)"),
        (lambda x: F.dropout(x, 0.5), "dropout(input_0)"),
        (lambda x: x**3, "pow(input_0, 3)"),
        (lambda x: x.expand(2, 3, 4).sin(), "sin(expand(input_0, (2, 3, 4)))"),
    ],
)
def test_what_changes_the_value_or_its_layout_is_seen(
    program: Callable[..., Tensor], form: str
) -> None:
    assert text(program, X) == form


def test_a_power_is_a_product_where_that_has_its_dtype() -> None:
    whole, truth = torch.arange(3), torch.tensor([True, False])
    assert text(lambda x: x**2.0, X) == "mul(input_0, input_0)"
    assert text(lambda x: x**2, whole) == "mul(input_0, input_0)"
    assert text(lambda x: x**2.0, whole) == "pow(input_0, 2.0)"
    assert text(torch.square, truth) == "square(input_0)"


def test_a_value_is_one_term_for_all_who_read_it() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.sin()
        return y + 1, y.contiguous() * 2

    terms, (one, two) = returned(program, X)
    (sin,) = [n for n in terms.graph.nodes if n.target == "sin"]
    assert terms.term(sin) is terms.term(sin)
    assert next(operands(one)).key == next(operands(two)).key == terms.term(sin).key
    assert [node.target for node in next(operands(two)).passed] == ["contiguous"]


def test_equal_calls_are_two_values() -> None:
    _, (one, two) = returned(lambda x: (x.sin(), x.sin()), X)
    assert shown(one) == shown(two)
    assert one.key != two.key


def test_operands_are_those_of_lists_too() -> None:
    _, (term,) = returned(lambda x, y: torch.cat([x.sin(), y]), X, Y)
    assert [shown(operand) for operand in operands(term)] == ["sin(input_0)", "input_1"]


def of_a_fresh_value(x: Tensor) -> Tensor:
    y = x * 2
    y.add_(1)
    return y.sin()


def twice(x: Tensor) -> Tensor:
    y = x * 2
    y.add_(1).mul_(3)
    return y.sin()


def after_it_was_read(x: Tensor) -> Tensor:
    y = x * 2
    z = y.sin()
    y.add_(1)
    return z + y


def of_a_copy(x: Tensor) -> Tensor:
    y = x.clone()
    y.add_(1)
    return y.sin()


@pytest.mark.parametrize(
    ("program", "form"),
    [
        (of_a_fresh_value, "sin(add(mul(input_0, 2), 1))"),
        (twice, "sin(mul(add(mul(input_0, 2), 1), 3))"),
        (after_it_was_read, "add(sin(mul(input_0, 2)), add(mul(input_0, 2), 1))"),
        (of_a_copy, "sin(add(input_0, 1))"),
    ],
)
def test_a_write_is_seen_by_who_reads_later(program: Callable[..., Tensor], form: str) -> None:
    assert text(program, X) == form


def of_an_input(x: Tensor) -> Tensor:
    x.add_(1)
    return x.sin()


def of_a_part(x: Tensor) -> Tensor:
    y = x * 2
    y[0].add_(1)
    return y.sin()


def by_index(x: Tensor) -> Tensor:
    y = x * 2
    y[0] = 1
    return y.sin()


def through_a_view(x: Tensor) -> Tensor:
    y = x * 2
    y.t().add_(1)
    return y.sin()


def seen_through_a_view(x: Tensor) -> Tensor:
    y = x * 2
    z = y.view(-1)
    y.add_(1)
    return z.sin()


def by_out(x: Tensor) -> Tensor:
    y = x * 2
    torch.cos(x, out=y)
    return y.sin()


@pytest.mark.parametrize(
    "program", [of_an_input, of_a_part, by_index, through_a_view, seen_through_a_view, by_out]
)
def test_a_write_that_is_not_all_of_a_value_blocks_it(program: Callable[..., Tensor]) -> None:
    _, (term,) = returned(program, X)
    (source,) = operands(term)
    assert (term.op, source.op, source.args) == ("sin", INPUT, ())
    assert "in between" in source.blocked or "others can see" in source.blocked


@pytest.mark.parametrize(
    "write",
    [
        lambda y: y.t_(),
        lambda y: y.transpose_(0, 1),
        lambda y: y.swapaxes_(0, 1),
        lambda y: y.swapdims_(0, 1),
        lambda y: y.unsqueeze_(0),
        lambda y: y.squeeze_(0),
        lambda y: y.as_strided_((2, 2), (1, 2)),
    ],
)
def test_a_reshape_in_place_blocks_it(write: Callable[[Tensor], Tensor]) -> None:
    """What is on record of the operand is of another time."""

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        z = write(y)
        return y.sin(), z.cos()

    terms = returned(program, X)[1]
    assert len(terms) > 0
    for term in terms:
        (source,) = operands(term)
        assert (source.op, source.args) == (INPUT, ())
        assert "in between" in source.blocked or "reshapes its operand" in source.blocked


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(
    "copy",
    [
        Tensor.clone,
        lambda y: y.t().clone().t(),
        lambda y: y.clone().clone(),
        lambda y: y.view(-1).clone().view(3, 4),
    ],
)
def test_a_copy_of_what_is_written_is_not_passed_over(
    copy: Callable[[Tensor], Tensor], inside: bool
) -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2 if inside else x
        z = copy(y)
        y.add_(1)
        return z.sin()

    _, (term,) = returned(program, X)
    (source,) = operands(term)
    assert source.op not in (INPUT, "mul")
    assert source.node is not None


def test_a_copy_of_what_was_written_is() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        y.add_(1)
        z = y.clone().sin()
        y.add_(1)
        return z

    assert text(program, X) == "sin(add(mul(input_0, 2), 1))"


def test_memory() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        z = y.view(-1)
        x.add_(1)
        return y.add_(1), z

    terms, _ = returned(program, X)
    x, y, z, first, second = [n for n in terms.graph.nodes if n.op != "output"]
    assert terms.writes(x) == [first]
    assert terms.writes(y) == terms.writes(z) == [second]
    assert not terms.is_fresh(x)
    assert terms.is_fresh(y)
    assert terms.is_fresh(z)
    assert terms.aliases_of_whole(y) == [y, second]
    assert terms.aliases_of_whole(z) == [z]


@pytest.mark.parametrize(
    ("program", "op"),
    [
        (lambda x, w: F.linear(x, w, w[:, 0]), "add"),
        (lambda x, w: F.linear(x, w), "matmul"),
        (lambda x, w: (w * 2).t(), "permute"),
        (lambda x, w: (w * 2).T, "permute"),
        (lambda x, w: F.silu(x), "mul"),
        (lambda x, w: x.double(), "cast"),
        (lambda x, w: x * 2, "mul"),
        (lambda x, w: (x * 2).add_(1), "add"),
    ],
)
def test_calls_are_found_by_the_names_their_term_can_have(
    program: Callable[..., Tensor], op: str
) -> None:
    _, (term,) = returned(program, X, W)
    assert term.op == op
    assert plain_name(term.owner) in root_names(op)
