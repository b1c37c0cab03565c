"""Programs that once gave other results than eager: state that arms share, or hand to each other."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fusepass

UP, DOWN = torch.ones(4), -torch.ones(4)


def infinite_before_the_branch(x: Tensor) -> Tensor:
    y = 1 / (x - 1)
    if torch.isinf(y).any():
        y = x * 2
    return y * 3


def iterator_advanced_in_one_arm(x: Tensor) -> Tensor:
    scales = iter(range(2, 9))
    h = x * next(scales)
    if x.sum() > 0:
        h = h * next(scales)
    return h * next(scales)


def iterator_advanced_in_both_arms(x: Tensor) -> Tensor:
    scales = itertools.cycle((2.0, 3.0, 5.0))
    h = x * next(scales)
    h = h * next(scales) if x.sum() > 0 else h + next(scales)
    return h * next(scales)


def one_list_under_two_names(x: Tensor) -> list[Tensor]:
    if x.sum() > 0:
        a = [x * 2]
        b = a
    else:
        a = [x * 3]
        b = a
    b.append(x)
    return a


def two_lists_in_one_arm_only(x: Tensor) -> list[Tensor]:
    if x.sum() > 0:
        a = [x * 2]
        b = a
    else:
        a = [x * 3]
        b = [x * 4]
    b.append(x)
    return a


def exception_caught_beyond_the_join(x: Tensor) -> Tensor:
    h = x
    for _ in range(2):
        try:
            if h.sum() > 0:
                raise ValueError("up")
            h = h - 1
        except ValueError:
            h = h + 10
    return h


def running_statistics(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    h = x.view(1, 2, 2)
    if x.sum() > 0:
        h = nn.functional.instance_norm(h, mean, var)
    return h + mean.sum()


def only_the_shape_of_a_leaf(x: Tensor, w: Tensor) -> Tensor:
    return x.sum().expand_as(w) if x.sum() > 0 else x * w


def written_in_place_in_an_arm(x: Tensor, w: Tensor) -> Tensor:
    h = x.clone()
    y = h.exp()
    if x.sum() > 0:
        z = y.clone()
        z.mul_(w)
    else:
        z = y * 2
    return z


def other_writes_in_equal_arms(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x.clone()
        y.add_(1)
    elif x.max() > -2:
        y = x.clone()
        y.mul_(2)
    else:
        y = x.clone()
    return y + 1


def written_between_two_reductions(x: Tensor) -> Tensor:
    flags = x > 0
    first = flags.any()
    flags.fill_(False)
    return first | flags.any()


def run(function: Callable[..., Any], inputs: tuple[Tensor, ...]) -> tuple[Any, list[Any]]:
    mine = tuple(t.clone().requires_grad_(t.requires_grad) for t in inputs)
    result = function(*mine)
    leaves = result if isinstance(result, list) else [result]
    roots = [leaf for leaf in leaves if leaf.requires_grad]
    if roots:
        torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
    return leaves, [t.grad if t.requires_grad else t for t in mine]


CASES: list[tuple[Callable[..., Any], tuple[Tensor, ...]]] = [
    (infinite_before_the_branch, ()),
    (iterator_advanced_in_one_arm, ()),
    (iterator_advanced_in_both_arms, ()),
    (one_list_under_two_names, ()),
    (two_lists_in_one_arm_only, ()),
    (exception_caught_beyond_the_join, ()),
    (only_the_shape_of_a_leaf, (torch.rand(4),)),
    (written_in_place_in_an_arm, (torch.rand(4),)),
    (other_writes_in_equal_arms, ()),
    (written_between_two_reductions, ()),
]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(("function", "more"), CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_same_as_eager(function: Callable[..., Any], more: tuple[Tensor, ...], grad: bool) -> None:
    compiled = torch.compile(function, backend="fusepass", options={"codegen": "eager"})
    for x in (UP, DOWN, UP * 0.5):
        inputs = tuple(t.clone().requires_grad_(grad) for t in (x, *more))
        want, got = run(function, inputs), run(compiled, inputs)
        for a, b in zip(itertools.chain(*want), itertools.chain(*got), strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                assert torch.equal(a.nan_to_num(7), b.nan_to_num(7))
                assert torch.equal(a.isnan(), b.isnan())


def test_running_statistics_move_only_when_the_arm_runs() -> None:
    compiled = torch.compile(running_statistics, backend="fusepass", options={"codegen": "eager"})
    for x in (UP, DOWN):
        theirs, mine = (torch.zeros(2), torch.ones(2)), (torch.zeros(2), torch.ones(2))
        assert torch.equal(compiled(x, *mine), running_statistics(x, *theirs))
        assert all(map(torch.equal, mine, theirs))


def test_a_selection_written_by_hand_stays_a_fresh_tensor() -> None:
    def program(p: Tensor, x: Tensor) -> Tensor:
        return torch.where(p, x, x.detach())

    x = torch.randn(3, requires_grad=True)
    result = torch.compile(program, backend="fusepass")(torch.tensor(True), x)
    assert result.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


@pytest.mark.parametrize("codegen", ["eager", "inductor"])
def test_nested_branches_and_views_as_cond(codegen: str) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        h = x * 2
        if x.sum() > 0:
            y = h.view(2, 2) if x.max() > 0.7 else (h + 1).view(2, 2)
        else:
            y = h.view(2, 2) * 3
        return y * 1, h

    options = {"codegen": codegen, "treatment": "cond"}
    compiled = torch.compile(program, backend="fusepass", options=options)
    for x in (UP, UP * 0.5, DOWN):
        for got, want in zip(compiled(x), program(x), strict=True):
            torch.testing.assert_close(got, want)
    assert {d.treatment for d in fusepass.last_report(compiled).decisions if d.treatment} <= {
        "cond",
        "keep",
    }
