"""Reading traces written by hand: which calls are waits, what they belong to, what they cost."""

from __future__ import annotations

from typing import Any

from fusepass.report.host_syncs.cuda import undisturbed
from fusepass.report.host_syncs.trace import CALL, MARK, HostWait, has_device, host_waits


def span(cat: str, name: str, start: float, length: float, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "ts": start,
        "dur": length,
        "tid": args.pop("tid", 1),
        "args": args,
    }


def op(name: str, start: float, length: float, **args: Any) -> dict[str, Any]:
    return span("cpu_op", name, start, length, **args)


def call(name: str, start: float, length: float, correlation: int = 0, **args: Any) -> Any:
    return span("cuda_runtime", name, start, length, correlation=correlation, **args)


def kernel(start: float, length: float) -> dict[str, Any]:
    return span("kernel", "gemm", start, length, tid=7)


def copied(way: str, start: float, correlation: int) -> dict[str, Any]:
    return span("gpu_memcpy", f"Memcpy {way}", start, 1.0, correlation=correlation, tid=7)


def item(start: float, number: int | None, correlation: int, wait: float) -> list[dict[str, Any]]:
    """``.item()``: a copy and a wait for it, as torch makes them."""
    events = [
        op("aten::item", start, wait + 8),
        op("aten::_local_scalar_dense", start + 1, wait + 6),
        call("cudaMemcpyAsync", start + 2, 2, correlation),
        copied("DtoH (Device -> Pageable)", start + 2 + wait, correlation),
        call("cudaStreamSynchronize", start + 5, wait),
    ]
    if number is not None:
        events.append(op(f"{MARK}{number}", start - 1, wait + 10))
    return events


def test_copy_and_its_wait_are_one() -> None:
    (wait,) = host_waits(item(100, 4, 1, 50))
    assert (wait.call, wait.operation) == ("cudaStreamSynchronize", "aten::_local_scalar_dense")
    assert (wait.mark, wait.inside, wait.direction) == (4, True, "DtoH pageable")
    assert (wait.wait_us, wait.start) == (52.0, 102.0)


def test_launches_and_asynchronous_copies_are_no_waits() -> None:
    events = [
        op("aten::mul", 0, 10),
        call("cudaLaunchKernel", 1, 5),
        call("cudaMemcpyAsync", 20, 3, 1),
        copied("HtoD (Pinned -> Device)", 25, 1),
        call("cudaMemcpyAsync", 30, 3, 2),
        copied("HtoD (Pageable -> Device)", 35, 2),
        call("cudaMemcpyAsync", 40, 3, 3),
        copied("DtoH (Device -> Pinned)", 45, 3),
        call("cudaMemcpyAsync", 50, 3, 4),
        copied("DtoD (Device -> Device)", 55, 4),
        call("cudaEventQuery", 60, 1),
        call("cudaStreamWaitEvent", 62, 1),
    ]
    assert host_waits(events) == []


def test_copy_to_pageable_memory_waits_by_itself() -> None:
    events = [
        op("aten::copy_", 0, 20),
        call("cudaMemcpyAsync", 2, 15, 9),
        copied("DtoH (Device -> Pageable)", 10, 9),
        op("aten::mul", 30, 5),
        call("cudaLaunchKernel", 31, 2),
    ]
    (wait,) = host_waits(events)
    assert (wait.call, wait.operation, wait.wait_us) == ("cudaMemcpyAsync", "aten::copy_", 15.0)


def test_wait_in_another_operation_is_another_wait() -> None:
    events = [
        op("aten::copy_", 0, 20),
        call("cudaMemcpyAsync", 2, 15, 9),
        copied("DtoH (Device -> Pageable)", 10, 9),
        op("aten::unique", 30, 20),
        call("cudaStreamSynchronize", 32, 4),
    ]
    assert [(w.operation, w.direction) for w in host_waits(events)] == [
        ("aten::copy_", "DtoH pageable"),
        ("aten::unique", ""),
    ]


def test_two_waits_in_one_operation_are_two() -> None:
    events = [
        op("aten::_unique2", 0, 40),
        call("cudaStreamSynchronize", 2, 4),
        call("cudaStreamSynchronize", 12, 4),
    ]
    assert len(host_waits(events)) == 2


