"""What is found out about a pattern's inputs by running it on variations of the example."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest
import torch
import torch.nn.functional as F

from fusepass import Rule
from fusepass.testing.case import LAYOUTS, plain_case
from fusepass.testing.inputs import Values, inputs_of
from fusepass.testing.space import Space, space_of


def space(pattern, *example) -> Space:
    return space_of(Rule("r", pattern, pattern, example))


def groups(found: Space) -> set[frozenset[tuple[int, int]]]:
    return {frozenset(axis for axis, _ in dim.axes) for dim in found.dims}


def test_sizes_that_belong_together_are_one_though_all_are_equal():
    example = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4)
    found = space(lambda x, w, b: F.linear(x, w, b), *example)
    assert groups(found) == {
        frozenset({(0, 0)}),
        frozenset({(0, 1), (1, 1)}),
        frozenset({(1, 0), (2, 0)}),
    }


def test_pointwise_operands_share_each_axis():
    example = [torch.randn(4, 4) for _ in range(3)]
    found = space(lambda x, y, z: x + y * z, *example)
    assert groups(found) == {frozenset((p, axis) for p in range(3)) for axis in range(2)}
    assert (1, 0) in found.ones
    assert found.same == ((0, 1), (0, 2), (1, 2))


def test_a_size_that_must_be_even_is_drawn_even():
    def gated(x):
        left, right = x.chunk(2, -1)
        return left * right

    found = space(gated, torch.randn(4, 8))
    dim = next(dim for dim in found.dims if dim.axes == (((0, 1), 1),))
    assert {2, 16} <= set(dim.sizes)
    assert not {5, 7, 17} & set(dim.sizes)


def test_sizes_in_proportion_move_together():
    def pattern(x, y):
        left, right = x.chunk(2, -1)
        return left * right + y

    found = space(pattern, torch.randn(3, 8), torch.randn(3, 4))
    assert frozenset({(0, 1), (1, 0), (1, 1), (0, 0)}) not in groups(found)
    (pair,) = [dim for dim in found.dims if dict(dim.axes).get((0, 1)) == 2]
    assert dict(pair.axes)[1, 1] == 1


def test_a_size_written_into_the_pattern_stays():
    found = space(lambda x: x + torch.ones(8), torch.randn(4, 8))
    assert groups(found) == {frozenset({(0, 0)})}


def test_only_values_the_pattern_accepts_are_drawn():
    found = space(lambda x, dim: x.softmax(dim), torch.randn(4, 8), -1)
    assert set(found.scalars[1]) == {-1, 0, 1, -2}
    assert found.scalars[1][0] == -1
    dtypes = {choice[0] for choice in found.dtypes}
    assert dtypes == {torch.float32, torch.float64, torch.bfloat16, torch.float16}


def test_promotion_and_integers_where_the_pattern_takes_them():
    found = space(lambda x, y: x * y, torch.randn(4), torch.randn(4))
    assert (torch.float64, torch.float32) in found.dtypes
    assert (torch.int64, torch.int64) in found.dtypes
    assert found.lifts == ((0,), (1,), (0, 1))


def test_an_index_is_drawn_from_the_example():
    table, index = torch.randn(5, 3), torch.tensor([[0, 4], [2, 2]])
    found = space(lambda t, i: F.embedding(i, t), table, index)
    case = dataclasses.replace(plain_case(found), seed=1)
    for seed in range(5):
        _, drawn = inputs_of(case, found, seed=seed)
        assert set(drawn.flatten().tolist()) <= {0, 2, 4}


def test_example_written_to_by_the_pattern_is_left_alone():
    example = torch.zeros(3)
    space(lambda x: x.add_(1), example)
    assert torch.equal(example, torch.zeros(3))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("values", get_args(Values))
def test_inputs_follow_from_the_case(layout: str, values: Values):
    found = space(lambda x: torch.exp(x), torch.randn(3, 5))
    case = dataclasses.replace(plain_case(found), layouts=(layout,))
    (one,), (other,) = (inputs_of(case, found, values) for _ in range(2))
    assert torch.equal(one.isnan(), other.isnan())
    assert torch.equal(one.nan_to_num(), other.nan_to_num())
    assert one.shape == (3, 5)
    assert one.requires_grad
    assert one.is_leaf
    assert one.is_contiguous() == (layout == "contiguous")
    assert (values == "special") >= bool(one.isnan().any())


def test_positive_examples_stay_positive():
    found = space(lambda x: torch.sqrt(x), torch.rand(3, 5))
    for values in ("normal", "edges"):
        (drawn,) = inputs_of(plain_case(found), found, values)
        assert bool((drawn >= 0).all())
