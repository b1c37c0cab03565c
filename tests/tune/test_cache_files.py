"""Files of the cache folder: whose they may be, and what a process that was killed leaves."""

from __future__ import annotations

import os
import signal
import stat
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusepass.errors import CacheNotPrivate
from fusepass.tune import cache_files
from fusepass.tune.cache_files import NotPrivate, read, write
from fusepass.tune.table import ChoiceEntry, open_table

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have owners and modes")


@pytest.fixture(autouse=True)
def untold() -> Iterator[None]:
    cache_files._warn_not_private.cache_clear()
    yield
    cache_files._warn_not_private.cache_clear()


@pytest.fixture
def no_mask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write(tmp_path, "below/name", b"one")
    write(tmp_path, "below/name", b"two")
    assert read(tmp_path, "below/name") == b"two"
    assert [path.name for path in (tmp_path / "below").iterdir()] == ["name"]


def test_made_for_one_user(tmp_path: Path, no_mask: None) -> None:
    root = tmp_path / "a" / "cache"
    write(root, "below/name", b"one")
    assert mode(root) == mode(root / "below") == 0o700
    assert mode(root / "below" / "name") == 0o600


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none", "name")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        read(tmp_path / "file", "name")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        read(tmp_path, "folder")


@pytest.mark.parametrize("bits", [0o020, 0o002, 0o022])
@pytest.mark.parametrize("which", [".", "below", "below/name"])
def test_what_others_can_write_is_not_read(tmp_path: Path, which: str, bits: int) -> None:
    write(tmp_path, "below/name", b"one")
    path = tmp_path / which
    path.chmod(mode(path) | bits)
    with pytest.warns(CacheNotPrivate, match="can be written by other users") as caught:
        for _ in range(2):
            with pytest.raises(NotPrivate):
                read(tmp_path, "below/name")
    assert len(caught) == 1
    assert str(path) in str(caught[0].message)
    path.chmod(mode(path) & ~bits)
    assert read(tmp_path, "below/name") == b"one"


@pytest.mark.parametrize("bits", [0o044, 0o055])
def test_others_may_read(tmp_path: Path, bits: int) -> None:
    write(tmp_path, "name", b"one")
    for path in (tmp_path, tmp_path / "name"):
        path.chmod(mode(path) | bits)
    assert read(tmp_path, "name") == b"one"


@pytest.mark.parametrize("which", [".", "below"])
def test_nothing_is_written_where_others_can(tmp_path: Path, which: str) -> None:
    write(tmp_path, "below/name", b"one")
    (tmp_path / which).chmod(0o777)
    with pytest.warns(CacheNotPrivate, match="FUSEPASS_CACHE_DIR"), pytest.raises(NotPrivate):
        write(tmp_path, "below/name", b"two")
    (tmp_path / which).chmod(0o700)
    assert read(tmp_path, "below/name") == b"one"


@pytest.mark.parametrize("which", [".", "below", "below/name"])
def test_what_another_user_owns(
    tmp_path: Path, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "below/name", b"one")
    path = tmp_path / which
    if os.geteuid() == 0:
        os.chown(path, 54321, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.warns(CacheNotPrivate, match="belongs to another user"), pytest.raises(NotPrivate):
        read(tmp_path, "below/name")


def test_root_may_own_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "name", b"one")
    if os.geteuid() != 0:
        pytest.skip("the files must be root's")
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    assert read(tmp_path, "name") == b"one"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "name", 0o600)
    assert read(tmp_path, "name") == b""


def test_a_table_goes_on_in_memory(tmp_path: Path) -> None:
    entry = ChoiceEntry("cublaslt", {"inductor": 2.0, "cublaslt": 1.0})
    open_table("Imaginary GPU", tmp_path).add("a", entry)
    tmp_path.chmod(0o777)
    with pytest.warns(CacheNotPrivate) as caught:
        table = open_table("Imaginary GPU", tmp_path)
        table.add("b", entry)
    assert len(caught) == 1
    assert table.find("a") is None
    assert table.find("b") == entry
    tmp_path.chmod(0o700)
    assert open_table("Imaginary GPU", tmp_path).find("b") is None


def killed_while_writing(folder: Path, seconds: float) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            while True:
                write(folder, "name", b"x" * 4_000_000)
        finally:
            os._exit(1)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    left = 0
    for turn in range(30):
        killed_while_writing(tmp_path, 0.02 + 0.001 * turn)
        left += any(path.name != "name" for path in tmp_path.iterdir())
    write(tmp_path, "name", b"one")
    assert left, "no process was killed while it wrote"
    assert [path.name for path in tmp_path.iterdir()] == ["name"]


def test_what_is_being_written_stays(tmp_path: Path) -> None:
    with cache_files._beside(tmp_path / "name") as (new, _):
        write(tmp_path, "other", b"one")
        write(tmp_path, "name", b"two")
        assert new.exists()
        new.replace(tmp_path / "name")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["name", "other"]


def test_without_locks_nobody_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = tmp_path / ".name.0123456789abcdef.new"
    stale.write_text("")
    with monkeypatch.context() as patched:
        patched.setattr(cache_files, "_lock", lambda file: None)
        write(tmp_path, "name", b"one")
        assert stale.exists()
    write(tmp_path, "name", b"one")
    assert not stale.exists()


def test_one_that_was_taken_for_stale_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between making and locking a file another process may have come by."""
    lock, met = cache_files._lock, []

    def stolen(file: int) -> bool | None:
        if not met:
            (path,) = tmp_path.iterdir()
            met.append(path.name)
            path.unlink()
        return lock(file)

    monkeypatch.setattr(cache_files, "_lock", stolen)
    write(tmp_path, "name", b"one")
    assert met
    assert read(tmp_path, "name") == b"one"


def test_files_of_earlier_versions_and_of_others(tmp_path: Path) -> None:
    dead, alive = tmp_path / ".name.2147483646.1", tmp_path / f".name.{os.getpid()}.1"
    others = [tmp_path / name for name in (".hidden", "name.new", ".name.new", ".n.xyz.new")]
    for path in (dead, alive, *others):
        path.write_text("")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write(tmp_path, "name", b"one")
    assert not dead.exists()
    assert alive.exists()
    assert all(path.exists() for path in others)


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "name", b"one")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space"):
            write(tmp_path, "name", b"two")
    assert [path.name for path in tmp_path.iterdir()] == ["name"]
    assert read(tmp_path, "name") == b"one"
