"""Many branches in one frame, in a row or one inside another: work grows with their number."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass.capture.branch import fork, legality, nesting
from fusepass.graph.cost import roofline

_numbers = itertools.count()


def in_a_row(count: int) -> str:
    return "".join(f"    if t.sum() > {i}:\n        t = t * 1.5\n" for i in range(count))


def early_returns(count: int) -> str:
    return "".join(
        f"    if t.sum() > {9 * (count - i)}:\n        return t * {i + 2}\n" for i in range(count)
    )


def elifs(count: int) -> str:
    tests = (f"if t.sum() > {9 * (count - i)}:\n        u = t * {i + 2}\n" for i in range(count))
    return "    u = t - 1\n    " + "    el".join(tests) + "    t = u\n"


def written(path: Path, body: str) -> Callable[..., Tensor]:
    """A function of a file of its own."""
    file = path / f"program_{next(_numbers)}.py"
    file.write_text(f"def program(t):\n{body}    return t + 1\n")
    names: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    return names["program"]  # type: ignore[no-any-return]


def compiled(program: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return torch.compile(program, backend="fusepass", options={"codegen": "eager"})


def agree(program: Callable[..., Tensor], ours: Callable[..., Tensor], count: int) -> None:
    for total in (-5.0, 4.0, 9.0 * count / 2, 9.0 * count + 50):
        given = torch.full((3,), total / 3)
        assert torch.equal(ours(given), program(given))


def calls_of(where: Any, name: str, work: Callable[..., int] = lambda *_: 1) -> Any:
    """Have the work counted that the calls of a function are."""
    theirs, total = getattr(where, name), [0]

    def counted(*args: Any, **kwargs: Any) -> Any:
        total[0] += work(*args)
        return theirs(*args, **kwargs)

    return mock.patch.object(where, name, counted), total


KINDS = pytest.mark.parametrize("kind", [in_a_row, early_returns, elifs])


@KINDS
def test_each_call_is_judged_once_however_many_branches_are_around_it(
    kind: Callable[[int], str], tmp_path: Path
) -> None:
    found = []
    for count in (8, 16):
        program = written(tmp_path, kind(count))
        ours = compiled(program)
        patch, total = calls_of(legality, "_why_not_untaken")
        with patch:
            agree(program, ours, count)
        assert fusepass.last_report(ours).graphs == 1
        found.append(total[0])
    assert found[1] <= 2.2 * found[0]


@KINDS
def test_the_time_of_a_call_is_estimated_for_few_branches_around_it(
    kind: Callable[[int], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(legality, "_MOST_MODELED", 8)
    found = []
    for count in (10, 20):
        program = written(tmp_path, kind(count))
        ours = compiled(program)
        patch, total = calls_of(roofline, "modeled_kernels", lambda nodes, *_: len(nodes))
        with patch:
            agree(program, ours, count)
        assert fusepass.last_report(ours).graphs == 1
        found.append(total[0])
    assert found[1] <= 2.4 * found[0]


@pytest.mark.sampled(4)
def test_more_branches_inside_one_another_than_python_lets_functions_call(tmp_path: Path) -> None:
    limit, count = sys.getrecursionlimit(), 100
    program = written(tmp_path, early_returns(count))
    ours = compiled(program)
    agree(program, ours, count)
    assert fusepass.last_report(ours).graphs == 1
    assert sys.getrecursionlimit() == limit


@pytest.mark.parametrize("kind", [early_returns, elifs])
def test_where_too_many_stand_inside_one_another_the_outer_ones_are_kept(
    kind: Callable[[int], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nesting, "MOST_INSIDE", 6)
    found = []
    for count in (9, 15):
        program = written(tmp_path, kind(count))
        ours = compiled(program)
        patch, total = calls_of(fork, "trace_arm")
        with patch:
            agree(program, ours, count)
        report = fusepass.last_report(ours)
        told = {one["reason"] for one in report.graph_breaks}
        assert [text for text in told if "branches stand one inside another" in text] == [*told]
        found.append(total[0])
    assert found[1] <= found[0] + 6 * 7  # an outer one is not traced to find out


def test_a_function_that_calls_itself_in_arms_too_often_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nesting, "MOST_INSIDE", 6)

    def deeper(t: Tensor, left: int) -> Tensor:
        if left and t.sum() > left:
            return deeper(t * 1.5, left - 1)
        return t

    def program(t: Tensor) -> Tensor:
        return deeper(t + 1, 10)

    ours = compiled(program)
    agree(program, ours, 10)
    assert fusepass.last_report(ours).graph_breaks
