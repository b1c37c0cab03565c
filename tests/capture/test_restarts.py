"""Captures that are left to Dynamo: which of them, in which frames, and what is on record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor, fx

import fusepass
from fusepass.capture.frame_state import BranchSite, Frame, Place
from fusepass.capture.nodes.select_node import Branch
from fusepass.capture.restarts import (
    is_kept,
    restart_plain,
    restart_without,
    restart_without_saving,
    why_settled,
)
from fusepass.options import Options
from fusepass.report import log
from fusepass.report.decision import Outcome, Reason

OWN, INLINED = compile("0", "own", "eval"), compile("0", "inlined", "eval")
WHY = Reason.SIZE, "it is used as a size"


class Restart(Exception):
    """In the place of Dynamo's."""


class Attempts:
    def __init__(self) -> None:
        self.kept: dict[Any, Any] = {}

    def restart(self, reason: str, *, afresh: bool) -> NoReturn:
        raise Restart(reason, afresh)


class Speculation:
    def __init__(self, site: int) -> None:
        self.site = site

    def fail_and_restart_analysis(self, error_on_graph_break: bool) -> NoReturn:
        raise Restart(self.site, error_on_graph_break)


def place(rule: str, line: int, dtype: torch.dtype | None = None, code: Any = OWN) -> Place:
    return Place(rule, (code, line), ("f.py", line), "f.py", line, dtype)


def frame_of_sites(*sites: BranchSite) -> Frame:
    frame = Frame(object(), Options(), attempts=Attempts(), code=OWN, sites=[*sites])
    log.log_of(frame.compiler)
    return frame


def site_at(number: int, line: int, code: Any = OWN, **more: Any) -> BranchSite:
    where = place("branch", line, code=code)
    branch = Branch(number, None, "where", False, "f.py", line)
    decision = where.decided(Outcome.APPLIED, Reason.PURE_TOTAL, "captured", "where")
    return BranchSite(branch, Speculation(number), decision, where, **more)


def kept(frame: Frame) -> dict[Any, str]:
    return {where[1]: d.reason for where, d in log.log_of(frame.compiler).kept.items()}


def test_without_anything_lost_the_trace_goes_on() -> None:
    frame = frame_of_sites(site_at(1, 10))
    restart_without(frame, {})
    restart_without(frame, {7: WHY})  # of no branch that is captured
    assert not kept(frame)


def test_places_go_at_once_and_only_numbers_in_every_frame() -> None:
    frame = frame_of_sites()
    number, mask = place("item", 3, torch.int64), place("masked", 4)
    with pytest.raises(Restart, match="size") as restart:
        restart_without(frame, {number: WHY, mask: WHY})
    assert restart.value.args[1] is False
    assert is_kept(frame, number)
    assert is_kept(frame, mask)
    assert not is_kept(frame, place("masked", 3))
    assert kept(frame) == {3: WHY[1], 4: WHY[1]}
    later = Frame(frame.compiler, Options(), attempts=Attempts())
    assert is_kept(later, number)
    assert not is_kept(later, mask)


def test_branches_go_one_by_one_the_first_in_the_program_now() -> None:
    frame = frame_of_sites(site_at(1, 10), site_at(2, 20), site_at(3, 30))
    made = frame.new_branch(2)  # stands for the second
    with pytest.raises(Restart) as restart:
        restart_without(frame, {3: WHY, made: WHY})
    assert restart.value.args == (2, False)
    assert kept(frame) == {20: WHY[1]}


def test_tests_made_together_with_a_branch_are_kept_with_it() -> None:
    frame = frame_of_sites(site_at(1, 10, leads_to=(OWN, 20)), site_at(2, 20))
    with pytest.raises(Restart):
        restart_without(frame, {2: WHY})
    assert kept(frame) == {10: WHY[1], 20: WHY[1]}


def test_numbers_that_a_kept_branch_tests_are_read_in_this_frame() -> None:
    node = fx.Graph().placeholder("x")
    frame = frame_of_sites(site_at(1, 10, items=(node,)))
    frame.items[node] = number = place("item", 3, torch.int64)
    with pytest.raises(Restart, match="size"):
        restart_without(frame, {1: WHY})
    assert is_kept(frame, number)
    assert kept(frame) == {
        3: f"a branch that is kept tests it (line 10): {WHY[1]}",
        10: WHY[1],
    }
    assert not is_kept(Frame(frame.compiler, Options(), attempts=Attempts()), number)


def test_a_sink_that_stands_for_a_selection_leaves_the_selection() -> None:
    frame = frame_of_sites(site_at(1, 10))
    frame.empties[5] = mask = place("masked", 4)
    with pytest.raises(Restart, match="size"):
        restart_without(frame, {1: WHY, 5: WHY})
    assert is_kept(frame, mask)
    assert kept(frame) == {4: WHY[1]}


@pytest.mark.parametrize("code", [OWN, INLINED])
def test_a_branch_that_saves_is_left_in_the_function_it_stands_in(code: Any) -> None:
    frame = frame_of_sites(site_at(1, 10, code))
    with pytest.raises(Restart):
        restart_without_saving(frame, {1: WHY})
    settled = why_settled(frame, frame.sites[0].place)
    assert settled == (None if code is OWN else WHY[1])


def test_a_plain_restart_keeps_all_and_starts_afresh() -> None:
    frame = frame_of_sites(site_at(1, 10))
    node = fx.Graph().placeholder("x")
    frame.items[node] = place("item", 3, torch.int64)
    with pytest.raises(Restart) as restart:
        restart_plain(frame, *WHY)
    assert restart.value.args[1] is True
    assert kept(frame) == {3: WHY[1], 10: WHY[1]}


def parts(count: Tensor, h: Tensor, x: Tensor) -> Iterator[Tensor]:
    if count.item():
        yield x.clamp(-1, 1)
    else:
        yield torch.maximum(h, x)
    yield x.relu()


def program(x: Tensor, level: Tensor, count: Tensor) -> Tensor:
    h = x.clone()
    if level.item():
        raise ArithmeticError(f"level {level.item()}")
    if level:
        raise ArithmeticError(f"bad sum {h.sum().item()} in {tuple(h.shape)}")
    y = x * 2
    for part in parts(count, h, x):
        y = y + part
    return y


@pytest.mark.parametrize("count", [0.0, 2.0])
def test_numbers_tested_in_front_of_what_cannot_be_traced(count: float) -> None:
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    x, calm = torch.tensor([-0.5, 0.25, 3.0]), torch.tensor(0.0)
    expected = program(x, calm, torch.tensor(count))
    assert torch.equal(compiled(x, calm, torch.tensor(count)), expected)
    with pytest.raises(ArithmeticError, match=r"level 1\.0"):
        compiled(x, torch.tensor(1.0), torch.tensor(count))
    assert fusepass.last_report(compiled).decisions
