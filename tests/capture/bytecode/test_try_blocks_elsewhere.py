"""Calls that may fail under handlers of callers, in bodies of operators, and what capture defers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fusepass

from ..support.tried import BAD, GOOD, IN, OUT, SEEN, Quiet, X, bare, ends, lookup, matrices, places


def decomposed(x: Tensor) -> Tensor:
    y = x * 2
    try:
        factor = torch.linalg.cholesky(y)
    except torch.linalg.LinAlgError:
        factor = torch.zeros_like(x)
    return factor + 1


def test_a_decomposition() -> None:
    outcome = matrices(decomposed)
    (why,) = ends(outcome)
    line = decomposed.__code__.co_firstlineno
    assert f"linalg_cholesky raises for some matrices, and a try statement (line {line + 4})" in why
    assert outcome.decisions[0]["line"] == line + 3
    assert "in eager mode" in why


def raises_inside(x: Tensor, i: Tensor) -> Any:
    try:
        if (x > 3).any():
            raise ValueError(f"{x.max():.1f}")
        y = x * 2
    except ValueError as error:
        return str(error)
    return y


def checks_inside(x: Tensor, i: Tensor) -> Any:
    try:
        torch._check(x.max().item() < 5)
        y = x * 2
    except RuntimeError:
        return x - 1
    return y


def asserts_inside(x: Tensor, i: Tensor) -> Any:
    try:
        torch._assert((x < 5).all(), "too large")
        y = x * 2
    except AssertionError as error:
        return str(error)
    finally:
        SEEN.append("left")
    return y


def raises_past(x: Tensor, i: Tensor) -> Any:
    try:
        if (x > 5).any():
            raise ValueError(f"{x.max():.1f}")
        y = x * 2
    except KeyError:
        y = x
    return y


def converts(x: Tensor, i: Tensor) -> Any:
    try:
        return x * int(x.log().sum().item())
    except (ValueError, OverflowError):
        return x


def divides(x: Tensor, i: Tensor) -> Any:
    try:
        return x * (1 / (x - 4).max().item())
    except ZeroDivisionError:
        return x


def prints_and_fails(x: Tensor, i: Tensor) -> Tensor:
    try:
        print("at", i)  # noqa: T201
        y = x[i]
        print("found", y)  # noqa: T201
    except IndexError as error:
        print("failed", error)  # noqa: T201
        y = x
    return y * 2


@pytest.mark.parametrize(
    "program",
    [
        raises_inside,
        checks_inside,
        asserts_inside,
        raises_past,
        converts,
        divides,
        prints_and_fails,
    ],
    ids=lambda p: p.__name__,
)
def test_what_capture_defers_is_seen_by_the_handler(program: Callable[..., Any]) -> None:
    SEEN.clear()
    places(program)
    assert SEEN[::2] == SEEN[1::2]


def transformed(x: Tensor, i: Tensor) -> Tensor:
    x = x.sin()
    try:
        return torch.func.vmap(lambda row: row[i] * 2)(x.expand(2, 4))
    except IndexError:
        return x


def checkpointed(x: Tensor, i: Tensor) -> Tensor:
    x = x.sin()
    try:
        return torch.utils.checkpoint.checkpoint(lookup, x, i, use_reentrant=False)
    except IndexError:
        return x


def conditional(x: Tensor, i: Tensor) -> Tensor:
    x = x.sin()
    try:
        return torch.cond(x.sum() > 0, lambda y: y[i] * 2, lambda y: y[:2] + 1, (x,))
    except IndexError:
        return x


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, i: Tensor) -> Tensor:
        return x[i] * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return torch.cat([grad, grad]), None


def function(x: Tensor, i: Tensor) -> Tensor:
    x = x.sin()
    try:
        return Doubled.apply(x, i)  # type: ignore[no-any-return]
    except IndexError:
        return x


@pytest.mark.parametrize(
    "program", [transformed, checkpointed, conditional, function], ids=lambda p: p.__name__
)
def test_try_blocks_in_bodies_of_higher_order_operators(program: Callable[..., Any]) -> None:
    assert ends(places(program))
    assert ends(places(program, grad=True)) or program is conditional


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 3)
        self.last = nn.Linear(3, 3)

    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        try:
            h = self.last(self.table(i))
        except Exception:  # noqa: BLE001
            h = x
        return h.sum()


def test_the_line_is_that_of_the_program() -> None:
    outcome = places(Table(), grad=True)
    (decision,) = [d for d in outcome.decisions if d["rule"] == "try"]
    assert decision["file"] == __file__
    assert decision["line"] == Table.forward.__code__.co_firstlineno + 2
    assert "an index outside the table raises" in decision["reason"]


def given_up(x: Tensor, i: Tensor) -> Tensor:
    """Dynamo leaves it in eager before it comes to the try."""
    for _ in range(2):
        torch._dynamo.graph_break()
        try:
            with torch.no_grad(), bare():
                y = lookup(x, i)
        except LookupError:
            y = x
    return y


def given_up_and_suppressed(x: Tensor, i: Tensor) -> Tensor:
    y = x
    for _ in range(2):
        torch._dynamo.graph_break()
        with contextlib.suppress(IndexError):
            y = lookup(x, i)
    return y


def given_up_under_modes(x: Tensor, i: Tensor) -> Tensor:
    quiet = torch.no_grad()
    for _ in range(2):
        torch._dynamo.graph_break()
        with quiet, Quiet(), bare(), torch.autocast("cpu", enabled=False):
            y = lookup(x, i)
    return y


def test_handlers_of_callers_in_eager() -> None:
    for codegen in ("eager", "inductor"):
        assert ends(places(given_up, codegen=codegen))
        assert ends(places(given_up_and_suppressed, codegen=codegen))
    assert ends(places(given_up_under_modes)) == []


def given_up_with_a_try_later(x: Tensor, i: Tensor) -> Tensor:
    y = x
    for turn in range(2):
        torch._dynamo.graph_break()
        if turn == 0:
            y = lookup(x, i)
            continue
        try:
            y = lookup(x, i)
        except LookupError:
            y = x
    return y


def test_why_it_is_compiled_again() -> None:
    fusepass.reset()
    options = {"codegen": "eager"}
    compiled = torch.compile(given_up_with_a_try_later, backend="fusepass", options=options)
    with torch._dynamo.config.patch(error_on_recompile=True):
        with pytest.raises(torch._dynamo.exc.RecompileError) as raised:
            compiled(X, IN)
    assert str(raised.value).endswith("0: no caller handles errors of its calls")


def resumed(x: Tensor, i: Tensor) -> Tensor:
    with torch.no_grad():
        y = x.sin()
        torch._dynamo.graph_break()
        y = y.cos()[i] * 2
    return y + 1


def test_code_that_goes_on_inside_a_with_block() -> None:
    assert ends(places(resumed)) == []


def test_one_graph_is_refused_with_the_cause() -> None:
    fusepass.reset()
    compiled = torch.compile(decomposed, backend="fusepass", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported) as raised:
        compiled(GOOD)
    text = str(raised.value)
    assert "linalg_cholesky raises for some matrices, and a try statement (line" in text
    assert "cholesky_ex" in text
    assert '"try": False' in text


def test_switched_off_it_stays_in_the_graph() -> None:
    fusepass.reset()
    options = {"codegen": "eager", "rules": {"try": False}}
    compiled = torch.compile(decomposed, backend="fusepass", fullgraph=True, options=options)
    assert torch.equal(compiled(GOOD), decomposed(GOOD))
    with pytest.raises(torch.linalg.LinAlgError):
        compiled(BAD)


async def awaited(x: Tensor, i: Tensor) -> Tensor:
    try:
        return x[i] * 2
    except IndexError:
        return x


def test_a_coroutine_runs_in_eager() -> None:
    import asyncio

    fusepass.reset()
    compiled = torch.compile(awaited, backend="fusepass", options={"codegen": "eager"})
    for i in (IN, OUT, IN):
        assert torch.equal(asyncio.run(compiled(X, i)), asyncio.run(awaited(X, i)))
