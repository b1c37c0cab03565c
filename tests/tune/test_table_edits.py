"""Choices removed and imported on request, for the device that the machine has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fusepass import errors, tune
from fusepass.tune.table import ChoiceEntry

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The CPU's table in a folder of its own, with two choices."""
    monkeypatch.setenv("FUSEPASS_CACHE_DIR", str(tmp_path))
    tune.reset()
    for key in ("a", "b"):
        tune.table_for(CPU).add(key, ChoiceEntry("inductor", {"inductor": 1.0}))
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


def test_a_device_by_its_name() -> None:
    assert tune.prune(device="cpu") == 2


WHOLE = b'{"schema": 1, "device": "%s", "epoch": 0, "choices": {}}'
FILES = {
    "empty": (b"", "it is empty"),
    "truncated": (WHOLE[:30], "only the beginning"),
    "list": (b"[]", "not a table of choices of this version"),
    "null": (b"null", "not a table of choices of this version"),
    "schema": (b'{"schema": 0}', "not a table of choices of this version"),
    "device": (WHOLE % b"toaster", "another device, 'toaster'"),
    "binary": (b"\x80\xff", "it is no text"),
    "huge": (
        b'{"schema": 1, "device": "DEVICE", "epoch": 0, "choices": {"a": '
        b'{"candidate": "b", "how": "tuned", "microseconds": {"b": 1%s}}}}' % (b"0" * 400),
        "malformed choice for 'a'",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_holds_no_choices(name: str, tmp_path: Path) -> None:
    content, words = FILES[name]
    file = tmp_path / "given.json"
    file.write_bytes(content.replace(b"DEVICE", tune.table_for(CPU).device.encode()))
    with pytest.raises(errors.ChoicesNotImported, match=words) as caught:
        tune.import_choices(file, CPU)
    assert str(file) in str(caught.value)
    assert "give the file" in str(caught.value)
    assert len(tune.table_for(CPU).entries) == 2


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", "a\0b"):
        with pytest.raises(errors.ChoicesNotImported, match="cannot be read") as caught:
            tune.import_choices(path, CPU)
        assert isinstance(caught.value, (OSError, ValueError))
    wrong: Any = None
    with pytest.raises(errors.ArgumentType, match=r"path of tune\.import_choices"):
        tune.import_choices(wrong)


@pytest.mark.parametrize("device", ["xyz", "meta", "cuda:99", 1.5, [], "mps"])
def test_no_device(device: Any) -> None:
    with pytest.raises(errors.TuneDevice, match=r"device=.*Give 'cpu'"):
        tune.prune(device=device)
    with pytest.raises(errors.TuneDevice, match=r"device=.*Give 'cpu'"):
        tune.import_choices("missing", device)


def test_no_function_to_prune_by() -> None:
    wrong: Any = "a"
    with pytest.raises(errors.ArgumentType, match=r"unwanted of tune\.prune"):
        tune.prune(wrong)
