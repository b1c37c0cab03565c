"""``fusepass.prefetch``: its arguments, devices without copies, and loaders of every kind."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import fusepass
from fusepass import errors
from fusepass.prefetching.api import Prefetch

from . import fake_cuda as fakes
from .fake_cuda import FakeCuda, fake_cuda
from .runs import threads

__all__ = ["fake_cuda"]
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


class OldSequence:
    """Iterable by its ``__getitem__`` alone."""

    def __getitem__(self, index: int) -> Tensor:
        if index == 3:
            raise IndexError(index)
        return torch.full((2,), float(index))


@pytest.mark.parametrize("loader", [3, None, object(), torch.nn.ReLU, 2.5, torch.tensor(3.0)])
def test_not_a_loader(loader: Any) -> None:
    with pytest.raises(errors.NotIterable, match=type(loader).__name__):
        fusepass.prefetch(loader, "cpu")


@pytest.mark.parametrize("depth", [0, -1, 1.0, "2", None, True, [2]])
def test_not_a_depth(depth: Any) -> None:
    with pytest.raises(errors.PrefetchDepth, match="at least 1"):
        fusepass.prefetch([], "cpu", depth)


@pytest.mark.parametrize("depth", [1, 5, np.int64(3)])
def test_a_depth(depth: Any) -> None:
    assert fusepass.prefetch([], "cpu", depth).depth == int(depth)


@pytest.mark.parametrize("device", ["gpu", "cuda:x", None, 1.5, -1, [], DataLoader([1])])
def test_not_a_device(device: Any) -> None:
    with pytest.raises(errors.PrefetchDevice) as caught:
        fusepass.prefetch([], device)
    assert len(str(caught.value)) < 600  # torch lists everything it could have been


def test_loader_and_device_the_wrong_way_round() -> None:
    with pytest.raises(errors.PrefetchDevice, match="a list is no device"):
        fusepass.prefetch("cpu", [torch.ones(2)])  # type: ignore[arg-type]


@needs_no_gpu
@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda")])
def test_a_device_that_is_not_there_is_found_at_iteration(device: Any) -> None:
    batches = fusepass.prefetch([1], device)
    with pytest.raises(errors.PrefetchDevice, match="sees no CUDA device"):
        iter(batches)
    assert threads() == []


@pytest.mark.parametrize(
    "loader",
    [
        [torch.ones(2), {"x": [torch.ones(3)]}],
        (torch.ones(2),),
        OldSequence(),
        DataLoader(TensorDataset(torch.arange(6.0)), 2),
    ],
    ids=lambda loader: type(loader).__name__,
)
def test_on_the_cpu_it_is_the_plain_loop(loader: Any) -> None:
    plain = list(loader)
    batches = fusepass.prefetch(loader, torch.device("cpu"))
    for _ in range(2):
        found = []
        for batch in batches:
            assert threads() == []
            found += [batch]
        assert len(found) == len(plain)
        if isinstance(loader, (list, tuple)):
            assert all(one is other for one, other in zip(found, plain, strict=True))


def test_on_the_cpu_one_item_at_a_time_in_the_threads_of_the_loop() -> None:
    seen: list[Any] = []

    def items() -> Iterator[int]:
        try:
            for n in range(5):
                seen.append((n, threading.get_ident()))
                yield n
        finally:
            seen.append("closed")

    for n in fusepass.prefetch(items(), "cpu"):
        assert seen == [(k, threading.get_ident()) for k in range(n + 1)]
        if n == 2:
            break
    assert seen[-1] == "closed"


def test_another_device_is_the_plain_loop_too() -> None:
    (batch,) = fusepass.prefetch([{"x": torch.ones(3), "n": 1}], "meta")
    assert (batch["x"].device.type, batch["n"]) == ("meta", 1)
    assert threads() == []


def test_length_and_truth_are_the_loaders() -> None:
    loader = DataLoader(TensorDataset(torch.arange(7.0)), 2)
    assert len(fusepass.prefetch(loader, "cpu")) == 4
    assert fusepass.prefetch(loader, "cpu")
    assert not fusepass.prefetch([], "cpu")
    generator = (n for n in range(3))
    with pytest.raises(TypeError, match=r"generator.* has no len"):
        len(fusepass.prefetch(generator, "cpu"))
    assert fusepass.prefetch(generator, "cpu")
    assert list(fusepass.prefetch(generator, "cpu")) == [0, 1, 2]  # list() asks for a length, too


def test_what_it_shows_of_itself() -> None:
    batches = fusepass.prefetch([], "cuda", depth=3)
    assert isinstance(batches, Prefetch)
    assert repr(batches) == "fusepass.prefetch([], 'cuda', depth=3)"
    assert (batches.loader, batches.device, batches.depth) == ([], torch.device("cuda"), 3)


# --- with a device to copy to ---------------------------------------------------------------------


def numbers(batches: Any) -> list[float]:
    """What is in the batches; each is used at once."""
    found = []
    for batch in batches:
        here = fakes.CURRENT.stream
        here.run(len(here.operations))
        found.append(float(batch.as_subclass(Tensor)[0]))
    return found


POOL = [torch.full((2,), float(n)) for n in range(6)]


def test_iterable_as_often_as_the_loader(fake_cuda: FakeCuda) -> None:
    batches = fusepass.prefetch(POOL, "cuda")
    assert [numbers(batches) for _ in range(3)] == [[0, 1, 2, 3, 4, 5]] * 3
    once = fusepass.prefetch(iter(POOL), "cuda")
    assert [numbers(once) for _ in range(2)] == [[0, 1, 2, 3, 4, 5], []]


def test_an_iterator_goes_on_where_a_loop_was_left(fake_cuda: FakeCuda) -> None:
    batches = fusepass.prefetch(iter(POOL), "cuda")
    for batch in batches:
        first = batch
        break
    assert numbers(batches) == [1, 2, 3, 4, 5]  # those that were read ahead are not lost
    assert numbers([first]) == [0]
    del batches
    assert threads() == []


def test_an_iterator_that_starts_again(fake_cuda: FakeCuda) -> None:
    class Restarting:
        """As some readers do: exhausted, and then from the beginning."""

        def __init__(self) -> None:
            self.at = 0

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> Tensor:
            if self.at == len(POOL):
                self.at = 0
                raise StopIteration
            self.at += 1
            return POOL[self.at - 1]

    batches = fusepass.prefetch(Restarting(), "cuda")
    assert [numbers(batches) for _ in range(2)] == [[0, 1, 2, 3, 4, 5]] * 2


def test_an_iterator_without_iter(fake_cuda: FakeCuda) -> None:
    class Bare:
        def __next__(self) -> Tensor:
            return next(items)

    class Loader:
        def __iter__(self) -> Any:
            return Bare()

    items = iter(POOL)
    assert numbers(fusepass.prefetch(Loader(), "cuda")) == [0, 1, 2, 3, 4, 5]
    items = iter(POOL)
    assert [float(one[0]) for one in fusepass.prefetch(Loader(), "cpu")] == [0, 1, 2, 3, 4, 5]


def test_iter_of_the_loader_fails_where_the_loop_starts(fake_cuda: FakeCuda) -> None:
    class Loader:
        def __iter__(self) -> Any:
            raise OSError("no data")

    with pytest.raises(OSError, match="no data"):
        iter(fusepass.prefetch(Loader(), "cuda"))
    assert threads() == []


@pytest.mark.parametrize("inference", [False, True])
def test_the_loader_sees_the_modes_of_the_loop(fake_cuda: FakeCuda, inference: bool) -> None:
    def batches() -> Iterator[list[Any]]:
        yield [
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.get_default_device(),
            fakes.CURRENT.stream,
        ]

    stream = fakes.Stream()
    mode = torch.inference_mode() if inference else torch.no_grad()
    with mode, torch.autocast("cpu", torch.float16), torch.device("meta"), fakes.stream(stream):
        (seen,) = fusepass.prefetch(batches(), "cuda")
    assert seen == [False, inference, True, torch.float16, torch.device("meta"), stream]
    (plain,) = fusepass.prefetch(batches(), "cuda")
    assert plain[:3] == [True, False, False]
    assert plain[4:] == [torch.device("cpu"), fakes.HOME]


class Squares(Dataset):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Tensor:
        if index == 7:
            raise ValueError("sample 7")
        return torch.tensor([float(index) ** 2])


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(POOL)


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader(fake_cuda: FakeCuda, workers: int) -> None:
    loader = DataLoader(Squares(), 2, num_workers=workers, persistent_workers=workers > 0)
    batches = fusepass.prefetch(loader, "cuda")
    assert len(batches) == 5
    for _ in range(2):
        found: list[Tensor] = []
        with pytest.raises(ValueError, match="sample 7"):
            for batch in batches:
                found += [batch]
        assert numbers(found) == [0, 4, 16]
        for batch in batches:
            assert numbers([batch]) == [0]
            break
    stream = DataLoader(Stream(), None, num_workers=min(workers, 1))
    assert numbers(fusepass.prefetch(stream, "cuda")) == [0, 1, 2, 3, 4, 5]


def test_the_same_draws_as_in_the_plain_loop(fake_cuda: FakeCuda) -> None:
    """The loader's own draws; those of the loop's body may now come in between."""
    loader = DataLoader(TensorDataset(torch.arange(20.0)), 4, shuffle=True)
    torch.manual_seed(3)
    plain = [[float(x) for x in batch] for (batch,) in loader]
    torch.manual_seed(3)
    ahead = []
    for (batch,) in fusepass.prefetch(loader, "cuda"):
        numbers([batch])
        ahead.append([float(x) for x in batch.as_subclass(Tensor)])
    assert ahead == plain


def test_a_container_that_cannot_be_made_anew(fake_cuda: FakeCuda) -> None:
    class Two(tuple):
        __slots__ = ()

        def __new__(cls, one: Any, other: Any) -> Two:
            return super().__new__(cls, (one, other))

    found = []
    with pytest.raises(errors.UnmovableBatch, match=r"Two.*register_pytree_node"):
        for batch in fusepass.prefetch([POOL[1], Two(POOL[2], 1), POOL[3]], "cuda"):
            found += [batch]
    assert numbers(found) == [1]


def test_importing_the_package_does_not_import_it() -> None:
    assert "prefetch" in fusepass.__all__
    code = "import fusepass, sys; assert not {'torch', 'fusepass.prefetching'} & {*sys.modules}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
