"""What L2 holds before candidates are timed: what was read, before those for few rows."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import pytest
import torch

from fusepass.torch_private.inductor import lowering
from fusepass.tune import GemmRegionProblem, decide, timing
from fusepass.tune.problems.base import INDUCTOR, Candidate
from tests.tune.problems.test_gemm import ONE as REGION
from tests.tune.problems.test_normed_gemms import ONE as NORMED


@pytest.mark.parametrize(("m", "wanted"), [(1, True), (128, True), (129, False)])
def test_few_rows_are_timed_behind_reads(
    m: int, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[bool] = []

    def timed(calls: Any, device: Any, seconds: float, *, after_reads: bool) -> timing.Samples:
        said.append(after_reads)
        return timing.Samples({name: [1.0] * 5 for name in calls})

    monkeypatch.setattr(timing, "time_on_device", timed)
    monkeypatch.setattr(timing, "make_inputs", lambda problem: ())
    monkeypatch.setattr(lowering, "real_tensors", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    problem: GemmRegionProblem = dataclasses.replace(REGION, m=m)
    decide.measure(problem, [Candidate(INDUCTOR, lambda *_: None)], 0.1, "default")
    assert said == [wanted]
    assert NORMED.after_reads
