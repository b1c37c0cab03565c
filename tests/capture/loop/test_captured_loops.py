"""Captured loops equal eager where the corpus does not look: inputs written, gradients, recompiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass

EAGER = {"codegen": "eager"}


def treatments(compiled: Any) -> list[str]:
    return [d.treatment for d in fusepass.last_report(compiled).decisions if d.rule == "branch"]


def compiled_of(function: Callable[..., Any]) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="fusepass", options=EAGER)


def test_an_input_is_written_as_in_eager() -> None:
    def function(x: Tensor) -> Tensor:
        while x.sum() > 1:
            x.mul_(0.5)
        return x * 2

    compiled = compiled_of(function)
    for scale in (8.0, 0.1):
        ours, theirs = torch.ones(4) * scale, torch.ones(4) * scale
        assert torch.equal(compiled(ours), function(theirs))
        assert torch.equal(ours, theirs)
    assert treatments(compiled) == ["loop"]


def test_a_view_of_what_is_written_shows_it() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        out = torch.zeros(8)
        part = out[2:4]
        while x.norm() > 1:
            x = x * 0.5
            out += 1
        return part, out

    compiled = compiled_of(function)
    part, out = compiled(torch.ones(4) * 8)
    assert torch.equal(out, function(torch.ones(4) * 8)[1])
    assert part.data_ptr() == out.data_ptr() + 2 * out.element_size()
    assert treatments(compiled) == ["loop"]


def test_a_loop_that_would_be_differentiated_is_kept() -> None:
    def function(x: Tensor) -> Tensor:
        while x.norm() > 1:
            x = x * 0.5
        return x * 2

    compiled = compiled_of(function)
    x = torch.ones(4, requires_grad=True)
    compiled(x).sum().backward()
    assert torch.equal(x.grad, torch.full((4,), 1.0))  # type: ignore[arg-type]
    report = fusepass.last_report(compiled)
    assert {str(d.reason_code) for d in report.decisions if d.treatment == "keep"} == {
        "no_gradient"
    }


def test_the_same_loop_without_autograd_is_captured() -> None:
    def function(x: Tensor) -> Tensor:
        while x.norm() > 1:
            x = x * 0.5
        return x * 2

    compiled = compiled_of(function)
    with torch.no_grad():
        compiled(torch.ones(4, requires_grad=True))
    assert treatments(compiled) == ["loop"]


@pytest.mark.parametrize("scale", [0.1, 8.0])
def test_requires_grad_is_as_in_eager_where_there_is_no_round(scale: float) -> None:
    def function(x: Tensor) -> Tensor:
        y = torch.sin(x) * scale
        with torch.no_grad():
            while y.norm() > 1:
                y = y * 0.5
        return y

    compiled = compiled_of(function)
    x = torch.ones(4, requires_grad=True)
    wanted = function(x)
    found = compiled(x)
    assert found.requires_grad == wanted.requires_grad == (scale < 1)
    assert torch.equal(found, wanted)
    if wanted.requires_grad:
        (grad,) = torch.autograd.grad(found.sum(), x)
        assert torch.equal(grad, torch.autograd.grad(wanted.sum(), x)[0])


@pytest.mark.parametrize("bound", [3, 40, 200])
def test_a_counter_with_a_bound(bound: int) -> None:
    def function(x: Tensor, most: int) -> tuple[Tensor, int]:
        it = 0
        while x.norm() > 1e-3 and it < most:
            x = x * 0.9
            it += 1
        return x + 0, it

    compiled = compiled_of(function)
    for most in (bound, bound + 1, 0):
        ours, theirs = compiled(torch.ones(4), most), function(torch.ones(4), most)
        assert torch.equal(ours[0], theirs[0])
        assert (ours[1], type(ours[1])) == (theirs[1], int)


def test_a_number_that_outgrows_64_bits_is_kept() -> None:
    def function(x: Tensor) -> tuple[Tensor, int]:
        n = 1
        while x.norm() > 1:
            x = x * 0.9
            n = n * 3
        return x + 0, n

    compiled = compiled_of(function)
    assert compiled(torch.ones(4) * 1000)[1] == function(torch.ones(4) * 1000)[1]
    assert "loop" not in treatments(compiled)


def test_a_loop_in_an_arm_makes_no_round_if_it_is_not_taken() -> None:
    def function(x: Tensor, go: Tensor) -> Tensor:
        if go.sum() > 0:
            while x.norm() > 1:
                x = x * 0.9
        else:
            x = x * 3
        return x + 1

    compiled = compiled_of(function)
    endless = torch.full((4,), float("inf"))  # the loop would not end
    for x, go in ((torch.ones(4) * 8, 1.0), (torch.ones(4) * 8, -1.0), (endless, -1.0)):
        assert torch.equal(compiled(x, torch.tensor(go)), function(x, torch.tensor(go)))
    assert set(treatments(compiled)) == {"loop", "where"}


def test_a_key_out_of_range_raises_as_in_eager() -> None:
    def function(x: Tensor) -> Tensor:
        out, n = torch.zeros(4), 0
        while x.norm() > 1:
            x = x * 0.9
            out[n] = x.sum()
            n += 1
        return out

    compiled = compiled_of(function)
    assert torch.equal(compiled(torch.ones(4) * 0.6), function(torch.ones(4) * 0.6))
    with pytest.raises(IndexError):
        compiled(torch.ones(4) * 100)
