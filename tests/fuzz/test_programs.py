"""A small campaign: programs of a fixed seed, equal to eager bit by bit; what a failure looks like."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

import fusepass
from fusepass.errors import NoReport
from tests.fuzz import campaign as campaigns
from tests.fuzz.__main__ import main
from tests.fuzz.campaign import campaign
from tests.fuzz.examine import examine
from tests.fuzz.generate import seeded
from tests.fuzz.program import Program
from tests.fuzz.strategy import ProgramDiffers, check_program, programs

SEED, PROGRAMS = 20261121, 40


def test_programs_of_a_fixed_seed_do_what_eager_does() -> None:
    found = campaign(PROGRAMS, seed=SEED)
    sys.stdout.write(f"seed {found.seed}: {found.sites} sites, {found.treatments}\n")
    assert found.programs == PROGRAMS
    assert not found.broken
    assert not found.failures, found.failures[0]["source"]
    assert found.treatments["where"] > 5, "hardly anything was captured"


@settings(
    max_examples=15,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(programs())
def test_programs_of_hypothesis_do_what_eager_does(program: Program) -> None:
    check_program(program)


WRITES = """
import torch


def make():
    def program(x, flag):
        if flag:
            x.add_(1)
        return x * 2

    return program, None


def inputs():
    return [(torch.ones(2), torch.tensor(flag)) for flag in (False, True)]
"""


def compile_that_loses_writes(for_backend: str) -> Any:
    def wrong_compile(target: Any, *, backend: str, **_: Any) -> Any:
        def call(x: Any, *rest: Any) -> Any:
            return target(x.clone() if for_backend in (backend, "both") else x, *rest)

        return call

    return wrong_compile


def test_a_fault_of_ours_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise ZeroDivisionError("ours")

    assert examine(Program(WRITES)).failure is None
    monkeypatch.setattr("fusepass.capture.dynamo_hooks.fork", fails)
    found = examine(Program(WRITES)).failure
    assert found is not None
    assert (found.kind, found.dynamo) == ("capture fault", False)
    assert "ours" in found.text


def no_report(_: Any) -> None:
    raise NoReport("program")


def test_a_difference_is_told_with_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", compile_that_loses_writes("fusepass"))
    monkeypatch.setattr(fusepass, "last_report", no_report)
    with pytest.raises(
        ProgramDiffers, match=r"inference, input set 1: values differs at args\[0\]"
    ):
        check_program(Program(WRITES))


def test_what_dynamo_gets_wrong_itself_is_set_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", compile_that_loses_writes("both"))
    monkeypatch.setattr(fusepass, "last_report", no_report)
    (failure,) = examine(Program(WRITES)).failures
    assert failure.dynamo
    check_program(Program(WRITES))


def compile_that_raises(in_calls: dict[str, tuple[int, ...]]) -> Any:
    def failing_compile(target: Any, *, backend: str, **_: Any) -> Any:
        calls = iter(range(99))

        def call(*args: Any) -> Any:
            if next(calls) in in_calls[backend]:
                raise NotImplementedError("of the compiler")
            return target(*args)

        return call

    return failing_compile


@pytest.mark.parametrize(("plain", "is_dynamos"), [((0, 1), True), ((1,), True), ((0,), False)])
def test_plain_dynamo_may_have_failed_in_earlier_calls_too(
    monkeypatch: pytest.MonkeyPatch, plain: tuple[int, ...], is_dynamos: bool
) -> None:
    monkeypatch.setattr(torch, "compile", compile_that_raises({"fusepass": (1,), "eager": plain}))
    monkeypatch.setattr(fusepass, "last_report", no_report)
    (failure,) = examine(Program(WRITES)).failures
    assert failure.call == 1
    assert failure.dynamo is is_dynamos


class Off(torch.autograd.Function):
    """The identity, but for its gradient, which is a tenth too large."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0] + 0.1


def compile_that_is_off(target: Any, *, backend: str, **_: Any) -> Any:
    return lambda x: target(Off.apply(x) if backend == "fusepass" else x)


GRADIENT = """
import torch


def make():
    return (lambda x: {}), None


def inputs():
    return [(torch.tensor([0.5, 2.0]),)]


GRADS = (0,)
"""


@pytest.mark.parametrize(
    ("form", "found"),
    [("x * 2", ["gradient"]), ("torch.lerp(x, x + 1, 16777217.0)", [])],
    ids=["right", "terms cancel"],
)
def test_a_gradient_may_be_as_far_off_as_eagers_own(
    monkeypatch: pytest.MonkeyPatch, form: str, found: list[str]
) -> None:
    monkeypatch.setattr(torch, "compile", compile_that_is_off)
    monkeypatch.setattr(fusepass, "last_report", no_report)
    examined = examine(Program(GRADIENT.format(form), training=True))
    assert [failure.kind for failure in examined.failures] == found
    assert examined.rounded == (not found)


def test_a_campaign_over_processes_is_the_same_campaign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # At the end: the installed fusepass comes before the checkout's.
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).resolve().parents[2])])
    out = tmp_path / "summary.json"
    main(["--programs", "6", "--seed", "3", "--jobs", "2", "--out", str(out)])
    written = json.loads(out.read_text())
    alone = json.loads(json.dumps(campaign(6, seed=3).to_dict()))
    assert {**written, "seconds": 0} == {**alone, "seconds": 0}
    assert written["shapes"]["if_else"]["sites"] > 0


def test_a_program_that_hangs_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*_: Any, **__: Any) -> None:
        while True:
            pass

    monkeypatch.setattr(campaigns, "PATIENCE", 1)
    monkeypatch.setattr("tests.fuzz.examine.examine", endless)
    (broken,) = campaign(1).broken
    assert "no end within 1 s" in broken["error"]
    assert broken["source"] == seeded(0, 0).source


def test_the_command_line_shows_one_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--show", "1"]) in (0, 1)
    shown = capsys.readouterr().out
    assert seeded(3, 1).source in shown
    assert '"sites"' in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--jobs", "0"], "--jobs must be at least 1"),
        (["--programs", "-3"], "--programs must be at least 1"),
        (["--seconds", "-1"], "--seconds must be more than 0"),
        (["--show", "-1"], "--show must not be negative"),
        (["--out", "/nonexistent/x.json"], "no folder '/nonexistent'"),
        (["--out", "."], "is a folder"),
        (["--device", "gpu"], "no such device"),
    ],
)
def test_command_that_cannot_be_run(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_command_without_a_cuda_device(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--device", "cuda"])
    assert "finds no CUDA device" in capsys.readouterr().err
