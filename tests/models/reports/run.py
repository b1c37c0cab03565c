"""Run the programs of public reports, compiled and in eager, and compare all that can be seen."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import fusepass
from fusepass.errors import NoReport
from fusepass.testing.compare import tensors
from tests.harness.call import call
from tests.harness.same_call import assert_same_call

from . import __name__ as package
from . import __path__ as path
from .report import Report


def load() -> tuple[Report, ...]:
    """Every program, file by file."""
    modules = (
        importlib.import_module(f"{package}.{one.name}") for one in pkgutil.iter_modules(path)
    )
    return tuple(one for module in modules for one in getattr(module, "REPORTS", ()))


def cases() -> Iterator[tuple[Report, str]]:
    """Each program and a context that it is called in: ``plain``, or ``grad`` for training."""
    for one in load():
        yield one, "plain"
        if one.grad:
            yield one, "grad"


@dataclass(frozen=True)
class Outcome:
    """What became of one program.

    Attributes:
        graphs: how many it has.
        kept: what is kept, as ``line: reason code: reason``.
        difference: the first one from eager, or None.
    """

    graphs: int
    kept: tuple[str, ...]
    difference: str | None

    @property
    def one_graph(self) -> bool:
        """Whether all of it is one graph, for either outcome of its tests."""
        return self.graphs == 1 and not self.kept


def outcome_of(report: Report, context: str, **options: Any) -> Outcome:
    """Compile a program, call it with all its inputs, and compare with eager after each call."""
    torch._dynamo.reset()
    eager, module = _built(report, context), _built(report, context)
    given = {"codegen": "eager"} | options
    compiled: Any = torch.compile(module, backend="fusepass", options=given)
    difference = None
    for index, args in enumerate(report.inputs()):
        same = report.inputs()[index]
        for one in (*tensors(args), *tensors(same)) if context == "grad" else ():
            if one.is_floating_point():
                one.requires_grad_()
        wanted = call(eager, args, eager, context, report.state)
        got = call(compiled, same, module, context, report.state)
        try:
            assert_same_call(wanted, got, where=f"{report.name} ({context}), call {index}")
        except AssertionError as error:
            difference = difference or str(error)
    graphs, kept = _reported(compiled)
    torch._dynamo.reset()
    return Outcome(graphs, kept, difference)


def _built(report: Report, context: str) -> Callable[..., Any]:
    made = report.make()
    if isinstance(made, nn.Module) and context == "plain":
        made.requires_grad_(False)
    return made


def _reported(compiled: Any) -> tuple[int, tuple[str, ...]]:
    try:
        found = fusepass.last_report(compiled).to_dict()
    except NoReport:
        return 0, ()
    kept = {
        f"{one['line']}: {one['reason_code']}: {one['reason']}": None
        for one in found["decisions"]
        if one["treatment"] == "keep"
    }
    return found["graphs"], tuple(kept)
