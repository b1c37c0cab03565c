"""A rule's pattern in the form it is looked for: a DAG over variables, scalars and sizes."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import torch

from fusepass.rewrite.rule import Rule

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True, eq=False)
class Variable:
    """A tensor parameter of the pattern. Sizes are ints or sympy expressions."""

    name: str
    shape: tuple[Any, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Scalar:
    """A parameter of the pattern that is no tensor."""

    name: str


@dataclass(frozen=True)
class Size:
    """A number computed from sizes of the variables."""

    expression: Any


@dataclass(frozen=True, eq=False)
class Operation:
    """An operation of the pattern."""

    op: str
    args: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, eq=False)
class Pattern:
    """A traced pattern.

    Attributes:
        rule: where it comes from.
        roots: what the pattern returns.
        dtype: floating dtype it was traced for; None if any will do, as long as it is one.
        rowwise: whether rows (all dimensions but the last) never mix, so that any number of
            leading dimensions is like one.
        operations: number of operations.
        names: parameters, in order.
        variables: its tensors, in the order they were met.
        chosen_by: expressions of sizes that must hold, or the pattern would be another one.
    """

    rule: Rule
    roots: tuple[Operation, ...]
    dtype: torch.dtype | None
    rowwise: bool
    operations: int
    names: tuple[str, ...]
    variables: tuple[Variable, ...] = field(default=())
    chosen_by: tuple[Any, ...] = ()

    @functools.cached_property
    def widest_first(self) -> tuple[Operation, ...]:
        """The roots, those first that hold most of the pattern: they often hold the others too."""
        return tuple(sorted(self.roots, key=lambda root: -len(_operations_below(root))))


def _operations_below(operation: Operation) -> set[int]:
    found = {id(operation)}
    for _, value in operation.args:
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Operation):
                found |= _operations_below(part)
    return found
