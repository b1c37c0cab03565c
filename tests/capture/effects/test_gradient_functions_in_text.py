"""``grad_fn`` in text: eager's name, also of what an arm left and of what a mask selected."""

# ruff: noqa: T201 - the programs print

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.fuzz.examine import without_names
from tests.harness.call import call

from ..support.written import assert_kept, assert_late, assert_same_text, treatments

Program = Callable[[Tensor, Tensor], Tensor]
MASKS = ([True, False, True], [False] * 3, [True] * 3)


def inputs(mask: list[bool]) -> Callable[[], tuple[Tensor, Tensor]]:
    def make() -> tuple[Tensor, Tensor]:
        x = torch.tensor([[2.0, -1.0], [0.5, 3.0], [-0.25, 1.0]], requires_grad=True)
        return x, torch.tensor(mask)[:, None].expand(3, 2).contiguous()

    return make


EVERY = [inputs(mask) for mask in MASKS]


def one_arm(x: Tensor, m: Tensor) -> Tensor:
    y = x * 2
    if m.any():
        y = y.tanh()
    print(y, [y.sum().item()])
    return y


def both_arms(x: Tensor, m: Tensor) -> Tensor:
    y = x[m.long()[:, 0]] if m.all() else x.exp()
    print(f"{y}", y)
    return y.sum()


def of_one_name(x: Tensor, m: Tensor) -> Tensor:
    y = x * 3 if m.all() else x * 2
    print(y)
    return y


def selected_in_an_arm(x: Tensor, m: Tensor) -> Tensor:
    y = x * 2
    y = y[m].mean() if m.any() else y.sum()
    print([y], y.item())
    return y


def nested(x: Tensor, m: Tensor) -> Tensor:
    y = x * 2
    if m.any():
        y = y.tanh()
        if m.all():
            y = y + 1
    print(y)
    return y.sum()


def chained(x: Tensor, m: Tensor) -> Tensor:
    y = x * 2
    turn = 0
    while turn < 3 and y.sum() < 30:
        y = torch.maximum(y, y + 4)
        turn += 1
    print(y)
    return y


def used_afterwards(x: Tensor, m: Tensor) -> Tensor:
    y = x.sin() if m.any() else x.cos()
    z = y / 2
    print(z, y.t())
    return z


def printed_in_an_arm(x: Tensor, m: Tensor) -> Tensor:
    y = x.sin() if m.any() else x.cos()
    if m.all():
        print("all", y)
        y = y * 2
    print(y)
    return y


def stored(x: Tensor, m: Tensor) -> Tensor:
    y = x * 2
    y[m] = 0
    print(y)
    return y


def largest(x: Tensor, m: Tensor) -> Tensor:
    y = x[m].mean() + 1
    print(y)
    return y


LATE: dict[str, Program] = {
    program.__name__: program
    for program in (
        one_arm,
        both_arms,
        of_one_name,
        selected_in_an_arm,
        chained,
        used_afterwards,
        printed_in_an_arm,
        stored,
        largest,
    )
}


@pytest.mark.parametrize("name", LATE)
def test_late(name: str) -> None:
    assert_late(assert_same_text(LATE[name], *EVERY, times=1))


@pytest.mark.parametrize("treatment", ["where", "cond"])
@pytest.mark.parametrize("name", ["one_arm", "chained", "selected_in_an_arm"])
def test_treatments(name: str, treatment: str) -> None:
    assert_late(assert_same_text(LATE[name], *EVERY, times=1, options={"treatment": treatment}))


def test_through_inductor() -> None:
    compiled = torch.compile(both_arms, backend="fusepass")
    for make in EVERY:
        assert call(compiled, make()).said == call(both_arms, make()).said
    assert_late(compiled)


def written_in_an_arm(x: Tensor, m: Tensor) -> Tensor:
    y = x * 2
    if m.any():
        y.add_(1)
    print(y)
    return y


def stored_in_an_arm(x: Tensor, m: Tensor) -> Tensor:
    y = x * 2
    if m.any():
        y[m] = 0
    print(y)
    return y


def predicate_written(x: Tensor, m: Tensor) -> Tensor:
    y, some = x * 2, m.any()
    if some:
        y = y.tanh()
    some.logical_not_()
    print(y)
    return y


@pytest.mark.parametrize(
    "program", [written_in_an_arm, stored_in_an_arm, predicate_written, nested]
)
def test_kept(program: Program) -> None:
    """Whose name is not known is not guessed: the call stays, behind a graph."""
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for make in EVERY:
        texts = [without_names(call(one, make()).said) for one in (program, compiled)]
        assert texts[0] == texts[1]
    assert_kept(compiled, "untraceable")


@pytest.mark.parametrize("program", [written_in_an_arm, stored_in_an_arm])
def test_late_without_gradients(program: Program) -> None:
    def detached(make: Callable[[], tuple[Tensor, Tensor]]) -> Callable[[], tuple[Tensor, Tensor]]:
        return lambda: tuple(t.detach() for t in make())  # type: ignore[return-value]

    compiled = assert_same_text(program, *map(detached, EVERY), times=1)
    assert {treatment for treatment, _ in treatments(compiled)} == {"late"}
