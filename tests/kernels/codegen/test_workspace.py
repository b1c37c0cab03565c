"""Memory that is kept from call to call: whose it is, how much there may be, what goes first."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from fusepass.kernels.codegen import workspace
from fusepass.kernels.codegen.workspace import CachedResults, ResultCache

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
    monkeypatch.setattr(workspace, "_max_bytes", lambda device: 2 * TOTAL)
    workspace._all.clear()
    yield
    workspace._all.clear()


def on(memory: ResultCache, stream: int) -> CachedResults:
    kept = memory.for_stream(stream)
    assert kept is not None
    return kept


def test_tensors_as_they_were_asked_for() -> None:
    kept = on(ResultCache(KINDS, CPU), 5)
    places = set()
    for one, (dtype, shape, strides) in zip(kept.results, KINDS, strict=True):
        assert (str(one.dtype), one.shape, one.stride()) == (f"torch.{dtype}", shape, strides)
        one.fill_(1)
        if one.numel():
            places.add(one.storage_offset() * one.element_size() // 256)
    assert places == {0, 1, 2}
    assert all(bool((one == 1).all()) for one in kept.results)  # none lies in another


def test_the_same_in_each_call_on_a_stream() -> None:
    memory = ResultCache(KINDS, CPU)
    first = on(memory, 5)
    assert on(memory, 5) is first
    assert on(memory, 6).results[0].data_ptr() != first.results[0].data_ptr()


def test_another_thread_has_its_own() -> None:
    memory = ResultCache(KINDS, CPU)
    first = on(memory, 5)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(on, memory, 5).result()
        assert other is not first
        assert pool.submit(on, memory, 5).result() is other
    assert on(memory, 5) is first


def test_another_place_has_its_own() -> None:
    one, other = ResultCache(KINDS, CPU), ResultCache(KINDS, CPU)
    assert on(one, 5) is not on(other, 5)


def test_what_was_allocated_first_goes_where_more_is_wanted() -> None:
    places = [ResultCache(KINDS, CPU) for _ in range(3)]
    first = on(places[0], 1)
    under_way = list(first.results)
    gone = weakref.ref(first)
    del first
    second = on(places[1], 1)
    assert gone() is not None  # there is room for two
    third = on(places[2], 1)
    assert gone() is None
    assert on(places[1], 1) is second
    assert on(places[2], 1) is third
    again = on(places[0], 1)  # in the place of the second
    assert again.results[0].data_ptr() != under_way[0].data_ptr()
    assert sum(one.total for one in workspace._all.values()) == 2 * TOTAL


def test_more_than_there_may_be_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, asked = ResultCache(KINDS, CPU), []
    monkeypatch.setattr(workspace, "_max_bytes", lambda device: asked.append(1) or TOTAL - 1)
    assert [memory.for_stream(1), memory.for_stream(1), memory.for_stream(2)] == [None] * 3
    assert len(asked) == 1


def test_out_of_memory_is_no_error_here(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def empty(*args: object, **given: object) -> None:
        asked.append(1)
        raise torch.OutOfMemoryError

    memory = ResultCache(KINDS, CPU)
    monkeypatch.setattr(torch, "empty", empty)
    assert [memory.for_stream(1), memory.for_stream(1)] == [None, None]
    assert len(asked) == 1  # each try would make the allocator give back what it caches


def test_made_in_inference_mode_and_used_outside() -> None:
    memory = ResultCache(KINDS, CPU)
    with torch.inference_mode():
        kept = on(memory, 1)
    assert not kept.results[0].is_inference()
    x = torch.randn(7, requires_grad=True)
    (x * kept.results[1]).sum().backward()
