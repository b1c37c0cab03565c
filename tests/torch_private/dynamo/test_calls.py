"""``torch._check`` and its kin of what is not read raise what they raise in eager mode."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass


def before_a_branch_that_raises(x: Tensor) -> Tensor:
    torch._check(x.max().item() > 0.5)
    if x.isnan().any():
        raise ValueError("nan")
    return x * 2


def before_a_line(x: Tensor) -> Tensor:
    largest = x.max().item()
    torch._check(largest > 0.5, lambda: "small")
    print("largest", largest)  # noqa: T201
    return x / largest


def alone(x: Tensor) -> Tensor:
    torch._check(cond=(x > 0).sum().item() == x.numel())
    return x * 2


def of_all(x: Tensor) -> Tensor:
    torch._check_tensor_all(x > 0)
    return x * 2


def with_a_value_in_the_message(x: Tensor) -> Tensor:
    torch._check_value((x > 0).all().item(), lambda: f"bad: {x.min()}")
    return x * 2


def of_another_error(x: Tensor) -> Tensor:
    torch._check_tensor_all_with(KeyError, x > 0, lambda: f"bad: {x.min():.2f}")
    return x * 2


def of_an_error_given(x: Tensor) -> Tensor:
    torch._check_with(IndexError, x.sum().item() > 1, None)
    return x * 2


def twice(x: Tensor) -> Tensor:
    count = x.sum().to(torch.int64).item()
    torch._check(count >= 0, lambda: "negative")
    torch._check_index(count <= x.numel())
    return x + count


def _seen(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Any, str]:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            found: Any = function(x).tolist()
        except Exception as error:  # noqa: BLE001 - compared
            found = type(error), str(error)
    return found, printed.getvalue()


@pytest.mark.parametrize(
    "program",
    [
        before_a_branch_that_raises,
        before_a_line,
        alone,
        of_all,
        with_a_value_in_the_message,
        of_another_error,
        of_an_error_given,
        twice,
    ],
)
def test_a_check_is_a_branch_that_raises(program: Callable[[Tensor], Tensor]) -> None:
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    inputs = (torch.ones(4), -torch.ones(4), torch.tensor([1.0, -1.0, 1.0, 1.0]), torch.ones(4) * 9)
    for x in inputs:
        assert _seen(compiled, x) == _seen(program, x)
    report = fusepass.last_report(compiled)
    assert not report.graph_breaks
    assert "sink" in {decision.treatment for decision in report.decisions}


@pytest.mark.parametrize("off", ["branch", "sink", "print"])
def test_a_check_is_not_lost_with_a_rule_off(off: str) -> None:
    options = {"codegen": "eager", "rules": {off: False}}
    for program in (before_a_line, before_a_branch_that_raises, twice):
        compiled = torch.compile(program, backend="fusepass", options=options)
        for x in (torch.ones(4), -torch.ones(4)):
            (found, printed), expected = _seen(compiled, x), _seen(program, x)
            assert printed == expected[1]
            failed = isinstance(expected[0], tuple)  # Dynamo's own message, where it is a break
            assert failed == isinstance(found, tuple)
            assert failed or found == expected[0]


def test_a_text_for_a_message() -> None:
    def program(x: Tensor) -> Tensor:
        torch._check(x.max().item() > 0.5, "small")
        return x * 2

    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for x in (torch.ones(4), -torch.ones(4)):
        assert _seen(compiled, x) == _seen(program, x)


def test_a_check_through_inductor() -> None:
    compiled = torch.compile(before_a_line, backend="fusepass")
    for x in (torch.ones(4), -torch.ones(4)):
        assert _seen(compiled, x) == _seen(before_a_line, x)


def test_checks_of_sizes_are_dynamos() -> None:
    def program(x: Tensor) -> Tensor:
        torch._check(x.shape[0] >= 4)
        return x * 2

    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    assert torch.equal(compiled(torch.ones(4)), torch.full((4,), 2.0))
    assert "branch" not in {decision.rule for decision in fusepass.last_report(compiled).decisions}
