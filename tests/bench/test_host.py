"""Suite ``host``: each program and its twin compute the same, and do what the suite says."""

from __future__ import annotations

import pytest
import torch

from fusepass.bench.program import check_built, suite_programs
from tests.perf.suites import host

PROGRAMS = {program.name: program for program in suite_programs("host", "cpu")}


def test_names_and_sizes() -> None:
    assert list(PROGRAMS) == ["normalised", "masked", "both", "print-loss"]
    assert suite_programs("host", "cuda")[0].parameters["layers"] == 24


@pytest.mark.parametrize("name", ["normalised", "masked", "both"])
def test_twin_computes_the_same(name: str) -> None:
    program, results = PROGRAMS[name], []
    for make in (program.build, program.twin):
        torch.manual_seed(0)
        assert make is not None
        built = check_built(make(), name)
        results.append(built.model(*built.args))
    # A tensor of one element and a Python number divide with different roundings at most.
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-7)
    assert results[0].norm() != 0


def test_mask_hides_what_follows() -> None:
    torch.manual_seed(0)
    model, (x,) = host.encoder("cpu", normalised=False, masked=True)
    with torch.no_grad():
        before = model(x)
        changed = x.clone()
        changed[-1] += 1
        after = model(changed)
    torch.testing.assert_close(after[:-1], before[:-1])
    assert not torch.equal(after[-1], before[-1])


def test_loss_is_printed_by_the_program_only(capsys: pytest.CaptureFixture[str]) -> None:
    program = PROGRAMS["print-loss"]
    assert program.training is not None
    for make, lines in ((program.build, 1), (program.twin, 0)):
        assert make is not None
        model, (x, target) = make()
        loss = model(x[0], target[0])
        printed = capsys.readouterr().out
        assert printed == (f"{loss!s}\n" if lines else "")
        assert "grad_fn=<MseLossBackward0>" in printed or not lines
