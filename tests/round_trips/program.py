"""What a program of the table is: a callable, draws of inputs, and what each line must become.

A line that makes the device wait says so itself:

    return x / x.norm().item()  # expect: item device on_device

Behind ``expect:`` stand one or more decisions, as rule, treatment and reason code, set apart by
commas; ``a|b`` is either code, ``or`` stands between what may be decided instead, as by other
versions of torch. Further clauses, set apart by semicolons, hold for one draw or
context only: ``# expect: item device on_device; grad: item keep nan_grad``. ``none`` is no decision,
``any`` whatever.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

Calls = list[tuple[Any, ...]]
Draws = Mapping[str, Callable[[], Calls]]
Decided = frozenset[tuple[str, str, frozenset[str]]]
Expected = tuple[Decided, ...]
_CLAUSE = re.compile(r"(?:(?P<when>[\w-]+):)?(?P<what>[^:]*)$")


@dataclass(frozen=True, kw_only=True)
class Program:
    """One program and everything that is promised about it.

    Attributes:
        name: unique over the table: ``family.program``.
        make: builds a fresh function or module (same weights every time).
        draws: by name, the calls made of one compiled callable, built anew every time.
        lines: for each (file, line), clauses of ``expect`` by draw or context; "" is the default.
        grad: also compare gradients, with every floating leaf argument requiring grad.
        rounded: sums may be made in another order, so values are compared up to rounding.
        state: what else to compare after each call, from the callable; it starts afresh when asked
            before the first.
        warned: which warnings are shown (``always``, ``default``, ``once``, ``error``, ``ignore``).
        options: further backend options.
        dynamic: as for torch.compile.
        device: the only one it may run on, or "" for any: on CUDA some errors end the process.
        hosted: positions of arguments that stay on the CPU.
        breaks: something else than a round trip breaks its graph.
        dynamo: ``backend="eager"`` gets it wrong as well, at least on some version of torch.
        tags: which further tests use it: ``inductor``, ``contexts``, ``float64``.
    """

    name: str
    make: Callable[[], Callable[..., Any]]
    draws: Draws
    lines: Mapping[tuple[str, int], Mapping[str, Expected]]
    grad: bool = False
    rounded: bool = False
    state: Callable[[Any], Any] | None = None
    warned: str = "always"
    options: Mapping[str, Any] = field(default_factory=dict)
    dynamic: bool | None = None
    device: str = ""
    hosted: tuple[int, ...] = ()
    breaks: bool = False
    dynamo: bool = False
    tags: frozenset[str] = frozenset()

    def expected(
        self, draw: str, context: str, device: str = "cpu"
    ) -> dict[tuple[str, int], Expected]:
        """By (file, line), sets of decisions of which one must be there; () for any."""
        found = {}
        for place, clauses in self.lines.items():
            names = (f"{context}-{draw}", context, draw, device, "")
            found[place] = next((clauses[n] for n in names if n in clauses), (frozenset(),))
        return found

    @property
    def kept(self) -> bool:
        """Whether some line of it is left as it is, in the first draw."""
        expected = self.expected(next(iter(self.draws)), "plain").values()
        return any(
            treatment == "keep" for one in expected for d in one[:1] for _, treatment, _ in d
        )


class Family:
    """Collects the programs of one file, in source order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._programs: list[Program] = []

    def __iter__(self) -> Iterator[Program]:
        return iter(self._programs)

    def program(
        self,
        draws: Draws | Callable[[], Calls],
        *,
        helpers: Sequence[Any] = (),
        tags: str = "",
        **rest: Any,
    ) -> Callable[[Any], Any]:
        """Decorate a function or a module class.

        Args:
            draws: builders of calls by name; a single one is called ``one``.
            helpers: functions and classes it uses whose lines say what must become of them, too.
            tags: separated by spaces.
            rest: further fields of :class:`Program`.
        """

        def collect(target: Any) -> Any:
            make = target if inspect.isclass(target) else lambda: target
            if inspect.isclass(target) and issubclass(target, nn.Module):
                make = _seeded(target)
            lines: dict[tuple[str, int], dict[str, Expected]] = {}
            for one in (target, *helpers):
                lines |= expectations(one)
            self._programs.append(
                Program(
                    name=f"{self.name}.{target.__name__.strip('_').lower()}",
                    make=make,
                    draws=draws if isinstance(draws, Mapping) else {"one": draws},
                    lines=lines,
                    tags=frozenset(tags.split()),
                    **rest,
                )
            )
            return target

        return collect


def _seeded(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        torch.manual_seed(20)
        return build()

    return make


def expectations(target: Any) -> dict[tuple[str, int], dict[str, Expected]]:
    """The clauses of each line of a function or class, by (file, line)."""
    lines, first = inspect.getsourcelines(target)
    file = str(Path(inspect.getsourcefile(target) or "").absolute())
    found = {}
    for number, line in zip(itertools.count(first), lines, strict=False):
        code, mark, text = line.partition("# expect:")
        if mark:
            assert code.strip() not in ("", ")"), f"{file}:{number} is not the line of a call"
            found[file, number] = dict(_clause(part) for part in text.split(";"))
    return found


def _clause(text: str) -> tuple[str, Expected]:
    match = _CLAUSE.fullmatch(text.strip())
    assert match, f"no clause of an expectation: {text!r}"
    what = match["what"].strip()
    sets = () if what == "any" else tuple(_decisions(one) for one in what.split(" or "))
    return match["when"] or "", sets


def _decisions(text: str) -> Decided:
    decided = set()
    for part in text.split(",") if text.strip() != "none" else ():
        rule, treatment, codes = part.split()
        assert treatment in ("device", "late", "keep"), part
        decided.add((rule, treatment, frozenset(codes.split("|"))))
    return frozenset(decided)