def test_upload_and_its_wait() -> None:
    events = [
        call("cudaMemcpyAsync", 2, 1, 9),
        copied("HtoD (Pageable -> Device)", 4, 9),
        call("cudaStreamSynchronize", 5, 4),
        op(f"{MARK}12", 15, 0.1),
    ]
    (wait,) = host_waits(events)
    assert (wait.direction, wait.mark, wait.inside) == ("HtoD pageable", 12, False)


def test_next_mark_is_that_of_its_own_thread() -> None:
    events = [
        call("cudaDeviceSynchronize", 2, 1),
        op(f"{MARK}3", 4, 1, tid=2),
        op(f"{MARK}5", 6, 1),
    ]
    (wait,) = host_waits(events)
    assert wait.mark == 5


def test_memory_given_back_is_told_apart_and_memory_taken_is_no_wait() -> None:
    taken = [op("aten::empty", 0, 50), call("cudaMalloc", 1, 40)]
    (wait,) = host_waits([*taken, op("aten::resize_", 60, 50), call("cudaFree", 61, 40)])
    assert wait.frees
    assert wait.operation == "aten::resize_"


def test_only_the_call_counts() -> None:
    events = [
        call("cudaDeviceSynchronize", 1, 5),
        op(CALL, 10, 100),
        *item(20, 1, 1, 5),
        call("cudaDeviceSynchronize", 120, 5),
    ]
    (wait,) = host_waits(events)
    assert wait.operation == "aten::_local_scalar_dense"


def test_idle_gap_reaches_from_the_end_of_the_work_to_the_next() -> None:
    events = [
        kernel(0, 140),
        *item(100, 1, 1, 50),  # copied at 152 to 153, the host goes on at 155
        kernel(170, 10),
        kernel(200, 10),
    ]
    (wait,) = host_waits(events)
    assert wait.idle_us == 170 - 153


def test_no_gap_while_another_stream_works() -> None:
    events = [kernel(0, 500), *item(100, 1, 1, 50), kernel(170, 10)]
    (wait,) = host_waits(events)
    assert wait.idle_us == 0.0


def test_gap_counts_once() -> None:
    events = [
        kernel(0, 90),
        op("aten::a", 98, 12),
        call("cudaStreamSynchronize", 100, 5),
        op("aten::b", 118, 12),
        call("cudaStreamSynchronize", 120, 5),
        kernel(150, 10),
    ]
    assert [wait.idle_us for wait in host_waits(events)] == [60.0, 0.0]


def test_nothing_after_the_last_wait() -> None:
    (wait,) = host_waits([kernel(0, 10), call("cudaDeviceSynchronize", 5, 10)])
    assert wait.idle_us is None


def test_deep_operations_that_ended_do_not_count() -> None:
    inner = [op("aten::empty", 10 + i, 0.5) for i in range(600)]
    (wait,) = host_waits(
        [op("aten::nonzero", 0, 1000), *inner, call("cudaStreamSynchronize", 800, 5)]
    )
    assert wait.operation == "aten::nonzero"


def test_names_of_rocm() -> None:
    (wait,) = host_waits([call("hipStreamSynchronize", 1, 4)])
    assert wait.call == "cudaStreamSynchronize"


def test_has_device() -> None:
    assert has_device([call("cudaLaunchKernel", 0, 1)])
    assert not has_device([op("aten::mul", 0, 1)])


def waits(*names: str, wait: float = 1.0) -> list[HostWait]:
    return [
        HostWait("cudaStreamSynchronize", name, None, False, "", False, 0.0, wait + i, wait * 10)
        for i, name in enumerate(names)
    ]


def test_times_are_taken_over_in_order() -> None:
    times = undisturbed(waits("a", "b", "a"), waits("a", "b", "a", wait=5.0))
    assert times == [(5.0, 50.0), (6.0, 50.0), (7.0, 50.0)]


def test_times_are_not_taken_from_another_place() -> None:
    times = undisturbed(waits("a", "b", "c"), waits("a", "c", wait=5.0))
    assert times == [(5.0, 50.0), None, (6.0, 50.0)]
