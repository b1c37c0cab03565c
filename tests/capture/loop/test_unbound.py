"""A loop that makes no round leaves names unbound: the error comes as in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fusepass.capture.loop.unbound import first_read
from fusepass.torch_private.dynamo.code_objects import as_held

from ..support.side_by_side import side_by_side

ROWS = [(torch.tensor(row),) for row in ([3.0, 1.0], [0.5, 0.1], [9.0, 8.0])]


def bound_in_the_loop_only(z: Tensor) -> Any:
    width = z.max() - 1
    n = 0
    while width > 1e-3:
        width = width / 2
        p = z * width
        n += 1
    return p / p.sum(), n


def test_the_error_is_raised_behind_the_graph() -> None:
    outcome = side_by_side(bound_in_the_loop_only, *ROWS)
    assert (outcome.breaks, len(outcome.graphs)) == ([], 1)
    assert {"loop", "sink"} <= {treatment for treatment, _ in outcome.treatments}


def read_where_the_loop_returns(z: Tensor) -> Any:
    width = z.max() - 1
    while width > 1e-3:
        width = width / 2
        p = z * width
        if p.sum() < 1:
            return p
    return z + 1


def test_a_name_that_only_a_return_reads_needs_no_error() -> None:
    outcome = side_by_side(read_where_the_loop_returns, *ROWS)
    found = {treatment for treatment, _ in outcome.treatments}
    assert "loop" in found
    assert found.isdisjoint({"sink", "keep"})


def prints_first(z: Tensor) -> Any:
    width = z.max() - 1
    while width > 1e-3:
        width = width / 2
        p = z * width
    print("before the error")  # noqa: T201  # the line that eager writes
    return p


def handles_the_error(z: Tensor) -> Any:
    width = z.max() - 1
    try:
        while width > 1e-3:
            width = width / 2
            p = z * width
        return p
    except UnboundLocalError:
        return z


@pytest.mark.parametrize("program", [prints_first, handles_the_error])
def test_kept_where_the_error_would_come_too_early_or_is_handled(program: Any) -> None:
    outcome = side_by_side(program, *ROWS)
    assert "keep" in {treatment for treatment, _ in outcome.treatments}


def test_first_read_stops_at_calls_and_jumps() -> None:
    def plain(p: Any, q: Any) -> Any:
        return q + 1, p

    def calls(p: Any, q: Any) -> Any:
        q()
        return p

    def jumps(p: Any, q: Any) -> Any:
        if q:
            return 1
        return p

    found = [first_read(as_held(f.__code__), 1, frozenset("p")) for f in (plain, calls)]
    assert found == ["p", None]
    assert first_read(as_held(jumps.__code__), 1, frozenset("p")) is None
