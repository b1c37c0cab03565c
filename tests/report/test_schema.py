"""The report as JSON and as text: exactly what docs/report.md says."""

from __future__ import annotations

import json
import platform
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass.report.decision import Decision, Outcome, Reason, Station

DOCS = Path(__file__).resolve().parents[2] / "docs"
DECISION = {
    "station": str,
    "rule": str,
    "outcome": str,
    "reason_code": str,
    "reason": str,
    "treatment": str,
    "file": str,
    "line": int,
    "candidates": dict,
}
TOP = {
    "graphs": int,
    "operations": list,
    "graph_breaks": list,
    "regions_per_call": int,
    "raised": str,
    "decisions": list,
    "syncs": list,
    "versions": dict,
}


class Tagged(Tensor):
    """No branch leaves it beside a plain tensor."""


def program(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    if y.sum() > 0:  # captured
        y = y * 2
    if y.sum() > 1:  # kept: another class
        y = y.as_subclass(Tagged)
    return y + 1


@pytest.fixture
def report() -> fusepass.Report:
    with fusepass.options(codegen="eager"):
        return fusepass.explain(program, torch.ones(2, 2), torch.ones(2, 2))


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().split("\n")
    return next(
        n for n, line in enumerate(lines, 1) if f"# {text}" in line and "in line" not in line
    )


def test_dict_survives_json_and_has_the_documented_types(report: fusepass.Report) -> None:
    found = report.to_dict()
    assert json.loads(json.dumps(found)) == found
    assert {key: type(value) for key, value in found.items()} == TOP
    assert found["decisions"]
    for decision in found["decisions"]:
        assert {key: type(value) for key, value in decision.items()} == DECISION
        assert all(isinstance(us, float) for us in decision["candidates"].values())
        assert decision["reason"]
    for graph_break in found["graph_breaks"]:
        assert {k: type(v) for k, v in graph_break.items()} == {
            "reason": str,
            "file": str,
            "line": int,
        }


def test_facts(report: fusepass.Report) -> None:
    found = report.to_dict()
    assert found["graphs"] == len(found["operations"]) == found["regions_per_call"] == 2
    assert all(count > 0 for count in found["operations"])
    branches = [d for d in found["decisions"] if d["station"] == "capture"]
    kept = line_of("kept: another class")
    assert {(d["file"], d["line"], d["treatment"], d["reason_code"]) for d in branches} == {
        (__file__, line_of("captured"), "where", "pure_total"),
        (__file__, kept, "keep", "python_value"),
    }
    (graph_break,) = found["graph_breaks"]
    assert (graph_break["file"], graph_break["line"]) == (__file__, kept)
    assert graph_break["reason"]
    (estimated,) = (d["candidates"] for d in branches if d["treatment"] == "where")
    assert set(estimated) == {"where", "cond", "break"}
    handed = [d for d in found["decisions"] if d["station"] == "hand_off"]
    assert [d["outcome"] for d in handed] == ["left_to_inductor"] * 2


def test_versions(report: fusepass.Report) -> None:
    assert report.versions["torch"] == torch.__version__
    assert report.versions["python"] == platform.python_version()
    assert report.versions["fusepass"] == fusepass.__version__
    assert set(report.versions) == {"torch", "python", "fusepass", "cuda"}


def test_text_is_a_table(report: fusepass.Report) -> None:
    text = str(report)
    assert "2 graph(s)" in text.split("\n")[0]
    assert "regions entered per call: 2; graph breaks: 1" in text
    name = Path(__file__).name
    line = line_of("captured")
    (row,) = re.findall(rf"^ +1  capture .*{name}:{line}$", text, flags=re.MULTILINE)
    assert "where" in row
    line = line_of("kept: another class")
    assert re.search(rf"^    1  .*{name}:{line}$", text, flags=re.MULTILINE)
    assert text.count("a subclass of torch.Tensor") == 1
    assert max(map(len, text.split("\n"))) < 200


def test_equal_decisions_are_counted_in_the_text_and_listed_in_the_dict() -> None:
    def layers(x: Tensor) -> Tensor:
        for _ in range(3):
            x = x * 2 if x.sum() > 0 else x - 1
        return x

    with fusepass.options(codegen="eager"):
        report = fusepass.explain(layers, torch.ones(2))
    assert re.search(r"^ +3  capture ", str(report), flags=re.MULTILINE)
    assert sum(d.station is Station.CAPTURE for d in report.decisions) == 3


def test_nothing_compiled_is_said() -> None:
    with fusepass.options(codegen="eager"):
        report = fusepass.explain(lambda: 3)
    assert report.to_dict()["graphs"] == report.to_dict()["regions_per_call"] == 0
    assert "operations per graph: none" in str(report)


@pytest.mark.parametrize("reason", Reason)
def test_decision_survives_json(reason: Reason) -> None:
    decision = Decision(
        Station.CAPTURE, "branch", Outcome.REJECTED, reason, "why", "keep", "f.py", 3, {"a": 1.5}
    )
    record = json.loads(json.dumps(decision.to_dict()))
    assert Decision.from_dict(record) == decision
    assert record["reason_code"] == reason.value


@pytest.mark.parametrize(
    "damage", [{"station": "moon"}, {"outcome": "?"}, {"reason_code": "?"}, {"more": 1}]
)
def test_foreign_record_is_refused(damage: dict[str, Any]) -> None:
    good = Decision(Station.AFTER, "r", Outcome.APPLIED, Reason.PROVED, "").to_dict()
    with pytest.raises((ValueError, TypeError)):
        Decision.from_dict(good | damage)


def test_every_reason_code_is_documented() -> None:
    text = (DOCS / "reasons.md").read_text()
    documented = set(re.findall(r"^### `([a-z_]+)`$", text, flags=re.MULTILINE))
    assert documented == {reason.value for reason in Reason}


def test_every_field_is_documented() -> None:
    text = (DOCS / "report.md").read_text()
    names = [*TOP, *DECISION, "candidates", "reason", *(s.value for s in Station)]
    names += [o.value for o in Outcome]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_every_option_is_documented() -> None:
    import dataclasses

    from fusepass.options import CANDIDATES, CODEGENS, MODES, TREATMENTS, Options

    text = (DOCS / "options.md").read_text()
    names = [f.name for f in dataclasses.fields(Options) if f.name != "inductor"]
    names += ["inductor.", *MODES, *TREATMENTS, *CODEGENS, *CANDIDATES]
    assert [name for name in names if f"`{name}" not in text] == []
