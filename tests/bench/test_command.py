"""The command line: what it refuses, and one run from end to end with the JSON it writes."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import types
import typing
from pathlib import Path
from typing import Any

import pytest
import torch

from fusepass.__main__ import main
from fusepass.bench import records, samples, table

PROGRAM = """
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        x = self.linear(x)
        if torch.isinf(x).any():
            x = x.clamp(-1, 1)
        return x.relu()

def make():
    return nn.Sequential(*(Layer() for _ in range(3))).eval(), (torch.randn(4, 16),)
"""


def check_type(value: Any, expected: Any, where: str = "result") -> None:
    """Fail unless ``value``, read back from JSON, has a type as annotated in ``records``."""
    origin = typing.get_origin(expected)
    if typing.is_typeddict(expected):
        hints = typing.get_type_hints(expected)
        assert set(value) == set(hints), where
        for key, hint in hints.items():
            check_type(value[key], hint, f"{where}.{key}")
    elif origin in {typing.Union, types.UnionType}:
        if value is None:
            assert type(None) in typing.get_args(expected), f"{where} must not be null"
        else:
            (inner,) = [one for one in typing.get_args(expected) if one is not type(None)]
            check_type(value, inner, where)
    elif origin is list:
        for index, item in enumerate(value):
            check_type(item, typing.get_args(expected)[0], f"{where}[{index}]")
    elif origin is dict:
        for key, item in value.items():
            check_type(item, typing.get_args(expected)[1], f"{where}[{key!r}]")
    elif expected is float:
        assert type(value) in {int, float}, where
    elif expected is not Any:
        assert type(value) is expected, f"{where}: {value!r}"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """One run of the command on a tiny guarded program: the JSON and the text."""
    folder = tmp_path_factory.mktemp("bench")
    (folder / "tiny.py").write_text(PROGRAM)
    command = [
        sys.executable, "-m", "fusepass", "bench", "tiny.py:make", "--json", "out.json",
        "--rounds", "5", "--round-seconds", "0.02",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in folder.glob("*.json*")) == ["out.json"]
    return json.loads((folder / "out.json").read_text()), done.stdout


def test_the_json_has_the_documented_shape(run: tuple[dict[str, Any], str]):
    check_type(run[0], records.Result)
    assert run[0]["schema"] == records.SCHEMA
    assert run[0]["versions"]["torch"] == torch.__version__
    assert run[0]["hardware"]["device"] == "cpu"
    assert run[0]["settings"]["rounds"] == 5


def test_the_figures_belong_together(run: tuple[dict[str, Any], str]):
    (program,) = run[0]["programs"]
    variants = {one["variant"]: one for one in program["variants"]}
    assert list(variants) == ["eager", "inductor/default", "fusepass/default"]
    eager, inductor, ours = variants.values()
    for one in variants.values():
        assert one["failed"] is None
        assert len(one["wall_us"]["rounds"]) == 5
        assert 0 < one["wall_us"]["median"] <= one["wall_us"]["p99"]
        assert one["error"]["passed"] is True
        assert 0 <= one["error"]["rms"] <= one["error"]["bound"] < 1e-5
    ratios = [
        before / after
        for before, after in zip(
            inductor["wall_us"]["rounds"], ours["wall_us"]["rounds"], strict=True
        )
    ]
    assert ours["speedup"]["inductor"] == pytest.approx(statistics.median(ratios))
    assert ours["speedup"]["best"] == min(ours["speedup"]["inductor"], ours["speedup"]["eager"])
    assert ours["slower"] is (ours["speedup"]["best"] < samples.NOT_SLOWER)
    # Three guarded layers, each broken in two by Inductor.
    assert inductor["graphs"]["regions_per_call"] >= 3
    for one in (inductor, ours):
        assert len(one["graphs"]["operations"]) == one["graphs"]["graphs"] >= 1
        # The caches on disk were there for the second compile.
        assert 0 < one["compile"]["warm_s"] < one["compile"]["cold_s"]
    assert eager["compile"]["cold_s"] is None
    assert eager["graphs"] is None


def test_the_table_shows_every_variant_and_its_ratio(run: tuple[dict[str, Any], str]):
    result, text = run
    for one in result["programs"][0]["variants"]:
        (line,) = [line for line in text.splitlines() if line.strip().startswith(one["variant"])]
        assert f"{one['wall_us']['median']:.1f}" in line
        if one["speedup"]["eager"] is not None:
            assert f"{one['speedup']['eager']:.2f}" in line
    assert "problems" not in text


def test_losing_cells_failures_and_broken_bounds_are_marked(run: tuple[dict[str, Any], str]):
    result = json.loads(json.dumps(run[0]))
    ours = result["programs"][0]["variants"][-1]
    ours["speedup"]["inductor"] = 0.979
    ours["error"].update(passed=False, rms=2e-3, bound=1e-3, reason="output 0: too far")
    text = table.render(result)
    (line,) = [line for line in text.splitlines() if "fusepass/default  " in line]
    assert "0.98 <" in line
    assert "2.00 FAIL" in line
    assert "error rule: output 0: too far" in text
    ours["failed"] = "compile: boom"
    assert "FAILED" in table.render(result)
    assert table.problems(result) == ["tiny.py:make fusepass/default: compile: boom"]
    result["programs"][0]["skipped"] = "the time budget was spent"
    assert "skipped: the time budget was spent" in table.render(result)


def test_saving_is_all_or_nothing_and_strict(run: tuple[dict[str, Any], str], tmp_path: Path):
    result = json.loads(json.dumps(run[0]))
    result["seconds"] = float("inf")
    result["programs"][0]["seconds"] = float("nan")
    path = tmp_path / "r.json"
    path.write_text("old")
    records.save(result, path)
    read = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
    assert read["seconds"] is None
    assert read["programs"][0]["seconds"] is None
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "either a target or --suite"),
        (["m:f", "--suite", "sync"], "not both"),
        (["nowhere.py:make"], "no file 'nowhere.py'"),
        (["json:loads", "--modes", "reduce-overhed"], "Did you mean 'reduce-overhead'?"),
        (["json:loads", "--modes", ","], "no mode given"),
        (["json:loads", "--rounds", "4"], "at least 5 rounds"),
        (["json:loads", "--repeats", "0"], "--repeats"),
        (["json:loads", "--only", "x"], "give --suite"),
        (["json:loads", "--backend", "fusepas"], "no backend 'fusepas'"),
        (["json:loads", "--json", "no/such/folder/out.json"], "no folder"),
        (["json:loads", "--json", "."], "is a folder"),
        (["json:loads", "--round-seconds", "-1"], "more than 0"),
        (["json:loads", "--round-seconds", "0"], "more than 0"),
        (["json:loads", "--round-seconds", "inf"], "--round-seconds must be a number of seconds"),
        (["json:loads", "--round-seconds", "nan"], "--round-seconds must be a number of seconds"),
        (["json:loads", "--budget-seconds", "nan"], "--budget-seconds must be a number of seconds"),
        (["json:loads", "--budget-seconds", "-1"], "--budget-seconds must be a number of seconds"),
        (["json:loads", "--twin", "no_colon"], "names no function"),
        (["--suite", "sink"], "no suite 'sink'"),
        (["--suite", "sync", "--only", "bort"], "no program 'bort'"),
        (["--suite", "sync", "--twin", "json:loads"], "--twin goes with a target"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("fusepass bench: ")
    assert says in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_is_refused_where_there_is_none(capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "--suite", "sync", "--device", "cuda"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_the_documentation_names_every_field():
    page = Path(__file__).parents[2] / "docs" / "bench.md"
    text = page.read_text(encoding="utf-8")
    kinds = [one for one in vars(records).values() if typing.is_typeddict(one)]
    assert len(kinds) >= 10
    missing = {
        f"{kind.__name__}.{key}"
        for kind in kinds
        for key in typing.get_type_hints(kind)
        if f"`{key}`" not in text
    }
    assert not missing


def test_settings_in_the_json_are_those_of_the_run(run: tuple[dict[str, Any], str]):
    from fusepass.bench.measure import Settings

    names = {field.name for field in dataclasses.fields(Settings)} - {"deadline"}
    assert set(run[0]["settings"]) == names | {"budget_seconds"}
