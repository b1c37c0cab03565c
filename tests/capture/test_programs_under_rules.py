"""The corpus once more, with rules in force that match nearly everything in it.

Each rule says in other words what its pattern says, so results must not change by a bit, whatever
is written in place, aliased, branched on or drawn around it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

import fusepass

from .support.check import check
from .support.corpus import CORPUS
from .support.program import Program


def _rule(name: str, pattern: object, replacement: object, *example: object) -> fusepass.Rule:
    return fusepass.Rule(f"test_{name}", pattern, replacement, example)  # type: ignore[arg-type]


def m(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


RULES = (
    _rule("add", lambda a, b: a + b, lambda a, b: torch.add(a, b), m(3, 4), m(3, 4)),
    _rule("add_row", lambda a, b: a + b, lambda a, b: torch.add(a, b), m(3, 4), m(4)),
    _rule("add_scalar", lambda a, s: a + s, lambda a, s: torch.add(a, s), m(3, 4), 0.7),
    _rule("mul", lambda a, b: a * b, lambda a, b: torch.mul(a, b), m(3, 4), m(3, 4)),
    _rule("mul_scalar", lambda a, s: a * s, lambda a, s: torch.mul(a, s), m(3, 4), 0.7),
    _rule("sub", lambda a, b: a - b, lambda a, b: torch.sub(a, b), m(3, 4), m(3, 4)),
    _rule("sin", lambda a: a.sin(), lambda a: torch.sin(a), m(3, 4)),
    _rule("relu", lambda a: F.relu(a), lambda a: torch.relu(a), m(3, 4)),
    _rule("sum", lambda a: a.sum(), lambda a: torch.sum(a), m(3, 4)),
    _rule("greater", lambda a, s: a > s, lambda a, s: torch.gt(a, s), m(), 0.3),
    _rule("mm", lambda a, b: a @ b, lambda a, b: torch.mm(a, b), m(3, 4), m(4, 5)),
    _rule(
        "where",
        lambda p, a, b: torch.where(p, a, b),
        lambda p, a, b: a.where(p, b),
        m() > 0,
        m(3, 4),
        m(3, 4),
    ),
    _rule("two", lambda a: (a.sin(), a.cos()), lambda a: (torch.sin(a), torch.cos(a)), m(3, 4)),
)


@pytest.fixture(autouse=True)
def rules_in_force() -> Iterator[None]:
    with fusepass.rules(*RULES):
        yield


@pytest.mark.sampled(8)
@pytest.mark.parametrize("program", CORPUS[::4], ids=lambda program: program.name)
def test_values(program: Program) -> None:
    check(program)
