"""The road on a CUDA device, with a device that is played: real marks, invented waits."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass.report.host_syncs import api, cuda, residence, trace
from fusepass.report.host_syncs.profiler_marks import MarkedWatch
from fusepass.torch_private.fx.dispatch_watch import marked

SAYS = "called a synchronizing CUDA operation (Triggered internally at …)"
WAITING = {"aten::_local_scalar_dense": "DtoH", "aten::nonzero": "DtoH"}


def played(call: Callable[[], Any], folder: Path) -> list[dict[str, Any]]:
    """A trace of the CPU, with calls of CUDA's runtime where a device would make the host wait."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        with marked(trace.CALL):
            call()
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("ph") == "X"]
    made: list[dict[str, Any]] = []
    for event in events:
        way = WAITING.get(event["name"])
        if way is not None and not any(_holds(event, other) for other in events):
            number = len(made)
            begin, step = event["ts"], event["dur"] / 100  # before the operation calls others
            args = {"correlation": number}
            base = {"ph": "X", "tid": event["tid"], "dur": step, "args": args}
            made += [
                {**base, "cat": "cuda_runtime", "name": "cudaMemcpyAsync", "ts": begin + step},
                {
                    **base,
                    "cat": "gpu_memcpy",
                    "name": f"Memcpy {way} (Pageable)",
                    "ts": begin + step,
                },
                {
                    **base,
                    "cat": "cuda_runtime",
                    "name": "cudaStreamSynchronize",
                    "ts": begin + 3 * step,
                },
            ]
    return events + made


def _holds(event: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the other is the same operation, where it reaches its kernel."""
    later = other["args"].get("Ev Idx", 0) > event["args"].get("Ev Idx", 0)
    inside = event["ts"] <= other["ts"] <= event["ts"] + event["dur"]
    return other["name"] == event["name"] and inside and later


# As torch would: from a line of torch's.
REPR = """
def repr_(self, **kwargs):
    text = original(self, **kwargs)
    warnings.warn(SAYS, stacklevel=1)
    return text
"""


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """CPU tensors count as CUDA tensors."""
    monkeypatch.setattr(residence, "no_device", lambda: False)
    monkeypatch.setattr(residence, "really", lambda t: t.device.type == "cpu")
    monkeypatch.setattr(api, "_watch", lambda entered, _: MarkedWatch(entered))
    monkeypatch.setattr(api, "_device", lambda _: "played")
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda _: None)
    monkeypatch.setattr(cuda, "_profiled", lambda call: played(call, tmp_path))
    original = torch.Tensor.__repr__

    names: dict[str, Any] = {"original": original, "warnings": warnings, "SAYS": SAYS}
    exec(compile(REPR, str(Path(torch.__file__).parent / "_tensor_str.py"), "exec"), names)
    monkeypatch.setattr(torch.Tensor, "__repr__", names["repr_"])
    with fusepass.options(codegen="eager"), contextlib.redirect_stdout(None):
        yield


def program(t: Tensor) -> Any:
    t = t + 1
    if t.sum() > 100:
        t = t * 2
    n = t.nonzero()
    return n, {t.mean().item(): 1}


def test_each_wait_at_its_line_with_times(device: None) -> None:
    found = fusepass.syncs(program, torch.ones(4))
    first = program.__code__.co_firstlineno
    assert [(r.kind.value, r.line - first, r.count, r.remaining) for r in found] == [
        ("branch", 2, 1, 0),
        ("nonzero", 4, 1, 1),
        ("item", 5, 1, 1),
    ]
    assert all(row.wait_us is not None and row.wait_us > 0 for row in found)
    assert all(row.file == __file__ for row in found)
    assert "wait µs" in str(found)


def test_operation_that_the_table_does_not_know(
    device: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WAITING, "aten::median", "DtoH")
    (row,) = fusepass.syncs(lambda t: t.median() + 1, torch.ones(4))
    assert (row.kind.value, row.operations) == ("operation", ("aten.median",))


def test_upload(device: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WAITING, "aten::copy_", "HtoD")
    (row,) = fusepass.syncs(lambda t: t.clone().copy_(torch.ones(4)), torch.ones(4))
    assert row.kind.value == "copy_in"


def test_without_a_trace_of_the_device_torchs_warnings_are_what_there_is(
    device: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "_profiled", lambda call: call() or [])

    def texts(t: Tensor) -> None:
        print(str(t))  # noqa: T201

    found = api.listed(texts, (torch.ones(3),), {}, with_fusepass=False)
    assert [(row.kind.value, row.wait_us) for row in found] == [("print", None)]
    assert found[0].line == texts.__code__.co_firstlineno + 1


def test_other_warnings_are_not_heard_again(device: None) -> None:
    def warns(t: Tensor) -> Tensor:
        warnings.warn("theirs", stacklevel=1)
        return t * 2

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        assert not api.listed(warns, (torch.ones(3),), {}, with_fusepass=False)
    assert 1 <= sum("theirs" in str(w.message) for w in heard) <= 2


def test_explicit_waits_are_marked(device: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_cuda_synchronize", lambda: torch.ones(1).neg(), raising=False)
    monkeypatch.setitem(WAITING, "aten::neg", "")

    def waits(t: Tensor) -> Tensor:
        torch._C._cuda_synchronize()
        return t * 2

    before = torch._C._cuda_synchronize
    (row,) = api.listed(waits, (torch.ones(3),), {}, with_fusepass=False)
    assert (row.kind.value, row.operations) == ("operation", ("aten.neg",))
    assert torch._C._cuda_synchronize is before


def test_a_wait_between_operations_stands_near_the_next(
    device: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An extension that calls CUDA itself: no operation, no warning."""
    play = cuda._profiled

    def with_another(call: Callable[[], Any]) -> list[dict[str, Any]]:
        events = play(call)
        (nonzero,) = (e for e in events if e["name"] == "PythonDispatchMode")
        begin = {"ts": nonzero["ts"] + nonzero["dur"] * 1e-3, "dur": nonzero["dur"] * 1e-3}
        base = {"ph": "X", "tid": nonzero["tid"], "args": {}, "cat": "cuda_runtime"}
        return [*events, {**base, **begin, "name": "cudaDeviceSynchronize"}]

    monkeypatch.setattr(cuda, "_profiled", with_another)

    def program(t: Tensor) -> Tensor:
        return t * 2

    watch = MarkedWatch()
    found = cuda.measure(
        watch,
        lambda: watch.call(program, (torch.ones(3),), {}, eager=True),
        contextlib.nullcontext,
    )
    (wait,) = found
    assert wait.kind.value in ("operation", "unknown")
    assert wait.place.line == program.__code__.co_firstlineno + 1
