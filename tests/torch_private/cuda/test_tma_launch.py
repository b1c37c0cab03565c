"""What a kernel is given whose descriptors the host makes, by a driver that only looks."""

from __future__ import annotations

import ctypes
import gc
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="needs Triton, which this torch came without")

from fusepass.torch_private.cuda import nvrtc
from fusepass.torch_private.cuda.tma_launch import Map, MappedKernel, tensor_map
from tests.torch_private.inductor.test_kernel_launcher import compiled

MAP = ctypes.c_char * 128
INT, LONG, POINTER = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
PARAMETERS = "x_ptr w0_ptr p0 p1 s1 o0 o1 M N K sx sw".split()
SIZES = {"s1": 144, "M": 300, "N": 136, "K": 72, "sx": 80, "sw": 96}
ADDRESSES = {
    name: (i + 1) << 20 for i, name in enumerate(("x_ptr", "w0_ptr", "p0", "p1", "o0", "o1"))
}
GIVEN = {name: (ADDRESSES | SIZES)[name] for name in PARAMETERS}
BFLOAT16, FLOAT32, TF32, SWIZZLE_128, PROMOTED_128 = (
    9,
    7,
    11,
    3,
    2,
)  # as the driver's header numbers them


@dataclass
class Driver:
    """In the place of CUDA's: numbers the maps that it makes, and keeps what it launches.

    Attributes:
        maps: what each was made of.
        launches: of each the arguments, and the addresses of its parameters.
    """

    maps: list[dict[str, Any]] = field(default_factory=list)
    launches: list[tuple[tuple[Any, ...], list[int]]] = field(default_factory=list)

    def call(self, name: str, *given: Any) -> None:
        assert name == "cuTensorMapEncodeTiled"
        room, dtype, rank, address, sizes, strides, box, steps, *kinds = given
        assert ctypes.addressof(room) % 64 == 0
        assert (len(sizes), len(strides), len(box), list(steps)) == (rank, rank - 1, rank, [1, 1])
        for integers, wide in ((sizes, 8), (strides, 8), (box, 4), (steps, 4)):
            assert ctypes.sizeof(integers) == wide * len(integers)
        made = {"dtype": dtype, "address": address.value, "sizes": list(sizes)}
        made |= {"strides": list(strides), "box": list(box), "kinds": kinds}
        self.maps.append(made)
        ctypes.memmove(room, self.number(len(self.maps)), 128)

    def number(self, which: int) -> bytes:
        """The contents of a map, counted from one."""
        return which.to_bytes(8, "little") * 16

    def launch(self, *given: Any) -> None:
        function, *rest, pointers = given
        self.launches.append(((function.value, *rest), list(pointers)))


LAUNCH = nvrtc.launch_with


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(nvrtc, "driver_call", made.call)
    monkeypatch.setattr(nvrtc, "launch_with", made.launch)
    return made


@pytest.fixture(scope="module")
def sent() -> Iterator[bytes]:
    """A kernel, as a compiling process sends it."""
    with pytest.MonkeyPatch.context() as patch:
        yield pickle.dumps(compiled("pingpong", patch, hosted=True))


@pytest.fixture
def kernel(sent: bytes) -> Iterator[MappedKernel]:
    made = pickle.loads(sent).kernel
    assert type(made) is MappedKernel
    made.function = 7  # as if it were loaded
    yield made
    made.function = None


def read(pointers: Sequence[int], kinds: Sequence[Any]) -> list[Any]:
    """What a launch's parameters are, maps as their bytes."""
    found = [kind.from_address(at) for kind, at in zip(kinds, pointers, strict=True)]
    return [one.raw if isinstance(one, MAP) else one.value for one in found]


def described(driver: Driver, which: int, rows: int, columns: int, stride: int) -> list[Any]:
    return [driver.number(which), rows, columns, stride, 1]


