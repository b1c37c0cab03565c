"""Suite ``models``: which models there are, and that they give numbers."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from fusepass.bench.program import suite_programs
from tests.perf.suites import models


def test_there_are_fifty() -> None:
    names = [*models.TIMM, *models.TORCHVISION, *models.TRANSFORMERS]
    assert len(set(names)) == len(names) >= 50


def test_models_of_missing_packages_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert suite_programs("models", "cpu") == ()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "timm" or None)
    assert [one.name for one in suite_programs("models", "cuda")] == list(models.TIMM)


PROGRAMS = {one.name: one for one in suite_programs("models", "cpu")}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_models_give_finite_outputs(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = PROGRAMS[name].build()
    with torch.no_grad():
        out = model(*inputs)
    assert out.isfinite().all()
    assert out.std() > 0
    assert not model.training
