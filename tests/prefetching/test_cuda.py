"""Copies to CUDA: on a device made of Python what waits for what, on a real one what comes out."""

from __future__ import annotations

import functools
import gc
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass import errors
from fusepass.prefetching import cuda
from fusepass.prefetching.cuda import Copier
from tests.conftest import SEED

from . import fake_cuda as fakes
from .fake_cuda import FakeCuda, fake_cuda
from .runs import ENDS, run, threads

__all__ = ["fake_cuda"]

# --- what waits for what --------------------------------------------------------------------------


def value(tensor: Tensor) -> float:
    """The first element as it is in memory now."""
    return float(tensor.as_subclass(Tensor).reshape(-1)[0])


def test_a_copy_has_not_happened_until_the_loops_stream_needs_it(fake_cuda: FakeCuda) -> None:
    copier = Copier(fakes.DEVICE, 2)
    staged = copier.stage((torch.ones(3), "text"))
    assert staged.settled
    batch, text = copier.hand(staged.value)
    assert text == "text"
    assert value(batch) == fakes.GARBAGE  # the host did not wait
    assert batch.recorded == {fakes.HOME, cuda.side_stream(fakes.DEVICE)}
    fakes.HOME.run(len(fakes.HOME.operations))
    assert value(batch) == 1


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_device_is_at_most_depth_batches_behind(fake_cuda: FakeCuda, depth: int) -> None:
    copier, stepped = Copier(fakes.DEVICE, depth), []
    ready = [copier.stage(torch.ones(3)) for _ in range(depth)]
    for number in range(10):
        copier.hand(ready[number].value)
        fakes.HOME.operations.append(functools.partial(stepped.append, number))
        ready.append(copier.stage(torch.ones(3)))
        # In use are the batch just handed over and `depth` more: those before it are done with.
        assert stepped == list(range(number))


@pytest.mark.parametrize("other_stream", [False, True])
def test_a_batch_that_the_loader_made_on_the_device(
    fake_cuda: FakeCuda, other_stream: bool
) -> None:
    copier, made = Copier(fakes.DEVICE, 2), torch.zeros(2).as_subclass(fakes.OnDevice)
    made.recorded = set()
    fakes.HOME.operations.append(lambda: made.as_subclass(Tensor).fill_(5))
    staged = copier.stage([made])
    stream = fakes.Stream() if other_stream else fakes.HOME
    with fakes.stream(stream):
        (batch,) = copier.hand(staged.value)
    assert batch is made
    stream.run(len(stream.operations))
    assert value(batch) == 5  # also where the loop has changed to another stream meanwhile
    assert made.recorded == ({stream} if other_stream else set())


def test_one_side_stream_for_all_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", fakes.Stream)
    cuda._side_stream.cache_clear()
    first, second = (cuda.side_stream(torch.device("cuda", 0)) for _ in range(2))
    assert first is second
    assert cuda.side_stream(torch.device("cuda", 1)) is not first
    cuda._side_stream.cache_clear()


