"""A case: one program around a pattern, and the inputs it is called with, as a plain value.

Everything follows from the case, so equal cases are equal tests, and a failing one can be made
simpler field by field.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from fusepass.testing.space import Axis, Space

LAYOUTS = ("contiguous", "transposed", "sliced", "expanded", "reversed")
# {x} is the operand; those that write do so to a copy where autograd would refuse.
BEFORE: dict[str, list[str]] = {
    "": [],
    "pointwise": ["{x} = {x} * 2"],
    "view": ["{x} = {x}.view_as({x})"],
    "clone": ["{x} = {x}.clone()"],
    "written": ["{x}.add_(1)"],
    "part written": ["{x}[..., :1] = 0"],
}
# {y} is a result, {x} the first operand.
AFTER: dict[str, list[str]] = {
    "": [],
    "in place": ["{y}.mul_(2)"],
    "part written": ["{y}[..., :1] = 0"],
    "pointwise": ["{y} = {y} * 2 + 1"],
    "view": ["{y} = {y}.reshape(-1)[::2]"],
    "twice": ["extra = {y} * {y}"],
    "detached": ["extra = {y}.detach()"],
    "operand written": ["{x}.mul_(2)"],
}
AROUND = {
    "": "",
    "autocast": 'with torch.autocast("{device}", dtype=torch.bfloat16):',
    "no_grad": "with torch.no_grad():",
}


@dataclass(frozen=True)
class Case:
    """A program and its inputs.

    Attributes:
        sizes: one per dimension of the space.
        ones: axes that are 1 instead, to be broadcast.
        lift: positions of the tensors that have one more dimension in front.
        dtypes: one per tensor.
        layouts: how each tensor lies in memory: one of :data:`LAYOUTS`.
        grads: which tensors require a gradient (those of floating dtype can).
        same: two positions that are given one and the same tensor; or None.
        scalars: one per position without a tensor.
        before: what happens to each tensor before the pattern: of :data:`BEFORE`.
        around: what the pattern stands in: of :data:`AROUND`.
        after: what happens to the pattern's results: of :data:`AFTER`.
        output: which of the results it happens to (modulo their number).
        beside: whether the operands are returned beside the results.
        again: whether the pattern is called a second time, and both results returned.
        called: ``no_grad`` or ``inference``; ``""`` with a backward.
        resized: compiled with dynamic shapes and called with other sizes as well.
        near_miss: 0 for the pattern as it is; else which of its near misses stands in its place.
        seed: of the values.
    """

    sizes: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    layouts: tuple[str, ...]
    grads: tuple[bool, ...]
    scalars: tuple[Any, ...]
    before: tuple[str, ...]
    ones: tuple[Axis, ...] = ()
    lift: tuple[int, ...] = ()
    same: tuple[int, int] | None = None
    around: str = ""
    after: str = ""
    output: int = 0
    beside: bool = False
    again: bool = False
    called: str = ""
    resized: bool = False
    near_miss: int = 0
    seed: int = 0


def plain_case(space: Space, *, training: bool = True) -> Case:
    """The example as it is: its sizes and dtypes, contiguous, nothing around the pattern."""
    count = len(space.tensors)
    return Case(
        sizes=tuple(dim.base for dim in space.dims),
        dtypes=space.dtypes[0],
        layouts=("contiguous",) * count,
        grads=tuple(training and space.floating(p) for p in space.tensors),
        scalars=tuple(values[0] for values in space.scalars.values()),
        before=("",) * count,
    )


def changes(case: Case, plain: Case) -> dict[str, Any]:
    """Fields in which a case is not plain."""
    pairs = {f.name: getattr(case, f.name) for f in dataclasses.fields(case)}
    return {name: value for name, value in pairs.items() if value != getattr(plain, name)}


def simpler(case: Case, plain: Case) -> Iterator[Case]:
    """Cases one step nearer to the plain one, the larger steps first."""
    for name, value in changes(case, plain).items():
        yield dataclasses.replace(case, **{name: getattr(plain, name)})
        target = getattr(plain, name)
        if isinstance(value, tuple) and len(value) == len(target) > 1:
            for index in range(len(value)):
                mixed: Any = (*value[:index], target[index], *value[index + 1 :])
                if mixed not in (value, target):
                    yield dataclasses.replace(case, **{name: mixed})


def smaller(case: Case) -> Iterator[Case]:
    """The case with one of its sizes smaller, though not of those that are special."""
    for index, size in enumerate(case.sizes):
        if size > 2:
            less = 2 if size <= 4 else 4
            sizes = (*case.sizes[:index], less, *case.sizes[index + 1 :])
            yield dataclasses.replace(case, sizes=sizes)
