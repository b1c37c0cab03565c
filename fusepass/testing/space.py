"""What inputs a rule's example stands for: which sizes are free, which belong together.

An example is one point; the rule will meet many. Which sizes may change, alone or together, is
found by running the pattern: a size that can change by itself is free, sizes that must change
together are one, and what cannot change stays as in the example.
"""

from __future__ import annotations

import inspect
import itertools
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fusepass.errors import RuleError
from fusepass.rewrite.rule import Rule

Axis = tuple[int, int]  # position of a parameter, axis of its tensor

SIZES = (0, 1, 2, 3, 5, 7, 8, 16, 17, 33)
_TAKEN = re.compile(r"[vyz]\d+|extra|pattern|program|torch")  # what a program calls its own
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Dim:
    """Axes whose sizes change together.

    Attributes:
        axes: each axis and how many times the dimension's size it has.
        base: the size in the example.
        sizes: sizes the pattern accepts, that of the example first.
    """

    axes: tuple[tuple[Axis, int], ...]
    base: int
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Space:
    """The inputs to draw from.

    Attributes:
        names: the pattern's parameters.
        example: a value for each.
        tensors: positions of the tensors among the parameters.
        dims: the independent dimensions.
        ones: axes that may be 1 while those they belong with are not: broadcast.
        lifts: sets of tensors that may have one more dimension in front.
        dtypes: assignments of a dtype to each tensor that the pattern accepts, the example's first.
        scalars: for each position without a tensor the values accepted, the example's first.
        same: pairs of tensors that may be one and the same.
    """

    names: tuple[str, ...]
    example: tuple[Any, ...]
    tensors: tuple[int, ...]
    dims: tuple[Dim, ...]
    ones: tuple[Axis, ...]
    lifts: tuple[tuple[int, ...], ...]
    dtypes: tuple[tuple[torch.dtype, ...], ...]
    scalars: Mapping[int, tuple[Any, ...]]
    same: tuple[tuple[int, int], ...]

    def floating(self, position: int) -> bool:
        """Whether the example has a tensor of floating dtype there."""
        value = self.example[position]
        return isinstance(value, Tensor) and value.is_floating_point()


def space_of(rule: Rule) -> Space:
    """Generalise a rule's example; raises RuleError if the pattern does not run on it."""
    example = rule.inputs()
    parameters = list(inspect.signature(rule.pattern).parameters)[: len(example)]
    names = tuple(f"{name}_" if _TAKEN.fullmatch(name) else name for name in parameters)
    problem = _problem(rule.pattern, example)
    if problem is not None:
        said = f"{type(problem).__name__}: {problem}"
        raise RuleError(rule.name, rule.location, f"the pattern fails on its own example, {said}")
    probe = _Probe(rule.pattern, example)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what is being tried
        return Space(
            names,
            example,
            probe.tensors,
            tuple(probe.dims()),
            tuple(probe.ones()),
            tuple(probe.lifts()),
            tuple(probe.dtypes()),
            {p: tuple(probe.scalars(p)) for p in range(len(example)) if p not in probe.tensors},
            tuple(probe.same()),
        )


def _problem(pattern: Callable[..., Any], inputs: Iterable[Any]) -> Exception | None:
    try:
        # torch 2.15 takes keys and values of different lengths, except where it multiplies them.
        with (
            torch.no_grad(),
            sdpa_kernel(SDPBackend.MATH),
        ):  # copies, for a pattern that writes to what it is given
            pattern(*(value.clone() if isinstance(value, Tensor) else value for value in inputs))
    except Exception as problem:  # noqa: BLE001 - patterns are anybody's code, and are being tried
        return problem
    return None


