"""The table of choices: layers, epochs, and files that are damaged, locked or written by two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch

from fusepass.errors import ChoicesUnusable
from fusepass.tune import table as tables
from fusepass.tune.table import ChoiceEntry, ChoiceTable, open_table, parse

DEVICE = "Imaginary GPU 9000"
LEARNT = ChoiceEntry("cublaslt", {"inductor": 20.0, "cublaslt": 15.5})
TUNED = ChoiceEntry("inductor", {"inductor": 20.0}, "tuned")


def test_a_choice_is_there_in_the_next_process(tmp_path: Path) -> None:
    open_table(DEVICE, tmp_path).add("a/b", LEARNT)
    again = open_table(DEVICE, tmp_path)
    assert again.find("a/b") == LEARNT
    assert again.find("a/c") is None
    assert "imaginary-gpu-9000" in again.path.name
    assert torch.__version__.split("+")[0] in again.path.name


def test_devices_do_not_share_a_file(tmp_path: Path) -> None:
    open_table(DEVICE, tmp_path).add("a", LEARNT)
    assert open_table("Imaginary GPU 9001", tmp_path).find("a") is None


def test_only_what_was_asked_for_starts_a_new_epoch(tmp_path: Path) -> None:
    table = open_table(DEVICE, tmp_path)
    table.add("a", LEARNT)
    assert table.epoch == open_table(DEVICE, tmp_path).epoch == 0
    table.add("b", TUNED)
    assert table.epoch == open_table(DEVICE, tmp_path).epoch == 1
    table.change({}, lambda key, entry: key == "a", new_epoch=True)
    again = open_table(DEVICE, tmp_path)
    assert (again.epoch, again.find("a"), again.find("b")) == (2, None, TUNED)


def test_learning_does_not_overwrite_what_was_asked_for(tmp_path: Path) -> None:
    table = open_table(DEVICE, tmp_path)
    table.add("a", TUNED)
    table.add("a", LEARNT)
    assert table.find("a") == TUNED


def test_what_another_process_pruned_stays_pruned(tmp_path: Path) -> None:
    one, other = open_table(DEVICE, tmp_path), open_table(DEVICE, tmp_path)
    one.add("a", LEARNT)
    other.change({}, lambda key, entry: True, new_epoch=True)
    one.add("b", LEARNT)
    again = open_table(DEVICE, tmp_path)
    assert (again.find("a"), again.find("b"), again.epoch) == (None, LEARNT, 1)


def test_ranks_agree_on_shipped_and_requested_entries_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = ChoiceEntry("cublaslt", {"inductor": 2.0, "cublaslt": 1.0}, "shipped")
    monkeypatch.setattr(tables, "shipped_entries", lambda device: {"s": shipped, "t": shipped})
    table = open_table(DEVICE, tmp_path)
    table.add("l", LEARNT)
    table.add("s", LEARNT)
    table.add("t", TUNED)
    assert [table.find(key, same_everywhere=True) for key in "lst"] == [None, shipped, TUNED]
    assert [table.find(key) for key in "lst"] == [LEARNT, shipped, TUNED]


DAMAGED = {
    "cut short": '{"schema": 1, "device": "Imaginary GPU 9000", "epoch": 0, "choi',
    "empty": "",
    "another shape": "[1, 2]",
    "another schema": json.dumps({"schema": 99, "device": DEVICE, "epoch": 0, "choices": {}}),
    "another device": json.dumps({"schema": 1, "device": "X", "epoch": 0, "choices": {}}),
    "no epoch": json.dumps({"schema": 1, "device": DEVICE, "choices": {}}),
    "a choice that is none": json.dumps(
        {"schema": 1, "device": DEVICE, "epoch": 0, "choices": {"a": {"candidate": 3}}}
    ),
    "deep": "[" * 100_000,
    "binary": "\x00\x01",
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_set_aside_with_one_warning(tmp_path: Path, text: str) -> None:
    path = open_table(DEVICE, tmp_path).path
    path.write_text(text)
    with pytest.warns(ChoicesUnusable, match="damaged") as caught:
        table = open_table(DEVICE, tmp_path)
    assert len(caught) == 1
    assert "writable" not in str(caught[0].message)
    assert path.with_name(f"{path.name}.damaged").read_text() == text
    table.add("a", LEARNT)
    assert open_table(DEVICE, tmp_path).find("a") == LEARNT


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = open_table(DEVICE, tmp_path).path
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.warns(ChoicesUnusable, match="damaged") as caught:
        table = open_table(DEVICE, tmp_path)
    assert "writable" not in str(caught[0].message)
    assert path.with_name(f"{path.name}.damaged").read_bytes() == b"\xff\xfe\x00"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the next process finds a file that is whole
        table.add("a", LEARNT)
        assert open_table(DEVICE, tmp_path).find("a") == LEARNT


def test_a_file_that_cannot_be_read_is_left_alone(tmp_path: Path) -> None:
    path = open_table(DEVICE, tmp_path).path
    path.mkdir()
    with pytest.warns(ChoicesUnusable, match="make the file readable") as caught:
        table = open_table(DEVICE, tmp_path)
    table.add("a", LEARNT)
    assert len(caught) == 1
    assert path.is_dir()


def test_a_folder_that_cannot_be_made_costs_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    table = open_table(DEVICE, tmp_path / "file" / "below")
    with pytest.warns(ChoicesUnusable, match="cannot be written") as caught:
        table.add("a", LEARNT)
        table.add("b", LEARNT)
    assert len(caught) == 1
    assert table.find("a") == table.find("b") == LEARNT


def test_a_full_disk_leaves_the_old_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = open_table(DEVICE, tmp_path)
    table.add("a", LEARNT)

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.warns(ChoicesUnusable, match="No space left"):
        table.add("b", LEARNT)
    assert table.find("b") == LEARNT
    assert [path.name for path in tmp_path.iterdir()] == [table.path.name]
    assert open_table(DEVICE, tmp_path).find("a") == LEARNT


WRITER = """
import sys
from pathlib import Path
from fusepass.tune.table import ChoiceEntry, open_table
table = open_table(sys.argv[1], Path(sys.argv[2]))
for n in range(40):
    table.add(f"{sys.argv[3]}/{n}", ChoiceEntry("cublaslt", {"inductor": 2.0, "cublaslt": 1.0}))
