"""Programs that write: text, log records, warnings. Compared with eager, and when they write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import fusepass
from tests.harness.call import call
from tests.harness.same_call import assert_same_call


def treatments(compiled: Any) -> list[tuple[str, str]]:
    """Treatment and reason of each call that writes a line."""
    decisions = fusepass.last_report(compiled).decisions
    return [(d.treatment, d.reason_code.value) for d in decisions if d.rule == "print"]


def assert_same_text(
    program: Callable[..., Any],
    *inputs: Callable[[], tuple[Any, ...]],
    options: dict[str, Any] | None = None,
    times: int = 2,
    **kwargs: Any,
) -> Any:
    """Hold a compiled program against eager, twice for each input; returns it."""
    given = {"codegen": "eager"} | (options or {})
    compiled = torch.compile(program, backend="fusepass", options=given, **kwargs)
    for make in inputs:
        for _ in range(times):
            both = (call(one, make(), program, "grad") for one in (program, compiled))
            assert_same_call(*both)
    return compiled


def assert_late(compiled: Any, count: int | None = None, *, graphs: int = 1) -> None:
    """One graph, no break, every call of print and the like deferred."""
    report = fusepass.last_report(compiled)
    assert not report.graph_breaks, report.graph_breaks
    found = treatments(compiled)
    assert {one for one, _ in found} == {"late"}, found
    assert len(report.operations) == graphs
    if count is not None:
        assert len(found) == count


def assert_kept(compiled: Any, reason: str) -> None:
    """Some call is kept for this reason."""
    assert ("keep", reason) in treatments(compiled), treatments(compiled)
