"""The pooling kernel: its text run on the host and compiled, its operator, its launches."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator
from dataclasses import astuple
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from fusepass.fusion.kernel_ir.epilogue import Epilogue, EpilogueStep, Output
from fusepass.kernels.pointwise import pool as kernel
from fusepass.kernels.pointwise import pool_launch
from fusepass.kernels.pointwise.pool_source import PoolPatch, PoolShape, pool_source
from tests.kernels import on_host as host
from tests.kernels.nvrtc import ARCHITECTURES, compile_error, needs_nvrtc

DTYPES = ["float16", "bfloat16", "float32"]
SAME = Epilogue(1, (), (), (Output("%0", "float32"),))
HALVED = Epilogue(
    1,
    (),
    (EpilogueStep("sub", (1.0, "%0")), EpilogueStep("mul", ("%1", 0.5))),
    (Output("%2", "float32"),),
)


def relu(dtype: str = "float32") -> Epilogue:
    return Epilogue(1, (), (EpilogueStep("relu", ("%0",)),), (Output("%1", dtype),))


def drawn(draw: random.Random, dtype: str, planes: int = 3) -> tuple[Tensor, PoolShape]:
    """An image, with what is not finite, and a pooling of it."""
    kernel_size = draw.randint(1, 4), draw.randint(1, 4)
    stride = draw.randint(1, 3), draw.randint(1, 4)
    padding = draw.randint(0, kernel_size[0] // 2), draw.randint(0, kernel_size[1] // 2)
    least = max(kernel_size)
    width = draw.choice([draw.randint(least, 19), 8 * draw.randint(1, 3)])
    x = torch.randn(planes, draw.randint(least, 11), width).to(getattr(torch, dtype))
    for value in (math.nan, math.inf, -math.inf, 0.0, -0.0):
        if draw.random() < 0.4:
            x[draw.randrange(planes), draw.randrange(x.shape[1]), draw.randrange(width)] = value
    largest = draw.random() < 0.6
    divisor = 0 if largest else draw.choice([0, math.prod(kernel_size), 3])
    steps = kernel_size, stride, padding
    return x, kernel.shape_of(x, largest, steps, divisor, draw.choice(DTYPES))


def expected(x: Tensor, before: Epilogue, behind: Epilogue, shape: PoolShape) -> Tensor:
    """By torch alone, in double precision."""
    functions = {(): lambda v: v, ("relu",): torch.relu, ("sub", "mul"): lambda v: (1.0 - v) * 0.5}
    first, last = (functions[tuple(s.op for s in body.steps)] for body in (before, behind))
    image = first(x.double())
    sizes = shape.kernel, shape.stride, shape.padding
    if shape.largest:
        made = F.max_pool2d(image, *sizes)
    else:
        made = F.avg_pool2d(image, *sizes, False, bool(shape.divisor), shape.divisor or None)
    return last(made).to(getattr(torch, shape.made))  # type: ignore[no-any-return]


def agree(got: Tensor, want: Tensor) -> None:
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    assert got.is_contiguous()
    rtol = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[got.dtype]
    torch.testing.assert_close(got, want, rtol=rtol, atol=rtol / 10, equal_nan=True)


def every_patch(shape: PoolShape) -> list[PoolPatch]:
    return [*kernel.choices(shape), PoolPatch(1, 1, 1), PoolPatch(1, 8, 3)]


def arguments(before: Epilogue, behind: Epilogue, shape: PoolShape, patch: str) -> tuple[Any, ...]:
    steps = [[*shape.kernel], [*shape.stride], [*shape.padding]]
    last = shape.largest, *steps, shape.divisor, shape.made, patch
    return before.text(), behind.text(), *last


# --- without a device -----------------------------------------------------------------------------


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Launches run the kernel's text as C++ on the host."""
    cached = pool_launch._compiled, pool_launch.make_launcher
    for one in cached:
        one.cache_clear()
    monkeypatch.setattr(pool_launch.cubin_cache, "load_or_compile", host.compiled)
    monkeypatch.setattr(pool_launch.nvrtc, "launch", host.launch)
    monkeypatch.setattr(kernel.nvrtc, "empty", host.empty)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    yield
    for one in cached:
        one.cache_clear()


@host.needs_compiler
@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(12))
def test_its_text_on_the_host(seed: int, on_host: None) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    dtype = DTYPES[seed % 3]
    x, shape = drawn(draw, dtype)
    before, behind = draw.choice([(SAME, relu()), (HALVED, SAME), (relu(), HALVED)])
    want = expected(x, before, behind, shape)
    agree(kernel.reference(x, before, behind, shape), want)
    for patch in draw.sample(every_patch(shape), k=3):
        agree(kernel.launch(x, before.text(), behind.text(), shape, patch.name), want)


@host.needs_compiler
def test_the_first_of_equal_values_is_chosen(on_host: None) -> None:
    """As in torch: also of 0 and -0, which differ in what is divided by them."""
    x = torch.tensor([[[0.0, -0.0, -0.0, 0.0], [-0.0, -0.0, 0.0, -0.0]]])
    shape = kernel.shape_of(x, True, ((2, 2), (2, 2), (0, 0)), 0, "float32")
    got = kernel.launch(x, SAME.text(), SAME.text(), shape, "cuda 4x2x1")
    assert torch.equal(got.signbit(), F.max_pool2d(x, 2).signbit())


