"""The depthwise kernel: its operator against torch, its text compiled, its launches on a device."""

from __future__ import annotations

import contextlib
import random
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from fusepass.fusion.kernel_ir.epilogue import Epilogue, EpilogueOperand, EpilogueStep, Output
from fusepass.kernels.conv import depthwise as kernel
from fusepass.kernels.conv import depthwise_launch, depthwise_source
from fusepass.kernels.conv.depthwise_source import DepthwisePatch, DepthwiseShape
from fusepass.numerics import error_bound, half_ulp, passes, rms, rms_error
from tests.kernels import on_host as host
from tests.kernels.horizontal_programs import every_operation
from tests.kernels.nvrtc import ARCHITECTURES, compile_error, needs_nvrtc

DTYPES = ["float16", "bfloat16", "float32"]


def everything(dtype: str) -> Epilogue:
    """Operands of every kind, and two results."""
    operands = [EpilogueOperand(kind, dtype) for kind in ("row", "column", "full", "scalar")]
    operands.append(EpilogueOperand("full", "bool"))
    steps = (
        EpilogueStep("mul", ("%0", "%1")),
        EpilogueStep("add", ("%6", "%2")),
        EpilogueStep("sigmoid", ("%7",)),
        EpilogueStep("where", ("%5", "%8", "%3")),
        EpilogueStep("mul", ("%9", "%4")),
        EpilogueStep("sub", ("%10", 0.25)),
    )
    return Epilogue(1, tuple(operands), steps, (Output("%11", dtype), Output("%7", "float32")))


def drawn(draw: random.Random) -> dict[str, Any]:
    """A convolution that makes at least one pixel."""
    while True:
        given: dict[str, Any] = {
            "channels": draw.choice([1, 2, 3, 6, 8, 12, 24, 40, 66, 134]),
            "batch": draw.choice([1, 2, 5]),
            "image": (draw.randint(1, 20), draw.randint(1, 20)),
            "kernel": (draw.randint(1, 7), draw.randint(1, 7)),
            "stride": (draw.randint(1, 3), draw.randint(1, 3)),
            "padding": (draw.randint(0, 4), draw.randint(0, 4)),
            "dilation": (draw.randint(1, 2), draw.randint(1, 3)),
        }
        if min(shape_of(given, "float32").result) > 0:
            return given


def shape_of(given: dict[str, Any], dtype: str) -> DepthwiseShape:
    image = given["batch"], given["channels"], *given["image"]
    weight = given["channels"], 1, *given["kernel"]
    steps = given["stride"], given["padding"], given["dilation"]
    return depthwise_source.shape_of(image, weight, dtype, *steps)


def tensors(given: dict[str, Any], dtype: str, device: str) -> tuple[Tensor, Tensor]:
    batch, channels = given["batch"], given["channels"]
    x = torch.randn(batch, *given["image"], channels).permute(0, 3, 1, 2)
    weight = torch.randn(channels, 1, *given["kernel"]) * 0.3
    return tuple(one.to(device, getattr(torch, dtype)) for one in (x, weight))  # type: ignore[return-value]


def operands_of(epilogue: Epilogue, pixels: int, channels: int, device: str) -> list[Tensor]:
    shapes = {
        "row": (channels,),
        "column": (pixels, 1),
        "full": (pixels, channels),
        "scalar": (),
    }
    made = [(torch.randn(shapes[one.kind]), one.dtype) for one in epilogue.operands]
    return [
        (data > 0 if kind == "bool" else data.to(getattr(torch, kind))).to(device)
        for data, kind in made
    ]


