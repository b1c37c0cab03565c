"""Memory that is kept from call to call: whose it is, how much there may be, that it goes back."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from fusepass.kernels import kept_memory
from fusepass.kernels.kept_memory import KeptMemory

CPU = torch.device("cpu")
KINDS = [
    ("float16", (3, 4, 5), (20, 1, 4)),
    ("float32", (7,), (1,)),
    ("bool", (0, 2), (2, 1)),
    ("bfloat16", (), ()),
]
TOTAL = 3 * 256  # three of them are not empty


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kept_memory, "_bound", lambda device: 2 * TOTAL)
    gc.collect()
    assert not kept_memory._held[0]
    yield
    gc.collect()
    assert not kept_memory._held[0]  # whatever a test took is given back


def test_tensors_as_they_were_asked_for() -> None:
    kept = KeptMemory().on(5, KINDS, CPU)
    assert kept is not None
    places = set()
    for one, (dtype, shape, strides) in zip(kept.results, KINDS, strict=True):
        assert (str(one.dtype), one.shape, one.stride()) == (f"torch.{dtype}", shape, strides)
        one.fill_(1)
        if one.numel():
            places.add(one.storage_offset() * one.element_size() // 256)
    assert places == {0, 1, 2}
    assert all(bool((one == 1).all()) for one in kept.results)  # none lies in another


def test_the_same_in_each_call_on_a_stream() -> None:
    memory = KeptMemory()
    first = memory.on(5, KINDS, CPU)
    assert first is not None
    assert memory.on(5, KINDS, CPU) is first
    other = memory.on(6, KINDS, CPU)
    assert other is not None
    assert other.results[0].data_ptr() != first.results[0].data_ptr()


def test_another_thread_has_its_own_and_leaves_it_when_it_ends() -> None:
    memory = KeptMemory()
    first = memory.on(5, KINDS, CPU)
    assert first is not None
    with ThreadPoolExecutor(1) as pool:
        address = pool.submit(_address, memory).result()
        assert address not in (None, first.results[0].data_ptr())
        assert kept_memory._held[0] == 2 * TOTAL
        assert pool.submit(_address, memory).result() == address
    gc.collect()
    assert kept_memory._held[0] == TOTAL


def _address(memory: KeptMemory) -> int | None:
    kept = memory.on(5, KINDS, CPU)
    return None if kept is None else kept.results[0].data_ptr()


def test_no_more_than_there_may_be() -> None:
    one, other = KeptMemory(), KeptMemory()
    assert one.on(1, KINDS, CPU) is not None
    assert other.on(1, KINDS, CPU) is not None
    assert one.on(2, KINDS, CPU) is None
    del other
    gc.collect()
    assert one.on(2, KINDS, CPU) is not None


def test_out_of_memory_is_no_error_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def empty(*args: object, **given: object) -> None:
        raise torch.OutOfMemoryError

    memory = KeptMemory()
    with monkeypatch.context() as patched:
        patched.setattr(torch, "empty", empty)
        assert memory.on(1, KINDS, CPU) is None
    assert memory.on(1, KINDS, CPU) is not None


def test_made_in_inference_mode_and_used_outside() -> None:
    memory = KeptMemory()
    with torch.inference_mode():
        kept = memory.on(1, KINDS, CPU)
    assert kept is not None
    assert not kept.results[0].is_inference()
    x = torch.randn(7, requires_grad=True)
    (x * kept.results[1]).sum().backward()
