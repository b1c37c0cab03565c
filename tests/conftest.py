"""What every test gets: a printed seed, reset compilers, a cache folder of the run's own, skips.

``FUSEPASS_TEST_SEED`` chooses the seed, ``FUSEPASS_TEST_SAMPLE`` which of the tests marked
``sampled`` are run every day (CI: another part for each commit), and ``TORCHINDUCTOR_CACHE_DIR``
keeps one cache between runs.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest
import torch

SEED = int(os.environ.get("FUSEPASS_TEST_SEED", "0"))
SAMPLE = int(os.environ.get("FUSEPASS_TEST_SAMPLE", "0"))
_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_own_cache = pytest.StashKey[str]()
_SETTINGS_AS_TEXT = (
    "_compiler_config_for_logging",
    "_functorch_config_for_logging",
    "_get_dynamo_config_for_logging",
    "_scrubbed_inductor_config_for_logging",
)


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # models are made from a config, never fetched
    # Once, in the process that starts the xdist workers: they inherit the folder and share it.
    if _CACHE not in os.environ:
        config.stash[_own_cache] = os.environ[_CACHE] = tempfile.mkdtemp(prefix="fusepass-tests-")
    # Believe the CPU about its vector instructions. Inductor else compiles torch's headers once for
    # each kind, in every empty cache folder: 9 s for each test that has a folder of its own.
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
    # Workers that each take every core wait for one another inside OpenMP.
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    # pytest (from 9.2 on) listens to loggers that do not propagate, and torch writes what it
    # traces, graphs and code as text, for any listener: a tenth of the time of many tests.
    logging.getLogger("torch.__trace").propagate = True
    gc.set_threshold(5000, 20, 40)  # modules are most of what is there, and they stay
    # What is no device here keeps every seed for the day it becomes one, with a stack: 1 ms each.
    for devices in (torch.cuda, torch.xpu, torch.mtia):
        if not devices.is_available():
            devices.manual_seed_all = _no_device  # type: ignore[method-assign,assignment]


def _no_device(seed: int) -> None:
    """In the place of what seeds all devices of a kind."""


def pytest_unconfigure(config: pytest.Config) -> None:
    gc.unfreeze()
    if _own_cache in config.stash:
        shutil.rmtree(config.stash[_own_cache], ignore_errors=True)
        os.environ.pop(_CACHE, None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All but one in n parameters of a test marked ``sampled(n)`` are slow.

    A test without parameters is run every n-th time. Where a test's parameter ``codegen`` has other
    values, too, which need no C++ compiler, ``"inductor"`` is one of three.
    """
    seen: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("sampled")
        given = item.callspec.params if hasattr(item, "callspec") else {}
        part = mark.args[0] if mark else 3 if given.get("codegen") == "inductor" else 1
        test = item.nodeid.partition("[")[0]
        start = crc32(test.encode())  # tests without parameters take turns, too
        if (start + seen[test] + SAMPLE) % part:
            item.add_marker("slow")
        seen[test] += part > 1


def pytest_collection_finish() -> None:
    """Collected tests and loaded modules stay: the collector need not visit them again."""
    gc.collect()
    gc.freeze()


def pytest_report_header() -> str:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device"
    chosen = f"seed {SEED} (FUSEPASS_TEST_SEED), sample {SAMPLE} (FUSEPASS_TEST_SAMPLE)"
    return f"fusepass: {chosen}, torch {torch.__version__}, {device}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip(f"needs a CUDA device: torch {torch.__version__} sees none here")


@pytest.fixture(autouse=True)
def _reset() -> None:
    """Each test starts with the same random state and with nothing compiled."""
    random.seed(SEED)
    torch.manual_seed(SEED)
    guards = sys.modules.get("torch._dynamo.guards")
    if guards is not None:
        # Dynamo times the guards of each compile, with the CPU's caches emptied: 26 ms of 130.
        guards.profile_guard_manager = lambda *given: 0.0  # type: ignore[attr-defined]
        # And each compile writes all settings as text, for a log that nobody reads: 2 ms.
        for name in _SETTINGS_AS_TEXT:
            setattr(sys.modules["torch._dynamo.utils"], name, lambda: None)
    if "fusepass" in sys.modules:
        sys.modules["fusepass"].reset()
    elif "torch._dynamo" in sys.modules:  # not loaded for a test that compiles nothing
        torch.compiler.reset()


@pytest.fixture(autouse=True)
def _device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests marked ``gpu_alone`` have the GPU to themselves; the other GPU tests share it."""
    alone = request.node.get_closest_marker("gpu_alone") is not None
    shares = "PYTEST_XDIST_WORKER" in os.environ
    if not shares or not (alone or request.node.get_closest_marker("gpu")):
        yield
        return
    import fcntl  # not on Windows

    folder = Path(os.environ[_CACHE])
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "device.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder for one test, used by this process and by those it starts."""
    from torch._inductor.utils import clear_caches

    folder = tmp_path / "inductor-cache"
    monkeypatch.setenv(_CACHE, str(folder))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder / "triton"))
    clear_caches()  # what is held in memory would answer in the folder's place
    yield folder
    clear_caches()


@pytest.fixture
def tf32() -> Iterator[None]:
    """Products in single precision may be computed as TF32."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32"
    yield
    matmul.fp32_precision = before
