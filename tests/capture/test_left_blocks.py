"""Arms that leave a with-block which the branch stands in."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import fusepass
from fusepass.errors import CaptureFault

COUNT = torch.zeros(1)
INPUTS = (torch.ones(2), -torch.ones(2), torch.tensor([0.3, -0.4]))


class Plain:
    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class Counting(Plain):
    def __exit__(self, *_: object) -> None:
        COUNT.add_(1)


class Mode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def counting() -> Iterator[None]:
    yield
    COUNT.add_(1)


def suppressing() -> Any:
    return contextlib.suppress(KeyError)


def one_arm(x: Tensor, block: Callable[[], Any]) -> Tensor:
    y = x
    with block():
        if x.sum() > 0:
            return x * 2
        y = x + 1
    return y * 3


def both_arms(x: Tensor, block: Callable[[], Any]) -> Tensor:
    with block():
        if x.sum() > 0:
            return x * 2
        return x + 1


def nested(x: Tensor, block: Callable[[], Any]) -> Tensor:
    with block():
        with block():
            if x.sum() > 0:
                return x * 2
        if x.max() > -0.5:
            return x * 3
    return x * 4


def loop(x: Tensor, block: Callable[[], Any]) -> Tensor:
    for _ in range(3):
        with block():
            if x.sum() > 0:
                break
            x = x + 1
    return x * 2


def helper(x: Tensor, block: Callable[[], Any]) -> Tensor:
    return one_arm(x, block) + both_arms(x, block)


PROGRAMS = (one_arm, both_arms, nested, loop, helper)


def _treatments(program: Callable[..., Any], block: Callable[[], Any]) -> set[str]:
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for given in INPUTS:
        x, twin = (given.clone().requires_grad_() for _ in range(2))
        COUNT.zero_()
        wanted, left = program(twin, block), COUNT.item()
        COUNT.zero_()
        with warnings.catch_warnings():
            warnings.simplefilter("error", CaptureFault)
            got = compiled(x, block)
        assert torch.equal(got, wanted)
        assert got.requires_grad == wanted.requires_grad
        if wanted.requires_grad:
            got.sum().backward()
            wanted.sum().backward()
            assert torch.equal(x.grad, twin.grad)
        assert COUNT.item() == left
    branches = [d for d in fusepass.last_report(compiled).decisions if d.rule == "branch"]
    kept = {d.reason for d in branches if d.treatment == "keep"}
    assert all("leaves a with-block" in reason for reason in kept)
    return {d.treatment for d in branches}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("block", [suppressing, Plain, contextlib.nullcontext])
def test_a_block_without_state_is_left_in_both_arms(
    program: Callable[..., Any], block: Callable[[], Any]
) -> None:
    assert _treatments(program, block) == {"where"}


STATEFUL = [counting, torch.no_grad, torch._C.DisableTorchFunctionSubclass, Mode]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("block", STATEFUL)
def test_a_block_whose_state_cannot_be_put_back_keeps_the_branch(
    program: Callable[..., Any], block: Callable[[], Any]
) -> None:
    assert "keep" in _treatments(program, block)


@pytest.mark.parametrize("program", [both_arms, helper])
def test_effects_of_leaving_a_with_block_happen_once(
    program: Callable[..., Any],
) -> None:
    _treatments(program, Counting)