def test_no_room_on_the_device_for_a_batch_ahead(
    fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is moved when the loop wants it, and the loader waits until then."""
    send, turns = cuda._send, iter([True, False, True, True])
    taken: list[int] = []

    def full(pinned: Tensor, device: torch.device) -> Tensor:
        if not next(turns):
            raise torch.OutOfMemoryError
        return send(pinned, device)

    def batches() -> Iterator[Any]:
        for n in range(4):
            taken.append(n)
            yield [torch.full((2,), float(n))]

    monkeypatch.setattr(cuda, "_send", full)
    monkeypatch.setattr(cuda, "moved", lambda batch, device: ("moved", batch, device, list(taken)))
    found = list(fusepass.prefetch(batches(), "cuda", depth=3))
    what, batch, device, so_far = found[1]
    assert (what, float(batch[0][0]), device, so_far) == ("moved", 1.0, fakes.DEVICE, [0, 1])
    assert len(found) == 4


def test_no_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Tensor:
        raise RuntimeError("CUDA error: out of memory\nCompile with something")

    tensor = torch.ones(3)
    monkeypatch.setattr(torch, "empty_like", full)
    with pytest.warns(errors.PinnedMemoryFull, match="12 bytes: CUDA error: out of memory. It is"):
        assert cuda._pin(tensor) is tensor


class Own(Tensor):
    """A subclass."""


KINDS = {
    "plain": (torch.ones(2, 3), True),
    "strided": (torch.ones(4, 6)[::2, 1:], True),
    "expanded": (torch.ones(1, 3).expand(4, 3), True),
    "bool": (torch.ones(3, dtype=torch.bool), True),
    "complex": (torch.ones(3, dtype=torch.complex64), True),
    "bfloat16": (torch.ones(3, dtype=torch.bfloat16), True),
    "float8": (torch.ones(3).to(torch.float8_e4m3fn), True),
    "scalar": (torch.tensor(3), True),
    "empty": (torch.ones(0, 3), False),
    "leaf": (torch.ones(3, requires_grad=True), False),
    "parameter": (torch.nn.Parameter(torch.ones(3)), False),
    "result": (torch.ones(3, requires_grad=True) * 2, False),
    "subclass": (torch.ones(3).as_subclass(Own), False),
    "sparse": (torch.eye(3).to_sparse(), False),
    "csr": (torch.eye(3).to_sparse_csr(), False),
    "conjugated": (torch.ones(3, dtype=torch.complex64).conj(), False),
    "negated": (torch.ones(3, dtype=torch.complex64).conj().imag, False),
    "meta": (torch.ones(3, device="meta"), False),
}


@pytest.mark.parametrize("name", KINDS)
def test_which_tensors_are_read_ahead(name: str) -> None:
    tensor, ahead = KINDS[name]
    assert cuda._ahead(tensor) == ahead


@pytest.mark.parametrize("name", [name for name, (_, ahead) in KINDS.items() if ahead])
def test_staging_has_the_strides_of_a_move(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor, _ = KINDS[name]
    plain = functools.partial(torch.empty_like, device="cpu")
    monkeypatch.setattr(torch, "empty_like", lambda t, device, pin_memory: plain(t))
    pinned = cuda._pin(tensor)
    assert pinned.stride() == tensor.to("meta").stride()
    assert pinned.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize
    assert pinned.data_ptr() != tensor.data_ptr()
    assert torch.equal(pinned.to(torch.complex64), tensor.to(torch.complex64))


# --- on a real device -----------------------------------------------------------------------------


class RealCuda:
    """A CUDA device, as a run uses it; see ``runs.Backend``."""

    kind = "cuda"
    largest = 200_000  # elements

    def __init__(self) -> None:
        self.dice = random.Random(0)

    def streams(self) -> Any:
        return torch.cuda.stream(self.dice.choice([None, torch.cuda.Stream()]))

    def read(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        assert tensor.is_cuda
        if self.dice.random() < 0.5:
            torch.cuda._sleep(self.dice.randint(1, 2_000_000))  # the host runs ahead, to 1 ms
        found = torch.aminmax(tensor)
        tensor.fill_(-77)
        return found

    def results(self, handles: list[Any]) -> list[list[float]]:
        return [[float(one) for one in pair] for pair in handles]

    def pinned_by_loader(self, count: int) -> Tensor:
        return torch.empty(count, pin_memory=True)


def memory() -> tuple[int, int]:
    """Bytes of pinned memory and of device memory that something still holds.

    What nothing holds goes back to the system first: torch 2.11 counts a pinned block as in use for
    ever once it waited for an event.
    """
    torch.cuda.synchronize()
    torch._C._host_emptyCache()
    return torch.cuda.host_memory_stats()["allocated_bytes.current"], torch.cuda.memory_allocated()


@pytest.mark.gpu
@pytest.mark.parametrize("part", range(4))
def test_random_runs_with_faults_on_cuda(part: int) -> None:
    backend, ends = RealCuda(), Counter[str]()
    for seed in range(20):  # what is made once: streams, memory of the libraries
        run(-1 - seed, backend)
    gc.collect()
    before = memory()
    for number in range(250):
        seed = (SEED * 4 + part) * 1000 + number
        try:
            ends[run(seed, backend)] += 1
        except BaseException as error:
            error.add_note(f"run({seed}, …) in tests/prefetching/runs.py")
            raise
    deadline = time.monotonic() + 5
    while memory() != before and time.monotonic() < deadline:  # what an ended thread still holds
        gc.collect()
        time.sleep(0.05)
    assert memory() == before
    assert threads() == []
    assert set(ends) == set(ENDS)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in KINDS if name != "meta"])  # has no data to move
def test_a_batch_is_what_a_move_makes_of_it(name: str) -> None:
    tensor, ahead = KINDS[name]
    expected = tensor.to("cuda")
    ((got, again),) = fusepass.prefetch([(tensor, tensor)], "cuda")
    assert got is again
    assert type(got) is type(expected)
    same = ("dtype", "device", "layout", "shape", "requires_grad", "is_leaf")
    for attribute in same:
        assert getattr(got, attribute) == getattr(expected, attribute), attribute
    assert got.is_conj() == expected.is_conj()
    assert got.is_neg() == expected.is_neg()
    if ahead:
        assert got.stride() == expected.stride()
    here, there = (one.detach().cpu().to_dense().cfloat() for one in (got, expected))
    assert torch.equal(here, there)


@pytest.mark.gpu
def test_the_loop_never_waits_for_the_host() -> None:
    pool = [torch.full((1000, 100), float(n)) for n in range(20)]
    sums = []
    torch.cuda.set_sync_debug_mode("error")  # of this thread's calls and of all others
    try:
        with pytest.raises(RuntimeError, match="synchroniz"):
            pool[0].to("cuda")
        for batch in fusepass.prefetch(pool, "cuda"):
            sums.append(batch.sum())  # noqa: PERF401 - a loop is what is tested
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [float(one) for one in sums] == [n * 1e5 for n in range(20)]


@pytest.mark.gpu
@pytest.mark.parametrize("depth", [1, 3])
def test_memory_is_bounded_when_the_loop_runs_ahead_of_the_device(depth: int) -> None:
    size = 4 << 20

    def batches() -> Iterator[Tensor]:
        for n in range(40):
            yield torch.full((size // 4,), float(n))

    for _ in range(2):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        start = torch.cuda.memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        sums = []
        for batch in fusepass.prefetch(batches(), "cuda", depth):
            torch.cuda._sleep(4_000_000)
            sums.append(batch.sum())
        reserved = torch.cuda.max_memory_reserved() - start
        assert [float(one) for one in sums] == [n * size / 4 for n in range(40)]
    # One in use, `depth` ahead, and one that is being freed; segments of at least 20 MiB.
    assert reserved <= (depth + 2) * size + (24 << 20)


@pytest.mark.gpu
def test_the_same_memory_serves_all_epochs() -> None:
    pool = [torch.ones(1 << 20) for _ in range(8)]
    reserved = []
    for _ in range(40):  # there are 32 streams in torch's pool, and memory is cached for each
        for batch in fusepass.prefetch(pool, "cuda"):
            batch.sum()
        torch.cuda.synchronize()
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[-1] <= reserved[5] + (8 << 20)


@pytest.mark.gpu
def test_pinned_by_a_data_loader() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(1000.0).view(100, 10), torch.arange(100))
    loader = torch.utils.data.DataLoader(data, 7, num_workers=2, pin_memory=True)
    plain = [(x.cuda(), y.cuda()) for x, y in loader]
    for _ in range(2):
        for (x, y), (want_x, want_y) in zip(fusepass.prefetch(loader, "cuda"), plain, strict=True):
            assert torch.equal(x, want_x)
            assert torch.equal(y, want_y)


@pytest.mark.gpu
def test_other_devices_in_a_batch_and_devices_that_are_not_there() -> None:
    made = torch.ones(3, device="cuda")
    ((got, here),) = fusepass.prefetch([(made, torch.ones(2))], "cuda")
    assert got is made
    assert here.device == made.device
    with pytest.raises(errors.PrefetchDevice, match="numbered from 0"):
        iter(fusepass.prefetch([1], "cuda:77"))
    (back,) = fusepass.prefetch([made], "cpu")
    assert back.device.type == "cpu"


@pytest.mark.gpu
def test_the_loader_has_the_stream_and_the_device_of_the_loop() -> None:
    def batches() -> Iterator[Any]:
        yield torch.cuda.current_stream(), torch.cuda.current_device()

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        ((seen, index),) = fusepass.prefetch(batches(), "cuda")
    assert seen == stream
    assert index == torch.cuda.current_device()


@pytest.mark.gpu
def test_no_room_on_a_real_device() -> None:
    _, total = torch.cuda.mem_get_info()
    pool = [torch.full((1 << 22,), float(n)) for n in range(6)]  # 16 MiB each
    torch.cuda.empty_cache()
    try:
        # Enough for one batch in use and two ahead, not for four, and for the sums.
        torch.cuda.set_per_process_memory_fraction(
            (torch.cuda.memory_reserved() + 3 * (16 << 20) + (8 << 20)) / total
        )
        sums = []
        for batch in fusepass.prefetch(pool, "cuda", depth=4):
            sums.append(float(batch.sum()))
            del batch
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert sums == [n * float(1 << 22) for n in range(6)]


@pytest.mark.gpu
def test_a_loader_that_works_on_the_device_and_a_loop_on_another_stream() -> None:
    def batches() -> Iterator[Tensor]:
        for n in range(30):
            torch.cuda._sleep(500_000)
            yield torch.full((1000,), float(n), device="cuda")

    found = iter(fusepass.prefetch(batches(), "cuda"))
    sums = []
    for n in range(30):
        with torch.cuda.stream(torch.cuda.Stream() if n % 3 else torch.cuda.default_stream()):
            sums.append(next(found).sum())
    torch.cuda.synchronize()
    assert [float(one) for one in sums] == [n * 1000 for n in range(30)]


@pytest.mark.gpu
def test_compiled_with_cuda_graphs() -> None:
    """A replay reads from its own memory; a batch at another address each time is copied there."""
    layer = torch.nn.Linear(16, 16).cuda()
    step = torch.compile(lambda x: layer(x).relu(), backend="fusepass", mode="reduce-overhead")
    pool = [torch.randn(8, 16) for _ in range(12)]
    with torch.no_grad():
        for x, want in zip(fusepass.prefetch(pool, "cuda"), pool, strict=True):
            torch.testing.assert_close(step(x).clone(), layer(want.cuda()).relu())


@pytest.mark.gpu
def test_break_is_quick_and_frees_its_memory() -> None:
    before = memory()
    for _ in fusepass.prefetch([torch.ones(1 << 20)] * 9, "cuda", depth=3):
        break
    del _
    start = time.monotonic()
    assert memory() == before
    assert threads() == []
    assert time.monotonic() - start < 1
