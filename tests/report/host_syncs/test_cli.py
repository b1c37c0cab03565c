"""``python -m fusepass syncs``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fusepass
from fusepass.__main__ import main
from fusepass.report.host_syncs import api, residence

PROGRAM = """
import torch


def waits(x):
    return {x.sum().item(): 1}


def make():
    return waits, (torch.ones(3),)


def with_arguments(x):
    return waits, (x,)


def raises():
    return 1 / 0


def make_raising():
    def model(x):
        raise IndexError("of the model")

    return model, (torch.ones(3),)


def leaves():
    raise SystemExit(1)


def make_quiet():
    return torch.nn.Linear(3, 3), (torch.ones(3),)
"""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(residence, "no_device", lambda: True)
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return str(file)


def test_prints_the_table(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    with fusepass.options(codegen="eager"):
        assert main(["syncs", f"{target}:make", "--json", str(out)]) == 1
    assert "program.py:6" in capsys.readouterr().out
    (row,) = json.loads(out.read_text())["syncs"]
    assert (row["kind"], row["line"]) == ("item", 6)


def test_nothing_left(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    with fusepass.options(codegen="eager"):
        assert main(["syncs", f"{target}:make_quiet"]) == 0
    assert "none" in capsys.readouterr().out


def test_unknown_function(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["syncs", f"{target}:missing"]) == 2
    said = capsys.readouterr().err
    assert "missing" in said
    assert said.startswith("fusepass syncs: ")


@pytest.mark.parametrize("out", ["no/such/folder/out.json", "."])
def test_file_that_cannot_be_written(
    out: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["syncs", f"{target}:make", "--json", out]) == 2
    seen = capsys.readouterr()
    assert not seen.out  # said before the work is done
    assert seen.err.startswith("fusepass syncs: ")
    assert seen.err.count("\n") == 1


def test_a_function_that_takes_arguments(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["syncs", f"{target}:with_arguments"]) == 2  # 1 says that waits remain
    said = capsys.readouterr().err
    assert said.startswith("fusepass syncs: ")
    assert "missing a required argument: 'x'. A target is" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "kind"),
    [("raises", "ZeroDivisionError"), ("make_raising", "IndexError"), ("leaves", "SystemExit")],
)
def test_a_target_that_raises(
    name: str, kind: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["syncs", f"{target}:{name}"]) == 2
    seen = capsys.readouterr()
    assert not seen.out
    assert "program.py" in seen.err  # the traceback
    last = seen.err.rstrip().splitlines()[-1]
    assert last == f"fusepass syncs: {target}:{name} raised {kind}; see above."


@pytest.mark.parametrize("where", ["rows_of", "everything_restored"])
def test_a_fault_that_is_not_the_targets(
    where: str, target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise KeyError("elsewhere")

    monkeypatch.setattr(api, where, fails)
    with fusepass.options(codegen="eager"):
        assert main(["syncs", f"{target}:make_quiet"]) == 2
    said = capsys.readouterr().err
    assert "elsewhere" in said  # the traceback
    last = said.rstrip().splitlines()[-1]
    name = f"{target}:make_quiet"
    what = f"KeyError while {name} was watched, which did not raise it"
    assert last == f"fusepass syncs: {what}; see above."
