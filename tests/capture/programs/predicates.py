"""Every kind of value that can stand behind ``if``: dtypes, shapes, NaN, signed zero, errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ..support.inputs import InputSets, cases, signs
from ..support.program import WHERE, Family, keep

FAMILY = Family("predicates")
DATA = (3, 4)


def taken_by_truth(x: Tensor, p: Tensor) -> Tensor:
    if p:
        y = x * 2
    else:
        y = x - 1
    return y


def negated_truth(x: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    h = x.sum()
    if not p:
        h = h + 1
    return h, x * 2


def with_predicates(values: list[object], dtype: torch.dtype, shape: tuple[int, ...]) -> InputSets:
    x = torch.arange(12.0).reshape(DATA)
    return [(x.clone(), torch.tensor(value, dtype=dtype).reshape(shape)) for value in values]


# name, dtype, values of the predicate (truthy and falsy ones)
SCALARS: list[tuple[str, torch.dtype, list[object]]] = [
    ("bool", torch.bool, [True, False]),
    ("uint8", torch.uint8, [255, 0, 2]),
    ("int8", torch.int8, [-128, 0]),
    ("int16", torch.int16, [256, 0]),
    ("int32", torch.int32, [1 << 16, 0]),
    ("int64", torch.int64, [1 << 32, 0, -1]),
    ("float16", torch.float16, [6e-8, 0.0, 1.0]),
    ("bfloat16", torch.bfloat16, [1e-38, 0.0]),
    ("float32", torch.float32, [1e-45, 0.0, -0.5]),
    ("float64", torch.float64, [5e-324, 0.0]),
    ("nan", torch.float32, [float("nan"), 0.0]),
    ("negative_zero", torch.float32, [-0.0, 0.0, 1.0]),
    ("infinity", torch.float32, [float("inf"), float("-inf"), 0.0]),
    ("fraction", torch.float32, [0.25, 0.0, -0.25]),
]
for name, dtype, values in SCALARS:
    FAMILY.add(
        f"scalar_{name}",
        lambda: taken_by_truth,
        lambda seed, v=values, d=dtype: with_predicates(v, d, ()),
        WHERE,
        grad=dtype.is_floating_point,
        frozen=(1,),
        tags="inductor" if name in {"bool", "int64", "nan", "negative_zero"} else "",
    )
    FAMILY.add(
        f"not_scalar_{name}",
        lambda: negated_truth,
        lambda seed, v=values, d=dtype: with_predicates(v, d, ()),
        WHERE,
    )

# One element, more than zero dimensions: truth is the same, results must not grow dimensions.
for label, shape in {"1": (1,), "1x1": (1, 1), "1x1x1": (1, 1, 1), "1x1x1x1": (1,) * 4}.items():
    FAMILY.add(
        f"shape_{label}",
        lambda: taken_by_truth,
        lambda seed, s=shape: with_predicates([True, False], torch.bool, s),
        WHERE,
        grad=True,
        tags="contexts inductor" if label == "1x1" else "contexts",
    )
    FAMILY.add(
        f"zero_dim_result_shape_{label}",
        lambda: negated_truth,
        lambda seed, s=shape: with_predicates([2.5, 0.0], torch.float32, s),
        WHERE,
        grad=True,
        frozen=(1,),
    )

# The predicate is computed: name, from x, and inputs on which it comes out both ways.
FROM_X: dict[str, Callable[[Tensor], Tensor]] = {
    "sum_as_truth": lambda x: (x > 0).sum(),
    "float_sum_as_truth": lambda x: x.clamp(min=0).sum(),
    "any": lambda x: (x > 0).any(),
    "all": lambda x: (x > -5).all(),
    "isnan_any": lambda x: (x / x.clamp(min=0)).isinf().any(),
    "equal_elements": lambda x: (x.abs() == x).all(),
    "keepdim": lambda x: x.sum(dim=(0, 1), keepdim=True) > 0,
    "element": lambda x: x[0, 0] > 0,
    "element_as_truth": lambda x: x[0, 0].clamp(min=0),
    "compare_two_elements": lambda x: x[0, 1] > x[0, 2],
    "norm": lambda x: x.clamp(min=0).norm() > 0.1,
    "argmax_index": lambda x: x.flatten().argmax(),
    "count_modulo_two": lambda x: (x > 0).sum() % 2,
    "comparison_with_float_tensor": lambda x: x.sum().eq(torch.tensor(10.0)),
    "not_equal": lambda x: x.sum() != 10,
    "logical_not": lambda x: torch.logical_not((x > 0).any()),
    "isfinite_all": lambda x: torch.isfinite(x.log() * 0).all(),
    "half_sum": lambda x: x.half().sum() > 0,
    "double_mean": lambda x: x.double().mean() > 0,
    "view_of_one_element": lambda x: x.view(-1)[3:4] > 0,
    "squeezed": lambda x: x.sum(1)[:1].unsqueeze(0) > 0,
    "detached": lambda x: x.detach().sum() > 0,
    "cloned_bool": lambda x: (x.sum() > 0).clone(),
    "where_result": lambda x: torch.where(x.sum() > 0, 1, 0),
    "converted_to_bool": lambda x: x.clamp(min=0).sum().bool(),
    "converted_to_int": lambda x: x.clamp(min=0).sum().int(),
}


def computed(of: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    if of(x):
        y = x * 2
    else:
        y = x - 1
    return y


LINE = [0.5, 1.0, 0.75, 2.0, 1.5, 0.25, 3.0, 0.125, 0.375, 0.25, 0.125, 0.125]


def both_ways() -> InputSets:
    plus = torch.tensor(LINE).reshape(DATA)
    one_negative = torch.where(plus == 0.5, -plus, plus)
    return [(plus,), (-plus,), (torch.full(DATA, -9.0),), (one_negative,)]


for name, of in FROM_X.items():
    FAMILY.add(
        f"computed_{name}", lambda of=of: partial(computed, of), cases(both_ways), WHERE, grad=True
    )


@FAMILY.program(signs((3, 4)), WHERE, grad=True)
def gradient_needing_truth_value(x: Tensor) -> Tensor:
    if x.sum().relu():
        return x * 2
    return x * x


@FAMILY.program(
    cases(lambda: [(torch.ones(3), torch.tensor(1 + 0j)), (torch.ones(3), torch.tensor(0j))]),
    WHERE | keep("predicate"),
)
def complex_scalar(x: Tensor, p: Tensor) -> Tensor:
    return x * 2 if p else x * 3


ONE_SIDED = {"one_sided": True}


def elementwise(x: Tensor) -> Tensor:
    if x > 0:
        return x * 2
    return x * 3


# bool() of these raises in eager, and so it must when compiled.
for label, build in {
    "vector": lambda: torch.ones(3),
    "vector_of_two": lambda: torch.tensor([True, False]),
    "matrix": lambda: torch.ones(2, 2),
    "row": lambda: torch.ones(1, 2),
    "expanded": lambda: torch.ones(()).expand(4),
    "empty": lambda: torch.ones(0),
    "empty_matrix": lambda: torch.ones(0, 3),
}.items():
    FAMILY.add(
        f"raises_for_{label}",
        lambda: elementwise,
        lambda seed, build=build: [(build(),), (build() * 0,)],
        keep("predicate"),
        one_sided=True,
    )


@FAMILY.program(cases(lambda: [(torch.ones(3), torch.ones(3))]), keep("predicate"), one_sided=True)
def raises_in_ternary_after_work(x: Tensor, p: Tensor) -> Tensor:
    h = x * 2
    return h + 1 if p == h else h - 1


@FAMILY.program(
    cases(lambda: [(torch.ones(3), torch.tensor(1.0)), (torch.ones(3), torch.tensor(0.0))]),
    keep("predicate"),
    one_sided=True,
)
def raises_as_second_term(x: Tensor, p: Tensor) -> Tensor:
    # Not reached where the first term is false; then no error either.
    return x + 1 if p and x > 0 else x * 4
