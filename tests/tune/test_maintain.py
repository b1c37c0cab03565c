"""Choices removed and imported on request, for the device that the machine has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fusepass import tune
from fusepass.tune.table import Entry

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The CPU's table in a folder of its own, with two choices."""
    monkeypatch.setenv("FUSEPASS_CACHE_DIR", str(tmp_path))
    tune.reset()
    for key in ("a", "b"):
        tune.table_for(CPU).add(key, Entry("inductor", {"inductor": 1.0}))
    yield
    tune.reset()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the current device is the GPU")
class TestWithoutCuda:
    def test_prune(self) -> None:
        assert tune.prune(lambda key, entry: key == "a") == 1
        assert tune.prune() == 1
        assert not tune.table_for(CPU).entries

    def test_import(self, tmp_path: Path) -> None:
        other = tune.table_for(CPU).path.rename(tmp_path / "from-elsewhere.json")
        tune.reset()
        assert tune.import_choices(other) == 2
        assert {e.how for e in tune.table_for(CPU).entries.values()} == {"imported"}


def test_the_cpu_on_any_machine() -> None:
    assert tune.prune(device=CPU) == 2