class _Probe:
    """Runs a pattern on variations of its example."""

    def __init__(self, pattern: Callable[..., Any], example: tuple[Any, ...]) -> None:
        self.pattern = pattern
        self.example = example
        self.tensors = tuple(p for p, value in enumerate(example) if isinstance(value, Tensor))
        self.shapes: dict[int, tuple[int, ...]] = {p: tuple(example[p].shape) for p in self.tensors}

    def works(self, changed: Mapping[int, Any]) -> bool:
        """Whether the pattern accepts its example with some values changed."""
        values = [changed.get(p, value) for p, value in enumerate(self.example)]
        return _problem(self.pattern, values) is None

    def sized(self, sizes: Mapping[Axis, int]) -> bool:
        """Whether it accepts other sizes of some axes."""
        shapes = {
            p: tuple(sizes.get((p, axis), size) for axis, size in enumerate(shape))
            for p, shape in self.shapes.items()
        }
        return self.works({p: filled(self.example[p], shape) for p, shape in shapes.items()})

    def dims(self) -> Iterator[Dim]:
        left = [(p, axis) for p in self.tensors for axis in range(len(self.shapes[p]))]
        for count in (1, 2, None):  # alone; in pairs; as broadcasting aligns them
            for group in list(_groups(left, self.shapes, count)):
                if all(axis in left for axis in group) and self._moves(group):
                    left = [axis for axis in left if axis not in group]
                    yield self._dim([(axis, 1) for axis in group], self._size(group[0]))
        for size in sorted({self._size(axis) for axis in left}):
            group = [axis for axis in left if self._size(axis) == size]
            if self._moves(group):
                left = [axis for axis in left if axis not in group]
                yield self._dim([(axis, 1) for axis in group], size)
        unit = math.gcd(*(self._size(axis) for axis in left)) if left else 0
        if unit > 0 and self.sized({axis: self._size(axis) * 2 for axis in left}):
            yield self._dim([(axis, self._size(axis) // unit) for axis in left], unit)

    def _size(self, axis: Axis) -> int:
        p, place = axis
        return self.shapes[p][place]

    def _moves(self, group: list[Axis]) -> bool:
        size = self._size(group[0])
        return any(
            self.sized(dict.fromkeys(group, other)) for other in (size + 3, size * 2, size * 3)
        )

    def _dim(self, axes: list[tuple[Axis, int]], base: int) -> Dim:
        others = [size for size in (*SIZES, base * 2, base + 1) if size != base]
        sizes = [s for s in dict.fromkeys(others) if self.sized({a: f * s for a, f in axes})]
        return Dim(tuple(axes), base, (base, *sizes))

    def ones(self) -> Iterator[Axis]:
        for p in self.tensors:
            for axis, size in enumerate(self.shapes[p]):
                if size != 1 and self.sized({(p, axis): 1}):
                    yield p, axis

    def lifts(self) -> Iterator[tuple[int, ...]]:
        singles = [(p,) for p in self.tensors]
        for group in dict.fromkeys([*singles, self.tensors]):
            if group and self.works({p: self.example[p].unsqueeze(0) for p in group}):
                yield group

    def dtypes(self) -> Iterator[tuple[torch.dtype, ...]]:
        own = tuple(self.example[p].dtype for p in self.tensors)
        floats = [i for i, dtype in enumerate(own) if dtype.is_floating_point]
        first = own[floats[0]] if floats else torch.float32
        choices = [own]
        choices += [  # all that share the first one's dtype
            tuple(other if dtype == first else dtype for dtype in own)
            for other in FLOATS
            if other != first
        ]
        double = torch.float32 if first == torch.float64 else torch.float64
        choices += [  # one operand of another dtype: promotion
            tuple(double if j == i else dtype for j, dtype in enumerate(own)) for i in floats
        ]
        choices.append(tuple(torch.int64 if d == first else d for d in own))
        for choice in dict.fromkeys(choices):
            places = zip(self.tensors, choice, strict=True)
            if self.works({p: self.example[p].to(dtype) for p, dtype in places}):
                yield choice

    def scalars(self, position: int) -> Iterator[Any]:
        own = self.example[position]
        yield own
        for other in _other_scalars(own):
            if self.works({position: other}):
                yield other

    def same(self) -> Iterator[tuple[int, int]]:
        for one, other in itertools.combinations(self.tensors, 2):
            a, b = self.example[one], self.example[other]
            alike = (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
            if alike and self.works({other: a}):
                yield one, other


def _groups(
    axes: list[Axis], shapes: Mapping[int, tuple[int, ...]], count: int | None
) -> Iterator[list[Axis]]:
    """Sets of axes of one size that may have to change together."""
    if count is not None:
        for group in itertools.combinations(axes, count):
            if len({shapes[p][axis] for p, axis in group}) == 1:
                yield list(group)
        return
    aligned: dict[tuple[int, int], list[Axis]] = {}
    for p, axis in axes:
        aligned.setdefault((len(shapes[p]) - axis, shapes[p][axis]), []).append((p, axis))
    yield from aligned.values()


def _other_scalars(own: Any) -> list[Any]:
    if isinstance(own, bool):
        return [not own]
    if isinstance(own, int):
        return [value for value in (0, 1, -1, -2, 2, 3, own + 1, own * 2) if value != own]
    if isinstance(own, float):
        return [value for value in (own * 2, own / 8 + 0.125, 1.0, 0.0, -own) if value != own]
    return []


def filled(example: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A tensor like ``example``, of another shape, holding values that ``example`` holds."""
    if tuple(example.shape) == shape:
        return example
    count = math.prod(shape)
    flat = example.detach().reshape(-1)
    if flat.numel() == 0:
        return torch.zeros(shape, dtype=example.dtype, device=example.device)
    times = -(-count // flat.numel())
    return flat.repeat(times)[:count].reshape(shape)