assert all(table.find(f"{sys.argv[3]}/{n}") for n in range(40))
"""


def test_two_processes_never_leave_half_a_file(tmp_path: Path) -> None:
    path = open_table(DEVICE, tmp_path).path
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, DEVICE, str(tmp_path), name], env=environment
        )
        for name in ("one", "two")
    ]
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            parse(path.read_text(), DEVICE)  # at every moment
    assert [writer.returncode for writer in writers] == [0, 0]
    _, entries = parse(path.read_text(), DEVICE)
    # Each writes all it knows, so only what was written in the last instant can be lost.
    assert len(entries) >= 40
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("attempts", [(0, 1), (2, 3)], ids=str)
def test_a_killed_process_leaves_a_table_that_works(
    attempts: tuple[int, ...], tmp_path: Path
) -> None:
    """Killed at any moment of a write: what it had written before is there, and can be added to."""
    path = open_table(DEVICE, tmp_path).path
    endless = WRITER.replace("for n in range(40)", "for n in range(10**6)")
    for attempt in attempts:
        held = len(parse(path.read_text(), DEVICE)[1]) if path.exists() else 0
        writer = subprocess.Popen(
            [sys.executable, "-c", endless, DEVICE, str(tmp_path), str(attempt)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        try:
            while not path.exists() or len(parse(path.read_text(), DEVICE)[1]) < held + 5:
                assert writer.poll() is None
                time.sleep(0.01 + 0.003 * attempt)
        finally:
            writer.kill()
            writer.wait()
        found = parse(path.read_text(), DEVICE)[1]
        assert len(found) >= held + 5
        open_table(DEVICE, tmp_path).add(f"after {attempt}", LEARNT)
        assert parse(path.read_text(), DEVICE)[1].keys() >= {*found, f"after {attempt}"}


def test_the_folder_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEPASS_CACHE_DIR", str(tmp_path / "here"))
    assert open_table(DEVICE).path.parent == tmp_path / "here"
    monkeypatch.delenv("FUSEPASS_CACHE_DIR")
    assert open_table(DEVICE).path.parent == Path.home() / ".cache" / "fusepass"


def test_shipped_files_are_in_order() -> None:
    folder = Path(tables.__file__).parent / "shipped"
    for path in folder.glob("*.json"):
        record = json.loads(path.read_text())
        epoch, entries = parse(path.read_text(), record["device"])
        assert epoch == 0
        assert entries
        assert {entry.how for entry in entries.values()} == {"shipped"}


def test_table_is_plain_json(tmp_path: Path) -> None:
    table: ChoiceTable = open_table(DEVICE, tmp_path)
    table.add("a", LEARNT)
    record = json.loads(table.path.read_text())
    assert record["choices"]["a"] == {
        "candidate": "cublaslt",
        "microseconds": {"inductor": 20.0, "cublaslt": 15.5},
        "how": "learnt",
    }