def agree(got: list[Tensor], want: list[Tensor]) -> None:
    for one, other in zip(got, want, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.is_contiguous()
        exact = other.double()
        bound = error_bound(half_ulp(one.dtype, rms(exact)), 0.0, None)
        assert passes(rms_error(one, exact), max(bound, 1e-5 * rms(exact)))


@pytest.mark.parametrize("seed", range(20))
def test_the_reference_is_the_convolution(seed: int) -> None:
    given = drawn(random.Random(seed))
    x, weight = tensors(given, "float32", "cpu")
    sizes = given["stride"], given["padding"], given["dilation"]
    (got,) = torch.ops.fusepass.depthwise(x, weight, [], kernel.ALONE.text(), *sizes, "cuda 1x4x1")
    want = F.conv2d(x, weight, None, *sizes, groups=given["channels"])
    torch.testing.assert_close(got, want.permute(0, 2, 3, 1).reshape(-1, given["channels"]))
    assert torch.equal(got, torch.ops.fusepass.depthwise_product(x, weight, *sizes))


def test_the_operator() -> None:
    given = drawn(random.Random(3))
    x, weight = tensors(given, "float16", "cpu")
    epilogue, sizes = everything("float16"), (given["stride"], given["padding"], given["dilation"])
    height, width = shape_of(given, "float16").result
    operands = operands_of(epilogue, given["batch"] * height * width, given["channels"], "cpu")
    args = x, weight, operands, epilogue.text(), *map(list, sizes), "cuda 2x4x1"
    torch.library.opcheck(kernel.OPERATOR, args, test_utils=("test_schema", "test_faketensor"))


def same_size(
    channels: int, image: tuple[int, int], *, kernel: int, dtype: str = "float16"
) -> DepthwiseShape:
    """A convolution with a square kernel, padded so that the result has the image's size."""
    return DepthwiseShape(
        channels,
        image=image,
        result=image,
        kernel=(kernel, kernel),
        stride=(1, 1),
        padding=(kernel // 2, kernel // 2),
        dilation=(1, 1),
        dtype=dtype,
    )


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 96, 130, 1152])
@pytest.mark.parametrize("width", [1, 5, 14, 56])
def test_patches_fit(channels: int, width: int) -> None:
    square = (width, width)
    shape = same_size(channels, square, kernel=3)
    found = kernel.choices(shape)
    assert found
    assert len(set(found)) == len(found)
    for patch in found:
        assert channels % patch.vector == 0
        assert patch.down <= width
        assert depthwise_launch.patch_named(patch.name) == patch


def test_huge_kernels_are_left_alone() -> None:
    shape = same_size(8, (64, 64), kernel=31)
    assert kernel.choices(shape) == ()


@needs_nvrtc
@pytest.mark.sampled(9)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernel_compiles_for_architecture(architecture: str, dtype: str) -> None:
    for seed in range(3):
        shape = shape_of(drawn(random.Random(seed)), dtype)
        for patch in kernel.choices(shape)[:2]:
            text = depthwise_source.depthwise_source(shape, everything(dtype), patch)
            assert compile_error(text, architecture) is None
    shape = same_size(96, (14, 14), kernel=7, dtype=dtype)
    for patch in kernel.choices(shape):
        text = depthwise_source.depthwise_source(shape, kernel.ALONE, patch)
        assert compile_error(text, architecture) is None


@needs_nvrtc
def test_every_operation_compiles() -> None:
    shape = same_size(8, (4, 4), kernel=3)
    for body in every_operation():
        kinds = [
            EpilogueOperand("row" if one.kind == "column" else one.kind, one.dtype)
            for one in body.operands
        ]
        moved = tuple(
            EpilogueStep(step.op, tuple(_moved(arg) for arg in step.args)) for step in body.steps
        )
        outputs = tuple(Output(str(_moved(out.value)), out.dtype) for out in body.outputs)
        text = depthwise_source.depthwise_source(
            shape, Epilogue(1, tuple(kinds), moved, outputs), DepthwisePatch(2, 4, 1)
        )
        assert compile_error(text, "sm_90") is None


def _moved(arg: Any) -> Any:
    """A value's place behind one product."""
    return f"%{int(arg[1:]) + 1}" if isinstance(arg, str) else arg


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, int, int, Any]]]:
    """Launches on a device that is not there: text, blocks, threads, parameter."""
    found: list[tuple[Any, int, int, Any]] = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    properties = types.SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(depthwise_launch.cubin_cache, "load_or_compile", lambda text, name: text)
    monkeypatch.setattr(kernel.nvrtc, "_EMPTY", host.empty)
    monkeypatch.setattr(kernel.nvrtc, "launch", lambda *given: found.append(given[:4]))
    for cached in (
        depthwise_launch.plan_of,
        depthwise_launch._compiled,
        depthwise_launch.make_launcher,
    ):
        cached.cache_clear()
    yield found
    for cached in (
        depthwise_launch.plan_of,
        depthwise_launch._compiled,
        depthwise_launch.make_launcher,
    ):
        cached.cache_clear()