ONE_MAP = [MAP, INT, INT, LONG, LONG]
KINDS = [*ONE_MAP, *ONE_MAP, POINTER, *ONE_MAP, INT, *ONE_MAP, *ONE_MAP, *[INT] * 5]
SCRATCH = [POINTER, POINTER]  # the device's and a profiler's: null


def test_parameters_of_a_launch(kernel: MappedKernel, driver: Driver) -> None:
    """Behind each map stand sizes and strides, as Triton's launcher has them; last what is null."""
    assert kernel.arg_names[: len(PARAMETERS)] == PARAMETERS
    assert kernel.arg_tys == "MMOMiMMiiiii"
    kernel.run(5, 1, 1, 3, *GIVEN.values())
    ((given, pointers),) = driver.launches
    assert given == (7, (5, 1, 1), 32 * kernel.num_warps, kernel.shared, 3)
    assert read(pointers, KINDS + SCRATCH) == [
        *described(driver, 1, 300, 72, 80),
        *described(driver, 2, 136, 72, 96),
        ADDRESSES["p0"],
        *described(driver, 3, 300, 136, 144),
        144,
        *described(driver, 4, 300, 136, 136),
        *described(driver, 5, 300, 136, 136),
        *(300, 136, 72, 80, 96),
        *(None, None),
    ]


