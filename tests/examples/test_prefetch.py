"""The example of prefetch: both loops see the same batches and end with the same losses."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
import torch

import fusepass

SHORT = ["--batches", "4", "--size", "3"]


@pytest.fixture
def module(example: Callable[[str], ModuleType]) -> ModuleType:
    return example("prefetch")


def steps(printed: str) -> list[str]:
    return re.findall(
        r"^(\w+) +[\d.]+ ms a step, loss (?:[\d.]+) to (?:[\d.]+)$", printed, re.MULTILINE
    )


def test_program(module: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert module.main(["--device", "cpu", *SHORT]) == 0
    assert steps(capsys.readouterr().out) == ["plain", "prefetch"]


def test_losses_on_the_cpu_are_equal_to_the_bit(module: ModuleType) -> None:
    loader, device = module.Images(5, 3), torch.device("cpu")
    assert len(loader) == len(list(loader)) == 5
    plain = module.train(loader, device)
    assert module.train(fusepass.prefetch(loader, device), device) == plain


def test_losses_that_differ_fail_the_program(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, calls = module.train, []

    def wrong(*given: object) -> list[float]:
        calls.append(given)
        return [loss + len(calls) for loss in train(*given)]

    monkeypatch.setattr(module, "train", wrong)
    assert module.main(["--device", "cpu", *SHORT]) == 1


def test_images_are_what_they_say(module: ModuleType) -> None:
    (batch,) = module.Images(1, 8)
    images = batch["images"]
    assert (images.shape, images.dtype) == ((8, 3, module.SIZE, module.SIZE), torch.float32)
    assert abs(float(images.mean())) < 0.1
    assert abs(float(images.std()) - 1) < 0.1
    assert not np.array_equal(images[0], images[1])


@pytest.mark.gpu
def test_on_cuda(module: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert module.main(["--device", "cuda", *SHORT]) == 0
    assert steps(capsys.readouterr().out) == ["plain", "prefetch"]
