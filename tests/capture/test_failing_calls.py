"""A call that fails while it is traced fails as in eager, behind what stands in front of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass

OPTIONS = {"codegen": "eager"}
HUGE = 10**39


def by_number(x: Tensor, y: Tensor) -> Tensor:
    return x / HUGE


def by_number_read(x: Tensor, y: Tensor) -> Tensor:
    number = round(float(y[0]))
    print("read")  # noqa: T201  # what stands in front of the call is seen
    return x / number


def sizes(x: Tensor, y: Tensor) -> Tensor:
    return (x * 2) @ y


def _helper(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x, y], 1)


def in_a_helper(x: Tensor, y: Tensor) -> Tensor:
    x = x + 1
    return _helper(x, y) * 2


def behind_a_branch(x: Tensor, y: Tensor) -> Tensor:
    if (x > 0).all():
        x = x * 2
    return x.view(7)


def caught(x: Tensor, y: Tensor) -> Tensor:
    try:
        return x / HUGE
    except OverflowError:
        return x - 1


def caught_by_another(x: Tensor, y: Tensor) -> Tensor:
    try:
        return x / HUGE
    except (ValueError, IndexError):
        return x - 1


def index_outside(x: Tensor, y: Tensor) -> Tensor:
    x = x + 1
    return x[7] * 2


def dimension_outside(x: Tensor, y: Tensor) -> Tensor:
    return x.sum(2)


def caught_index(x: Tensor, y: Tensor) -> Tensor:
    try:
        return x[7] * 2
    except IndexError:
        return x - 1


def caught_index_in_a_loop(x: Tensor, y: Tensor) -> Tensor:
    rows = []
    for at in (0, 7, 2):
        try:
            rows.append(x[at])
        except IndexError:
            rows.append(y[:2].float())
    return torch.stack(rows)


def _last_dimension(x: Tensor) -> Tensor:
    try:
        return x.sum(2)
    except IndexError:
        return x.sum(1)


def caught_index_in_a_helper(x: Tensor, y: Tensor) -> Tensor:
    return _last_dimension(x) + _last_dimension(x[None])


def caught_index_behind_a_branch(x: Tensor, y: Tensor) -> Tensor:
    if (x > 0).all():
        x = x * 2
    try:
        return x.transpose(0, 4)
    except IndexError as error:
        return x * len(str(error))


def index_not_caught(x: Tensor, y: Tensor) -> Tensor:
    try:
        return x[7] * 2
    except RuntimeError:
        return x - 1


def outcome(program: Callable[..., Any], *args: Any) -> tuple[str, Any]:
    try:
        return "result", program(*args)
    except Exception as error:  # noqa: BLE001  # compared below
        return type(error).__name__, str(error).splitlines()[0]


@pytest.mark.parametrize(
    "program",
    [
        *(by_number, by_number_read, sizes, in_a_helper, behind_a_branch, caught),
        *(caught_by_another, index_outside, dimension_outside, index_not_caught, caught_index),
        *(caught_index_in_a_loop, caught_index_in_a_helper, caught_index_behind_a_branch),
    ],
)
def test_failing_calls_raise_as_in_eager(
    program: Callable[..., Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = torch.compile(program, backend="fusepass", options=OPTIONS)
    x, y = torch.rand(3, 2) + 1, torch.full((5,), 1e39, dtype=torch.float64)
    expected = outcome(program, x, y)
    printed = capsys.readouterr().out
    for _ in range(2):
        kind, value = outcome(compiled, x, y)
        assert kind == expected[0]
        if kind == "result":
            assert torch.equal(value, expected[1])
        else:
            assert value == expected[1]
        assert capsys.readouterr().out == printed


def test_the_next_call_may_succeed() -> None:
    compiled = torch.compile(sizes, backend="fusepass", options=OPTIONS, dynamic=False)
    x, y = torch.rand(3, 2), torch.rand(2, 4)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            compiled(x, torch.rand(3, 3))
    assert torch.equal(compiled(x, y), sizes(x, y))
    assert fusepass.last_report(compiled).operations == (2,)


def test_report_of_failing_calls() -> None:
    compiled = torch.compile(sizes, backend="fusepass", options=OPTIONS)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        compiled(torch.rand(3, 2), torch.rand(3, 3))
    reasons = [one["reason"] for one in fusepass.last_report(compiled).graph_breaks]
    (reason,) = reasons
    assert "RuntimeError" in reason or "must have same reduction dim" in reason
    assert "fake tensor" not in reason


def test_a_whole_graph_is_wanted() -> None:
    compiled = torch.compile(by_number, backend="fusepass", options=OPTIONS, fullgraph=True)
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError):
        compiled(torch.rand(3), torch.rand(3))


@pytest.mark.parametrize("program", [index_outside, caught_index])
def test_a_whole_graph_is_wanted_with_an_index(program: Callable[..., Tensor]) -> None:
    compiled = torch.compile(program, backend="fusepass", options=OPTIONS, fullgraph=True)
    with pytest.raises((IndexError, torch._dynamo.exc.TorchRuntimeError)):
        compiled(torch.rand(3, 2), torch.rand(3))


def test_other_backends_are_as_they_were() -> None:
    torch.compile(by_number, backend="fusepass", options=OPTIONS)
    compiled = torch.compile(by_number, backend="eager")
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError):
        compiled(torch.rand(3), torch.rand(3))


def test_an_index_that_varies() -> None:
    """Torch 2.11 does not guard on an index that varies being inside."""

    def row(x: Tensor, at: int) -> Tensor:
        try:
            return x[at]
        except IndexError:
            return x[0] * 0

    compiled = torch.compile(row, backend="fusepass", options=OPTIONS)
    x = torch.rand(4, 4)
    for at in (0, 3, 2, 9, -4, -5, 1):
        assert torch.equal(compiled(x, at), row(x, at))


@pytest.mark.parametrize("sizes", [(5, 5), (5, 7)])
def test_an_index_that_varies_in_an_arm(sizes: tuple[int, int]) -> None:
    def row(x: Tensor, at: int) -> Tensor:
        if x.sum() > 0:
            return x[at]
        return x[0]

    compiled = torch.compile(row, backend="fusepass", options=OPTIONS)
    for size in sizes:
        x = torch.rand(size, 3)
        for sign, at in ((1, 2), (1, 3), (-1, 9), (-1, 2), (1, 4)):
            assert torch.equal(compiled(x * sign, at), row(x * sign, at))
