"""Numbers read from tensors only to be tested are not read; others are, where eager reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass.errors import CaptureFault

from ..support.opaque import note
from ..support.side_by_side import Outcome, side_by_side, signed

TURNS = signed(1.0, -0.5, 2.0, 0.25)


def reads(outcome: Outcome) -> int:
    """How often the graphs read a number."""
    return sum(n.target == "item" for gm in outcome.graphs for n in gm.graph.nodes)


def stored(x: Tensor) -> Tensor:
    total = x.sum().item()
    h = x * 2
    if total > 0:
        h = h + 1
    return h


def two_tests(x: Tensor) -> Tensor:
    total = x.sum().item()
    h = x * 2
    if total > 0:
        h = h + 1
    if total < -2:
        h = h * 3
    return h


def truth_stored(x: Tensor) -> Tensor:
    positive = (x.sum() > 0).item()
    if positive:
        return x * 2
    return x + 1


def truth_of_several_dimensions(x: Tensor) -> Tensor:
    if bool(x.sum().reshape(1, 1, 1) > 0):
        return x * 2
    return x + 1


def float_of(x: Tensor) -> Tensor:
    if float(x.sum()) > 0:
        return x * 2
    return x + 1


@pytest.mark.parametrize(
    "program", [stored, two_tests, truth_stored, truth_of_several_dimensions, float_of]
)
@pytest.mark.parametrize("grad", [False, True])
def test_not_read(program: Callable[[Tensor], Tensor], grad: bool) -> None:
    outcome = side_by_side(program, *TURNS, grad=grad)
    outcome.only("where", "pure_total")
    assert reads(outcome) == 0


def multiplied_by(x: Tensor) -> Tensor:
    total = x.sum().item()
    if total > 0:
        return x * total
    return x + 1


def returned(x: Tensor) -> tuple[Tensor, float]:
    total = x.sum().item()
    if total > 0:
        x = x * 2
    return x + 1, total


def used_behind_the_branch(x: Tensor) -> Tensor:
    n = int((x > 0).sum().item())
    h = x * 2
    if n > 2:
        h = h + 1
    return h[:n]


def appended(x: Tensor) -> tuple[Tensor, list[float]]:
    seen = []
    total = x.sum().item()
    seen.append(total)
    if total > 0:
        x = x * 2
    return x + 1, seen


def truth_returned(x: Tensor) -> tuple[Tensor, bool]:
    positive = bool(x.sum() > 0)
    if positive:
        x = x * 2
    return x + 1, positive


@pytest.mark.parametrize(
    "program", [multiplied_by, returned, used_behind_the_branch, appended, truth_returned]
)
def test_items_used_outside_of_tensor_arithmetic_are_read(program: Callable[[Tensor], Any]) -> None:
    """The values compared beside the tensors are Python numbers, of Python's types."""
    side_by_side(program, *TURNS)


@pytest.mark.parametrize("treatment", ["keep", "cond", "where"])
def test_every_treatment(treatment: str) -> None:
    outcome = side_by_side(stored, *TURNS, treatment=treatment)
    assert {used for used, _ in outcome.treatments} <= {treatment}


def test_two_reads_of_which_one_is_needed() -> None:
    """The other one stays on the device."""

    def program(x: Tensor) -> tuple[Tensor, float]:
        largest, total = x.max().item(), x.sum().item()
        h = x * 2
        if total > 0:
            h = h + 1
        return h, largest

    side_by_side(program, *TURNS)


def test_outcomes_in_turn_do_not_compile_anew() -> None:
    compiled = torch.compile(two_tests, backend="fusepass", options={"codegen": "eager"})
    compiled(TURNS[0][0])
    with torch._dynamo.config.patch(error_on_recompile=True):
        for (x,) in TURNS:
            assert torch.equal(compiled(x), two_tests(x))


@pytest.mark.parametrize("x", [torch.ones(2), torch.ones(0), torch.ones(2, 1)])
def test_several_elements_or_none_are_eagers_error(x: Tensor) -> None:
    def program(x: Tensor) -> Tensor:
        if x.item() > 0:
            return x * 2
        return x + 1

    side_by_side(program, (x,))


def test_a_number_of_a_branch_that_cannot_be_captured() -> None:
    def program(x: Tensor) -> Tensor:
        if x.sum().item() > 0:
            note("positive")
            x = x * 2
        return x + 1

    outcome = side_by_side(program, *TURNS)
    assert {t for t, _ in outcome.treatments} == {"keep"}


def test_in_a_helper_and_in_a_loop() -> None:
    def damped(x: Tensor, limit: float) -> Tensor:
        if x.abs().max().item() > limit:
            x = x / 2
        return x

    def program(x: Tensor) -> Tensor:
        x = x * 2
        for limit in (2.0, 1.0, 0.5):
            x = damped(x, limit)
        return x

    side_by_side(program, *TURNS, (torch.zeros(4),)).only("where", "pure_total")


def test_fullgraph() -> None:
    compiled = torch.compile(
        two_tests, backend="fusepass", options={"codegen": "eager"}, fullgraph=True
    )
    for (x,) in TURNS:
        assert torch.equal(compiled(x), two_tests(x))


def of_each_row(x: Tensor) -> Tensor:
    return torch.vmap(lambda row: row * row.sum().item())(x)


def listed_of_each_row(x: Tensor) -> Tensor:
    return torch.vmap(lambda row: row * row[:2].tolist()[0])(x)


def of_all_rows(x: Tensor) -> Tensor:
    return torch.vmap(lambda row: row * x.sum().item())(x)


def in_front_of_rows(x: Tensor) -> Tensor:
    total = x.sum().item()
    return torch.vmap(lambda row: row * total)(x)


def functionalized(x: Tensor) -> Tensor:
    result = torch.func.functionalize(lambda y: y * y.sum().item())(x)
    assert isinstance(result, Tensor)
    return result


@pytest.mark.parametrize(
    "program", [of_each_row, listed_of_each_row, of_all_rows, in_front_of_rows, functionalized]
)
def test_inside_a_transform_it_is_read(
    program: Callable[[Tensor], Tensor], recwarn: pytest.WarningsRecorder
) -> None:
    """What eager does there, an error for a number of each row included, is no fault of ours."""

    def called(function: Callable[[Tensor], Tensor], x: Tensor) -> Any:
        try:
            return function(x).tolist()
        except RuntimeError as error:
            return str(error)

    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    x = torch.arange(6.0).reshape(2, 3)
    for one in (x, -x):
        torch._dynamo.reset()  # Dynamo itself fails on a number that varies inside functionalize
        assert called(compiled, one) == called(program, one)
    decisions = [d for d in fusepass.last_report(compiled).decisions if d.station == "capture"]
    assert {(d.treatment, d.reason_code) for d in decisions} == {("keep", "untraceable")}
    assert not [one for one in recwarn if issubclass(one.category, CaptureFault)]