def test_handles_of_64_bits(
    kernel: MappedKernel, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ctypes passes 32 bits of a plain number, and launching what these name ended the process.

    Kernels that another thread has loaded lie far up in memory.
    """
    seen: list[tuple[Any, ...]] = []
    kinds = [POINTER, *[ctypes.c_uint] * 7, *[POINTER] * 3]

    def noted(*given: Any) -> int:
        seen.append(given)
        return 0

    callback = ctypes.CFUNCTYPE(INT, *kinds)(noted)
    address = ctypes.cast(callback, POINTER).value
    untyped = ctypes.CDLL(None)._FuncPtr(address)  # as the driver's functions are
    monkeypatch.setattr(nvrtc, "_driver", lambda: SimpleNamespace(cuLaunchKernel=untyped))
    kernel.function, stream = 0x7FDF_0400_0123, 0x7FDF_0500_0456
    monkeypatch.setattr(nvrtc, "launch_with", LAUNCH)
    kernel.run(5, 2, 1, stream, *GIVEN.values())
    ((function, *sizes, given_stream, pointers, extra),) = seen
    assert (function, given_stream, extra) == (kernel.function, stream, None)
    assert sizes == [5, 2, 1, 32 * kernel.num_warps, 1, 1, kernel.shared]
    assert pointers


def test_a_thread_without_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver refuses the first call there; then the thread is given torch's context."""
    answers, given = [201, 0], []
    driver = SimpleNamespace(encode=lambda *args: answers.pop(0))
    monkeypatch.setattr(nvrtc, "_driver", lambda: driver)
    monkeypatch.setattr(nvrtc, "_ensure_context", lambda *args: given.append(args))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    nvrtc.driver_call("encode", 1, 2)
    assert given == [(driver, 3)]
    assert not answers


def test_what_maps_are_made_of(kernel: MappedKernel, driver: Driver) -> None:
    """The innermost dimension first; distances in bytes, of all but that one."""
    kernel.run(5, 1, 1, 3, *GIVEN.values())
    common = {"dtype": BFLOAT16, "box": [64, 128], "kinds": [0, SWIZZLE_128, PROMOTED_128, 0]}
    lies = {
        "x_ptr": ([72, 300], [160]),
        "w0_ptr": ([72, 136], [192]),
        "p1": ([136, 300], [288]),
        "o0": ([136, 300], [272]),
        "o1": ([136, 300], [272]),
    }
    assert driver.maps == [
        {**common, "address": ADDRESSES[name], "sizes": sizes, "strides": strides}
        for name, (sizes, strides) in lies.items()
    ]


def test_a_weight_as_k_n(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> None:
    """A tile wider than 128 bytes is copied in pieces."""
    made = compiled("pingpong", monkeypatch, hosted=True, transposed=False).kernel
    made.run(5, 1, 1, 3, *(GIVEN | {"sw": 136}).values())
    weight = driver.maps[1]
    assert (weight["sizes"], weight["strides"], weight["box"]) == ([136, 72], [272], [64, 64])
    _, pointers = driver.launches[0]
    assert read(pointers, KINDS + SCRATCH)[5:10] == described(driver, 2, 72, 136, 136)


def test_one_row_that_is_a_constant(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> None:
    """Inductor makes it one; launches are not given it, and maps still need it."""
    made = compiled("pingpong", monkeypatch, hosted=True, one_row=True).kernel
    assert "M" not in made.declared_constexprs
    made.run(1, 1, 1, 3, *[value for name, value in GIVEN.items() if name != "M"])
    assert [one["sizes"] for one in driver.maps] == [[72, 1], [72, 136], *[[136, 1]] * 3]
    ((_, pointers),) = driver.launches
    assert len(pointers) == len(KINDS) - 1 + len(SCRATCH)
    values = read(pointers, KINDS[:-1] + SCRATCH)
    assert values[:5] == described(driver, 1, 1, 72, 80)
    assert values[-6:] == [136, 72, 80, 96, None, None]


def test_what_is_multiplied_is_rounded_to_tf32(
    monkeypatch: pytest.MonkeyPatch, driver: Driver
) -> None:
    """Single-precision operands are rounded; an epilogue's operands and results are not."""
    made = compiled("pingpong", monkeypatch, hosted=True, itemsize=4).kernel
    made.run(5, 1, 1, 3, *GIVEN.values())
    assert [one["dtype"] for one in driver.maps] == [TF32, TF32, *[FLOAT32] * 3]
    assert [one["strides"] for one in driver.maps][:2] == [[4 * 80], [4 * 96]]


def test_tensors_are_given_by_their_addresses(kernel: MappedKernel, driver: Driver) -> None:
    held = {name: torch.empty(8, dtype=torch.bfloat16) for name in ADDRESSES}
    kernel.run(5, 1, 1, 3, *(GIVEN | held).values())
    addresses = {name: one.data_ptr() for name, one in held.items()}
    assert [one["address"] for one in driver.maps] == [
        address for name, address in addresses.items() if name != "p0"
    ]
    kernel.run(5, 1, 1, 3, *(GIVEN | addresses).values())
    assert len(driver.maps) == 5
    assert not any(isinstance(one, Tensor) for given in kernel.held for one in given)


def test_equal_arguments_make_maps_once(kernel: MappedKernel, driver: Driver) -> None:
    for stream, grid in ((3, 5), (4, 5), (3, 6)):
        kernel.run(grid, 1, 1, stream, *GIVEN.values())
    assert len(driver.maps) == 5
    assert len({tuple(pointers) for _, pointers in driver.launches}) == 1
    assert [(given[1][0], given[4]) for given, _ in driver.launches] == [(5, 3), (5, 4), (6, 3)]


@pytest.mark.parametrize("name", PARAMETERS)
def test_another_argument_makes_others(name: str, kernel: MappedKernel, driver: Driver) -> None:
    other = GIVEN | {name: GIVEN[name] + 8}
    for given in (GIVEN, other, GIVEN, other):
        kernel.run(5, 1, 1, 3, *given.values())
    assert len(driver.maps) == 10
    first, second, *again = [pointers for _, pointers in driver.launches]
    assert again == [first, second]
    assert not {*first} & {*second}
    before, after = driver.maps[:5], driver.maps[5:]
    assert (before == after) == (name == "p0")
    kinds = KINDS + SCRATCH
    assert read(first, kinds)[-7:-2] == [GIVEN[one] for one in "M N K sx sw".split()]
    assert read(second, kinds)[-7:-2] == [other[one] for one in "M N K sx sw".split()]


def test_memory_stays_bounded(kernel: MappedKernel, driver: Driver) -> None:
    """A server that calls with ever new addresses or sizes must not grow."""
    most = 0
    for rows in range(1, 301):
        kernel.run(5, 1, 1, 3, *(GIVEN | {"M": rows}).values())
        most = max(most, len(kernel.held))
        assert GIVEN["K"] == read(driver.launches[-1][1], KINDS + SCRATCH)[-5]
    assert most == 64
    assert len(driver.maps) == 5 * 300
    kernel.run(5, 1, 1, 3, *(GIVEN | {"M": 300}).values())
    assert len(driver.maps) == 5 * 300
    kernel.run(5, 1, 1, 3, *(GIVEN | {"M": 1}).values())  # forgotten, and made anew
    assert len(driver.maps) == 5 * 301


def test_maps_stay_while_they_are_held(kernel: MappedKernel, driver: Driver) -> None:
    for rows in range(1, 41):
        kernel.run(5, 1, 1, 3, *(GIVEN | {"M": rows}).values())
    gc.collect()
    scribbled = [ctypes.create_string_buffer(b"\xff" * 192, 192) for _ in range(1000)]
    for i, (_, pointers) in enumerate(driver.launches):
        values = read(pointers, KINDS + SCRATCH)
        assert values[:5] == described(driver, 5 * i + 1, i + 1, 72, 80)
        assert values[-7:] == [i + 1, 136, 72, 80, 96, None, None]
        assert all(pointers[at] % 64 == 0 for at, kind in enumerate(KINDS) if kind is MAP)
    assert len(scribbled) == 1000


@pytest.mark.parametrize("grid", [(0, 1, 1), (5, 0, 1), (5, 1, 0)])
def test_an_empty_grid(grid: tuple[int, int, int], kernel: MappedKernel, driver: Driver) -> None:
    """There may be no row, of which no map can be made."""
    kernel.run(*grid, 3, *(GIVEN | {"M": 0}).values())
    assert not driver.maps
    assert not driver.launches
    assert not kernel.held


def test_a_refusal_is_not_kept(
    kernel: MappedKernel, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*given: Any) -> None:
        raise RuntimeError("CUDA driver error: invalid argument")

    with monkeypatch.context() as patch:
        patch.setattr(nvrtc, "driver_call", refuses)
        with pytest.raises(RuntimeError, match="invalid argument"):
            kernel.run(5, 1, 1, 3, *GIVEN.values())
    assert not driver.launches
    kernel.run(5, 1, 1, 3, *GIVEN.values())
    assert (len(driver.maps), len(driver.launches)) == (5, 1)


def test_what_is_held_is_not_sent(kernel: MappedKernel, driver: Driver) -> None:
    kernel.run(5, 1, 1, 3, *GIVEN.values())
    sent = pickle.loads(pickle.dumps(kernel))
    assert sent.held == {}
    assert sent.maps == kernel.maps
    assert len(kernel.held) == 1
    sent.run(5, 1, 1, 3, *GIVEN.values())
    assert len(driver.maps) == 10
    assert driver.maps[:5] == driver.maps[5:]


@pytest.mark.parametrize(("dtype", "number", "itemsize"), [("fp16", 6, 2), ("fp32", 7, 4)])
def test_other_dtypes(dtype: str, number: int, itemsize: int, driver: Driver) -> None:
    of = Map(0, 1, 2, dtype, (128, 128 // itemsize), SWIZZLE_128)
    made = tensor_map(of, 1 << 40, 5, 1 << 20, 1 << 30)  # more bytes apart than 32 bits count
    assert made.raw == driver.number(1)
    assert driver.maps == [
        {
            "dtype": number,
            "address": 1 << 40,
            "sizes": [1 << 20, 5],
            "strides": [itemsize << 30],
            "box": [128 // itemsize, 128],
            "kinds": [0, SWIZZLE_128, PROMOTED_128, 0],
        }
    ]
    tensor_map(replace(of, swizzle=1), 1 << 40, 5, 1 << 20, 1 << 30)
    assert driver.maps[1]["kinds"] == [0, 1, PROMOTED_128, 0]
