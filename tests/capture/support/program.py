"""What a branch program is: a callable, inputs that take every branch both ways, and a verdict.

A verdict is what the contract (docs/design/treatments.md) says must happen at one source line that
tests a tensor. Verdicts are given in source order, one per line: ``if a.any() and b.any()`` is two
jumps but one line. A verdict names every (treatment, reason code) that the contract leaves open there,
which is nearly always exactly one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

InputSets = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Verdict:
    """What may be decided at one source line.

    Attributes:
        allowed: (treatment, reason code) pairs; empty means any.
        absent: whether the line may have no decision at all.
        applied: whether a treatment other than ``keep`` is acceptable when ``allowed`` is empty.
    """

    allowed: frozenset[tuple[str, str]] = frozenset()
    absent: bool = False
    applied: bool = True

    def accepts(self, treatment: str, reason_code: str) -> bool:
        """Whether one decision agrees with this verdict."""
        if self.allowed:
            return (treatment, reason_code) in self.allowed
        return self.applied or treatment == "keep"

    def __or__(self, other: Verdict) -> Verdict:
        """Either of two verdicts: for what the contract leaves open."""
        anything = not self.allowed or not other.allowed
        return Verdict(
            frozenset() if anything else self.allowed | other.allowed, self.absent or other.absent
        )


def keep(reason_code: str) -> Verdict:
    """The site stays a graph break, for this reason."""
    return Verdict(frozenset({("keep", reason_code)}))


def where(reason_code: str) -> Verdict:
    """The site becomes a select, for this reason."""
    return Verdict(frozenset({("where", reason_code)}))


def cond(reason_code: str) -> Verdict:
    """The site becomes ``torch.cond``, for this reason."""
    return Verdict(frozenset({("cond", reason_code)}))


def sink(reason_code: str) -> Verdict:
    """The site only raises, and does so after the graph."""
    return Verdict(frozenset({("sink", reason_code)}))


WHERE = where("pure_total")
DROP = Verdict(frozenset({("drop", "proved")}))
SINK = sink("raises")
IN_GRAPH = Verdict(frozenset({("loop", "loop")}))  # a loop on a tensor
# Only the results are pinned: the contract does not name this shape of control flow.
FREE = Verdict(absent=True)
# It must not be captured, but the contract does not say what the report calls it.
UNTOUCHED = Verdict(absent=True, applied=False)


@dataclass(frozen=True, kw_only=True)
class Program:
    """One program and everything that is promised about it.

    Attributes:
        name: unique over the corpus: ``family.program``.
        make: builds a fresh function or module (same weights every time).
        inputs: seed to argument tuples; together they take every branch both ways, built anew on
            every call so that eager and compiled never share a tensor.
        expect: one verdict per source line that tests a tensor, in source order.
        expect_grad: the same when inputs and parameters require grad, if it differs.
        grad: also compare gradients, with every floating leaf requiring grad.
        frozen: positions of arguments that never require grad.
        options: further backend options.
        state: what else to compare after each call, taken from the callable.
        one_sided: not every predicate can meet both outcomes (it raises, or the other never ends).
        jumps: it tests numbers read from tensors: each conditional jump of its own is a site.
        recompiles: other input sets have other metadata, so a recompile is in order.
        extra: decisions on other lines are acceptable.
        tags: which further tests use it: ``inductor``, ``contexts``.
    """

    name: str
    make: Callable[[], Callable[..., Any]]
    inputs: Callable[[int], InputSets]
    expect: tuple[Verdict, ...]
    expect_grad: tuple[Verdict, ...] | None = None
    grad: bool = False
    frozen: tuple[int, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    state: Callable[[Any], Any] | None = None
    one_sided: bool = False
    jumps: bool = False
    recompiles: bool = False
    extra: bool = False
    tags: frozenset[str] = frozenset()

    def verdicts(self, *, grad: bool) -> tuple[Verdict, ...]:
        """The verdicts that hold with, or without, gradients."""
        return self.expect_grad if grad and self.expect_grad is not None else self.expect

    def captured(self, *, grad: bool) -> bool:
        """Whether every site must leave the graph whole: one graph, and no recompile."""
        whole = (WHERE, DROP, SINK, WHERE | SINK)
        return not self.extra and all(verdict in whole for verdict in self.verdicts(grad=grad))


class Family:
    """Collects the programs of one file, in source order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._programs: list[Program] = []

    def __iter__(self) -> Iterator[Program]:
        return iter(self._programs)

    def add(
        self,
        name: str,
        make: Callable[[], Callable[..., Any]],
        inputs: Callable[[int], InputSets],
        *expect: Verdict,
        tags: str = "",
        **rest: Any,
    ) -> None:
        """Add a program whose callable ``make`` builds; ``tags`` is separated by spaces."""
        self._programs.append(
            Program(
                name=f"{self.name}.{name}",
                make=make,
                inputs=inputs,
                expect=expect,
                tags=frozenset(tags.split()),
                **rest,
            )
        )

    def program(
        self, inputs: Callable[[int], InputSets], *expect: Verdict, built: bool = False, **rest: Any
    ) -> Callable[[Any], Any]:
        """Decorate a function, a module class, or (``built``) a function that builds the callable."""

        def collect(target: Any) -> Any:
            make = target
            if inspect.isclass(target) and issubclass(target, nn.Module):
                make = _seeded(target)
            elif not built:

                def make() -> Callable[..., Any]:
                    return target

            self.add(target.__name__.strip("_").lower(), make, inputs, *expect, **rest)
            return target

        return collect


def _seeded(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        torch.manual_seed(20)
        return build()

    return make