@pytest.mark.parametrize("batch", [0, 1, 7, 500])
def test_launch_arguments(batch: int, launched: list[tuple[Any, int, int, Any]]) -> None:
    x = torch.randn(batch, 9, 11, 24).half().permute(0, 3, 1, 2)
    weight = torch.randn(24, 1, 3, 3).half()
    epilogue = everything("float16")
    operands = operands_of(epilogue, batch * 9 * 11, 24, "cpu")
    args = x, weight, operands, epilogue.text(), [1, 1], [1, 1], [1, 1]
    for _ in range(2):
        results = kernel.launch(*args, "cuda 4x8x1")
        assert [(one.shape, one.dtype) for one in results] == [
            ((batch * 99, 24), torch.float16),
            ((batch * 99, 24), torch.float32),
        ]
        if not batch:
            assert not launched
            return
        text, blocks, threads, table = launched.pop()
        assert "V = 4, ACROSS = 8, DOWN = 1" in text
        assert threads == 6 * 42  # six vectors of four channels; as many rows as 256 threads hold
        assert blocks == min(-(-batch * 9 * 2 // 42), 4 * 132)
        addresses = [one.data_ptr() for one in (*operands, *results)]
        assert [table.x, table.w, *table.p] == [x.data_ptr(), weight.data_ptr(), *addresses]
        assert table.batch == batch


@pytest.mark.parametrize("place", [None, 0, 2])
def test_vectors_need_their_addresses(
    place: int | None, launched: list[tuple[Any, int, int, Any]]
) -> None:
    """x and matrices must start at a multiple; other operands need not."""

    def starting(numbers: Tensor, moved: bool) -> Tensor:
        whole = torch.zeros(numbers.numel() + 8, dtype=numbers.dtype)
        at = -whole.data_ptr() // whole.element_size() % 8 + moved
        return whole[at : at + numbers.numel()].view(numbers.shape)

    x = starting(torch.randn(2, 4, 4, 8).half(), place == 0).permute(0, 3, 1, 2)
    weight = torch.randn(8, 1, 3, 3).half()
    operands = operands_of(everything("float16"), 32, 8, "cpu")
    operands[2] = starting(operands[2], place == 2)
    operands[0] = starting(operands[0], moved=True)
    steps = [1, 1], [1, 1], [1, 1]
    kernel.launch(x, weight, operands, everything("float16").text(), *steps, "cuda 4x4x1")
    ((text, *_),) = launched
    assert f"V = {1 if place is not None else 4}, ACROSS = 4" in text


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(12))
def test_on_a_device(dtype: str, seed: int) -> None:
    draw = random.Random(seed)
    given = drawn(draw)
    shape = shape_of(given, dtype)
    x, weight = tensors(given, dtype, "cuda")
    sizes = given["stride"], given["padding"], given["dilation"]
    pixels = given["batch"] * shape.result[0] * shape.result[1]
    for epilogue in (kernel.ALONE, everything(dtype)):
        operands = operands_of(epilogue, pixels, given["channels"], "cuda")
        want = kernel.reference(x.double(), weight.double(), operands, epilogue, *sizes)
        for patch in draw.sample(kernel.choices(shape), k=1):
            args = x, weight, operands, epilogue.text(), *sizes, patch.name
            agree(torch.ops.fusepass.depthwise(*args), want)


@pytest.mark.parametrize("patch", ["cuda 4x8x1", "reference"])
def test_what_generated_code_calls(
    patch: str, launched: list[tuple[Any, int, int, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made from its text, it launches what the operator does, whatever the batch."""
    monkeypatch.setattr(kernel, "kernel_calls_possible", lambda: True)
    epilogue = everything("float16")
    rest = epilogue.text(), [1, 1], [1, 1], [1, 1], patch
    weight = torch.randn(24, 1, 3, 3).half()
    fill = None
    for batch in (2, 5, 0):
        x = torch.randn(batch, 9, 11, 24).half().permute(0, 3, 1, 2)
        operands = operands_of(epilogue, batch * 99, 24, "cpu")
        with FakeTensorMode():
            fakes = [
                torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="cuda:0")
                for one in (x, weight, *operands)
            ]
        call = kernel._call(fakes[0], fakes[1], fakes[2:], *rest)
        if patch == "reference":
            assert call is None
            continue
        assert call is not None
        assert (call.module, call.maker) == (depthwise_launch.__name__, "make_launcher")
        fill = fill or depthwise_launch.make_launcher(*eval(repr(call.arguments)))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
        results = kernel.launch(x, weight, operands, *rest)
        said = [(dtype, tuple(shape), strides) for dtype, shape, strides in call.outputs]
        assert said == [(one.dtype, tuple(one.shape), one.stride()) for one in results]
        assert tuple(call.numbers) == (batch,)
        fill(batch, x, weight, *operands, *results)
        if batch:
            (_, blocks, threads, table), again = launched
            assert again[1:3] == (blocks, threads)
            assert [*again[3].p, again[3].batch] == [*table.p, batch]
        launched.clear()


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_under_inductor(mode: str, dynamic: bool) -> None:
    kernel.install_lowering()
    weight = torch.randn(24, 1, 3, 3, device="cuda").half()

    def program(x: Tensor) -> list[Tensor]:
        args = kernel.ALONE.text(), [1, 1], [1, 1], [1, 1], "cuda 4x8x1"
        matrix = x.permute(0, 2, 3, 1).reshape(-1, 24) @ torch.eye(24, device="cuda").half()
        image = matrix.relu().view(x.shape[0], 9, 11, 24).permute(0, 3, 1, 2)  # a view of it
        (made,) = torch.ops.fusepass.depthwise(image, weight, [], *args)
        return [made + 1, made]

    compiled = torch.compile(program, mode=mode)
    code = ""
    with torch.no_grad():
        for batch in (3, 5, 2) if dynamic else (3, 3, 3):
            x = torch.randn(batch, 9, 11, 24, device="cuda").half().permute(0, 3, 1, 2)
            if dynamic:
                torch._dynamo.mark_dynamic(x, 0)
            results, codes = run_and_get_code(compiled, x)
            code = codes[0] if codes else code
            args = [1, 1], [1, 1], [1, 1]
            (want,) = kernel.reference(x.relu().double(), weight.double(), [], kernel.ALONE, *args)
            agree([one.clone() for one in results], [want + 1, want])
    assert ".make_launcher(" in code
    assert "ops.fusepass.depthwise" not in code.split("def call")[1]


@pytest.mark.gpu
@pytest.mark.parametrize("at", [1, 2, 3])
def test_an_image_that_starts_between_vectors(at: int) -> None:
    channels, size = 8, (2, 6, 5, 8)
    whole = torch.randn(at + 2 * 6 * 5 * channels, device="cuda").half()
    x = whole[at:].view(size).permute(0, 3, 1, 2)
    weight = torch.randn(channels, 1, 3, 3, device="cuda").half()
    args = [1, 1], [1, 1], [1, 1]
    want = kernel.reference(x.double(), weight.double(), [], kernel.ALONE, *args)
    agree(kernel.launch(x, weight, [], kernel.ALONE.text(), *args, "cuda 4x4x1"), want)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled_before", [False, True])
def test_in_a_thread_that_has_done_nothing_yet(compiled_before: bool) -> None:
    """It has no context of the device until something makes one."""
    channels = 8 if compiled_before else 16
    x = torch.randn(2, 6, 5, channels, device="cuda").half().permute(0, 3, 1, 2)
    weight = torch.randn(channels, 1, 3, 3, device="cuda").half()
    given = x, weight, [], kernel.ALONE.text(), [1, 1], [1, 1], [1, 1], "cuda 4x4x1"
    if compiled_before:
        kernel.launch(*given)
    torch.cuda.synchronize()
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(kernel.launch, *given).result()
    torch.cuda.synchronize()
    agree(got, kernel.reference(x.double(), weight.double(), [], kernel.ALONE, *given[4:7]))


@pytest.mark.gpu
def test_nonfinite_values_on_a_device() -> None:
    x = torch.randn(2, 6, 5, 8, device="cuda").half()
    x[0, 1, 2, 3], x[1, 5, 4, 0], x[1, 0, 0, 7] = float("nan"), float("inf"), -float("inf")
    x = x.permute(0, 3, 1, 2)
    weight = torch.randn(8, 1, 3, 3, device="cuda").half()
    args = [1, 1], [1, 1], [1, 1]
    (got,) = kernel.launch(x, weight, [], kernel.ALONE.text(), *args, "cuda 4x4x2")
    want = F.conv2d(x, weight, None, *args, groups=8).permute(0, 2, 3, 1).reshape(-1, 8).float()
    assert torch.equal(got.isnan(), want.isnan())
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3, equal_nan=True)