@host.needs_compiler
@pytest.mark.parametrize("moved", ["image", "result"])
def test_what_starts_between_vectors(
    moved: str, on_host: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = int(moved == "image")  # memory begins at a multiple of 16 bytes
    x = torch.randn(at + 2 * 8 * 8).half()[at:].view(2, 8, 8)
    if moved == "result":

        def empty(size: Any, strides: Any, dtype: torch.dtype) -> Tensor:
            count = math.prod(size)
            return torch.empty(count + 1, dtype=dtype)[1:].view(*size)

        monkeypatch.setattr(kernel.nvrtc, "empty", empty)
    shape = kernel.shape_of(x, True, ((2, 2), (2, 2), (0, 0)), 0, "float16")
    patches: list[PoolPatch] = []
    compiled = pool_launch._compiled
    monkeypatch.setattr(
        pool_launch, "_compiled", lambda *given: (patches.append(given[3]), compiled(*given))[1]
    )
    got = kernel.launch(x, SAME.text(), SAME.text(), shape, "cuda 8x4x1")
    agree(got, F.max_pool2d(x, 2))
    assert patches == [PoolPatch(1, 4, 1) if moved == "image" else PoolPatch(1, 1, 1)]


@host.needs_compiler
@pytest.mark.parametrize("planes", [0, 1, 700])
def test_any_number_of_planes(planes: int, on_host: None) -> None:
    x = torch.randn(planes, 5, 6)
    shape = kernel.shape_of(x, True, ((3, 3), (2, 2), (1, 1)), 0, "float32")
    want = F.max_pool2d(x, 3, 2, 1) if planes else torch.empty(0, 3, 3)
    agree(kernel.launch(x, SAME.text(), SAME.text(), shape, "cuda 2x2x1"), want)
    agree(
        kernel.launch(
            x.view(planes, 1, 5, 6), SAME.text(), SAME.text(), shape, "reference"
        ).flatten(0, 1),
        want,
    )


@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernel_compiles_for_architecture(architecture: str) -> None:
    for seed, dtype in enumerate(DTYPES):
        _, shape = drawn(random.Random(seed), dtype)
        for patch in every_patch(shape)[::3]:
            assert compile_error(pool_source(shape, HALVED, relu(), patch), architecture) is None


def test_choices() -> None:
    x = torch.empty(1, 112, 112, dtype=torch.float16)
    steps = (2, 2), (2, 2), (0, 0)
    found = kernel.choices(kernel.shape_of(x, True, steps, 0, "float16"))
    assert PoolPatch(8, 4, 1) in found[: kernel.TIMED]
    for odd in (111, 113):
        x = torch.empty(1, 112, odd)
        assert {
            one.vector for one in kernel.choices(kernel.shape_of(x, True, steps, 0, "float16"))
        } == {1}
    large = (7, 7), (2, 2), (0, 0)
    assert kernel.choices(kernel.shape_of(x, True, large, 0, "float16")) == ()


@pytest.mark.parametrize("patch", ["cuda 8x4x1", "reference"])
def test_what_generated_code_calls(patch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "kernel_calls_possible", lambda: True)
    x = torch.randn(2, 3, 8, 16).half()
    shape = kernel.shape_of(x, True, ((3, 3), (2, 2), (1, 1)), 0, "bfloat16")
    with FakeTensorMode():
        fake = torch.empty(2, 3, 8, 16, dtype=torch.half, device="cuda:0")
    call = kernel._call(fake, *arguments(SAME, relu("bfloat16"), shape, patch))
    if patch == "reference":
        assert call is None
        return
    assert call is not None
    assert eval(repr(call.arguments)) == (
        astuple(shape),
        SAME.text(),
        relu("bfloat16").text(),
        patch,
        0,
    )
    assert [*call.outputs] == [(torch.bfloat16, (2, 3, 4, 8), (96, 32, 8, 1))]
    assert tuple(call.numbers) == (2, 3)


# --- on a device ----------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(20))
def test_on_a_device(dtype: str, seed: int) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    x, shape = drawn(draw, dtype, planes=draw.choice([1, 5, 300]))
    before, behind = draw.choice([(SAME, relu(shape.made)), (HALVED, SAME), (relu(), HALVED)])
    want = expected(x, before, behind, shape).cuda()
    for patch in every_patch(shape):
        args = arguments(before, behind, shape, patch.name)
        (got,) = torch.ops.fusepass.pool(x.cuda(), *args)
        agree(got, want)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_under_inductor(mode: str, dynamic: bool) -> None:
    kernel.install_lowering()

    def program(x: Tensor) -> list[Tensor]:
        shape = kernel.shape_of(x, True, ((2, 2), (2, 2), (0, 0)), 0, "float16")
        (made,) = torch.ops.fusepass.pool(x, *arguments(SAME, relu(), shape, "cuda 8x4x1"))
        return [made + 1, made]

    compiled = torch.compile(program, mode=mode)
    code = ""
    for batch in (3, 5, 2) if dynamic else (3, 3, 3):
        x = torch.randn(batch, 4, 16, 24, device="cuda").half()
        if dynamic:
            torch._dynamo.mark_dynamic(x, 0)
        results, codes = run_and_get_code(compiled, x)
        code = codes[0] if codes else code
        want = F.max_pool2d(x, 2).relu()
        torch.testing.assert_close([one.clone() for one in results], [want + 1, want])
    assert ".make_launcher(" in code
    assert "ops.fusepass.pool" not in code.split("def call")[1]
