"""The report as text and as values: columns, counts, places of breaks, calls that raise."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fusepass
from fusepass.report.decision import Decision, Outcome, Reason, Station
from fusepass.report.report import Report

PACKAGE = str(Path(fusepass.__file__).parent)


@pytest.fixture(autouse=True)
def op_by_op() -> Iterator[None]:
    with fusepass.options(codegen="eager"):
        yield


class Tagged(Tensor):
    """No branch leaves it beside a plain tensor."""


def breaks(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x.as_subclass(Tagged)
    return x * 3


def test_columns_stay_apart() -> None:
    long = "a_rule_with_a_name_of_many_letters"
    decisions = tuple(
        Decision(
            Station.BEFORE, rule, Outcome.REJECTED, Reason.STRIDE_MISMATCH, "why", "", "f.py", 3
        )
        for rule in (long, "short")
    )
    lines = str(Report((1,), (), 1, decisions)).splitlines()
    head = next(line for line in lines if line.startswith("count"))
    rows = [line for line in lines if re.match(r" +1  before ", line)]
    assert len(rows) == 2
    for name in ("station", "rule", "decision", "reason", "where"):
        place = head.index(name)
        assert all(row[place - 2 : place] == "  " for row in rows)
        assert all(row[place] != " " for row in rows)


def test_graphs_is_what_the_dictionary_has() -> None:
    report = fusepass.explain(breaks, torch.ones(2))
    assert report.graphs == report.to_dict()["graphs"] == len(report.operations) == 2


def test_regions_are_counted_or_said_not_to_be() -> None:
    compiled = torch.compile(breaks, backend="fusepass", options={"codegen": "eager"})
    compiled(torch.ones(2))
    last = fusepass.last_report(compiled)
    assert last.regions_per_call is None
    assert last.to_dict()["regions_per_call"] is None
    assert "not counted (fusepass.explain does)" in str(last)
    assert fusepass.explain(compiled, torch.ones(2)).regions_per_call == 2


def test_break_has_the_reason_of_the_branch_that_is_kept() -> None:
    report = fusepass.explain(breaks, torch.ones(2))
    (kept,) = (d for d in report.decisions if d.treatment == "keep")
    (found,) = report.graph_breaks
    assert found["reason"] == f"the branch is kept: {kept.reason}"
    assert (found["file"], found["line"]) == (kept.file, kept.line)


class TestPlaces:
    """A break is at the program's line, though Dynamo stood elsewhere when it met it."""

    def test_check_of_torch(self) -> None:
        seen: list[int] = []

        def program(x: Tensor) -> Tensor:
            seen.append(1)
            torch._check_tensor_all(x > 0)
            return x * 2

        report = fusepass.explain(program, torch.ones(2))
        assert report.graph_breaks
        assert not any(found["file"].startswith(PACKAGE) for found in report.graph_breaks)
        assert report.graph_breaks[0]["line"] == program.__code__.co_firstlineno + 2

    def test_branch_in_a_method(self) -> None:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.seen: list[int] = []

            def step(self, x: Tensor) -> Tensor:
                if x.sum() > -100:
                    self.seen.append(1)
                return x + len(self.seen)

            def forward(self, x: Tensor) -> Tensor:
                self.seen.append(0)
                for _ in range(2):
                    x = self.step(x)
                return x * 2

        report = fusepass.explain(Net(), torch.ones(2))
        line = Net.step.__code__.co_firstlineno + 1
        assert {found["line"] for found in report.graph_breaks} == {line}


class TestRaises:
    """A call that raises has the report of what happened before it."""

    def test_note_and_attribute(self) -> None:
        def program(x: Tensor) -> Tensor:
            y = x * 2 if x.sum() > 0 else x - 1
            torch._dynamo.graph_break()
            if y.shape[0] > 1:
                raise KeyError(f"of {y.shape[0]}")
            return y

        with pytest.raises(KeyError) as caught:
            fusepass.explain(program, torch.ones(2))
        report = caught.value.fusepass_report  # type: ignore[attr-defined]
        assert [d.treatment for d in report.decisions if d.rule == "branch"] == ["where"]
        assert report.raised == "KeyError: 'of 2'" == report.to_dict()["raised"]
        assert caught.value.__notes__ == [str(report)]
        assert "the call raised KeyError" in str(report)

    def test_nothing_happened_before(self) -> None:
        def program() -> None:
            raise ValueError("at once")

        with pytest.raises(ValueError, match="at once") as caught:
            fusepass.explain(program)
        notes = getattr(caught.value, "__notes__", ())
        assert not any("operations per graph: 1" in note for note in notes)

    def test_nothing_raised(self) -> None:
        report = fusepass.explain(breaks, torch.ones(2))
        assert report.raised == ""
        assert "raised" not in str(report).splitlines()[2]
