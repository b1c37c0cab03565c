"""Norms that the kernel of one row in CUDA C++ computes: its text, its launches, its numbers."""

from __future__ import annotations

import ctypes
import random

import pytest
import torch

from fusepass.fusion.kernel_ir.norm import Norm
from fusepass.kernels.gemm import normed_gemms as kernel
from fusepass.kernels.gemm import tiles
from fusepass.kernels.gemm.hopper import launch
from fusepass.kernels.gemm.hopper.launch import numbers_of
from fusepass.kernels.gemm.hopper.row_source import WIDEST, RowKernel, hopper_row
from fusepass.kernels.gemm.hopper.tile_source import MEMORY
from fusepass.kernels.gemm.tiles import is_hopper, ring_of
from fusepass.torch_private.inductor.host_call import HostCall
from tests.kernels.gemm.hopper.test_tile_source import Driver, driver
from tests.kernels.gemm.test_normed_gemms import KINDS, Case, epilogues
from tests.kernels.nvrtc import compile_error, needs_nvrtc

__all__ = ["driver"]
on_hopper = pytest.mark.skipif(
    not (torch.cuda.is_available() and is_hopper(torch.device("cuda"))),
    reason="needs a Hopper device",
)


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "is_hopper", lambda device: True)


def in_cuda(case: Case) -> RowKernel | None:
    tile = ring_of(case.epilogues[0])
    assert tile is not None
    return kernel.in_cuda(case.norm, case.epilogues, case.weights, case.vectors, tile)


@needs_nvrtc
@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("products", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", range(6))
def test_it_compiles(dtype: torch.dtype, products: int, seed: int, hopper: None) -> None:
    case = Case(random.Random(seed), dtype, products)
    cut = in_cuda(case)
    assert cut is not None
    text = hopper_row(case.epilogues, cut, str(dtype).removeprefix("torch."))
    assert compile_error(text, "sm_90a") is None
    assert "$" not in text
    assert cut.shared(case.epilogues[0], WIDEST) <= MEMORY


def test_what_the_kernel_in_cuda_is_told(hopper: None) -> None:
    case = Case(random.Random(1), torch.float16, 3)
    case.norm = Norm(1e-5, 0.0, True, True)
    case.operands[:2] = [torch.ones(8), torch.ones(8).half()]
    cut = in_cuda(case)
    assert cut is not None
    assert (cut.norm, cut.vector_dtypes) == (case.norm.text(), ("float32", "float16"))
    assert cut.widths == tuple(weight.shape[1] for weight in case.weights)
    case.operands[0] = torch.ones(8).double()
    assert in_cuda(case) is None
    case.operands[0] = torch.ones(8)
    for tile in kernel.choices(case.norm, case.epilogues):
        args = case.norm, case.epilogues, case.weights, case.vectors
        assert kernel.in_cuda(*args, tile) is None
    case.weights[2] = torch.empty(24, WIDEST + 8, dtype=torch.float16, device="meta").t()
    case.weights = case.weights[2:] * 3
    assert in_cuda(case) is None  # a row too long for shared memory


@pytest.mark.parametrize("products", [1, 2, 3])
def test_how_inductor_is_told(products: int, hopper: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch of ours by the host, with the columns of each product."""
    case = Case(random.Random(7), torch.float16, products)
    values = [one.to("meta") for one in (case.x, *case.weights, *case.operands)]
    monkeypatch.setattr(torch.Tensor, "device", torch.device("cuda", 0))
    tile = ring_of(case.epilogues[0])
    assert tile is not None
    call = kernel.plan(values, products, case.text, tile.name)
    assert isinstance(call, HostCall)
    assert case.norm.text() in call.arguments[1]
    widths = tuple(weight.shape[1] for weight in case.weights)
    several = len(case.epilogues) > 1
    assert call.arguments[1][-1] == (widths if several else ())
    assert call.arguments[3] == (sum(widths) if several else widths[0], case.x.shape[1])
    wanted = case.weights if len(case.epilogues) > 1 else case.weights[:1]
    assert [tuple(shape) for _, shape, _ in call.outputs] == [
        (1, weight.shape[1])
        for weight, epilogue in zip(wanted, case.epilogues, strict=True)
        for _ in epilogue.outputs
    ]


def test_a_launch(driver: Driver, hopper: None) -> None:
    """The table of several products: addresses, where each begins, the norm's vectors."""
    case = Case(random.Random(7), torch.float16, 3)
    cut = in_cuda(case)
    assert cut is not None
    widths, k = cut.widths, case.x.shape[1]
    made = [
        one for n, e in zip(widths, case.epilogues, strict=True) for one in [n] * len(e.outputs)
    ]
    outputs = [torch.empty(1, n) for n in made]
    text = case.text.partition(" ")[2]
    apart = case.weights[0].stride(1)
    of = text, numbers_of(cut), "float16", (sum(widths), k), (k, apart), 0
    fill = launch.make_launcher(*eval(repr(of)))
    rest = case.operands[case.norm.vectors :]
    kinds = [operand.kind for one in case.epilogues for operand in one.operands]
    strides = [one.shape[1] if kind == "full" else 0 for one, kind in zip(rest, kinds, strict=True)]
    fill(1, *filter(None, strides), case.x, *case.weights, *case.operands, *outputs)
    (kernel_, grid, threads, shared, _, parameters) = driver.launches[0]
    wanted = [case.x.data_ptr(), *(w.data_ptr() for w in case.weights), apart]
    wanted += [widths[0], widths[0] + widths[1], *(v.data_ptr() for v in case.vectors)]
    for one, stride in zip(rest, strides, strict=True):
        wanted += [one.data_ptr(), stride]
    wanted += [one.data_ptr() for one in outputs]
    assert list((ctypes.c_uint64 * len(wanted)).from_address(parameters[0])) == wanted
    sizes = (ctypes.c_uint32 * 3).from_address(parameters[0] + 8 * len(wanted))
    assert list(sizes) == [1, sum(widths), k]
    assert (kernel_, threads) == ("kernel", cut.threads)
    assert grid == (min(132, sum(widths)), 1, 1)
    assert shared == cut.shared(case.epilogues[0], k)
    source, most = driver.compiled
    assert source == hopper_row(case.epilogues, cut, "float16")
    assert most == cut.shared(case.epilogues[0])


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("widths", [(4096, 520, 1608), (9000, 9000), (2008,)])
@pytest.mark.parametrize("k", [2048, 8200, WIDEST])
def test_many_columns_and_pieces(widths: tuple[int, ...], k: int) -> None:
    """Warps multiply several columns, of several products; each slot is used again and again."""
    draw = random.Random(k)
    case = Case(draw, torch.bfloat16, len(widths), "cuda")
    case.x = torch.randn(1, k, device="cuda").bfloat16()
    case.weights = [(torch.randn(n, k, device="cuda") / k**0.5).bfloat16().t() for n in widths]
    rows = [torch.randn(k, device="cuda") for _ in range(case.norm.vectors)]
    case.operands = rows + [
        torch.randn((n,) if operand.kind == "row" else (1, n), device="cuda").bfloat16()
        for n, one in zip(widths, case.epilogues, strict=False)
        for operand in one.operands
    ]
    tile = ring_of(case.epilogues[0])
    assert tile is not None
    for _ in range(3):
        case.check(kernel.launch(case.x, case.weights, case.operands, case.text, tile))


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("row", ["zero", "constant", "huge"])
@pytest.mark.parametrize("kind", KINDS)
def test_special_rows(row: str, kind: tuple[bool, bool]) -> None:
    """Without variance; of squares that overflow, so that an RMSNorm's scale is 0."""
    norm, plain = Norm(1e-6, 0.0, *kind), epilogues("float32")[:1]
    value = {"zero": 0.0, "constant": 3.0, "huge": 1e30}[row]
    x = torch.full((1, 2048), value, device="cuda").bfloat16()
    weight = torch.randn(520, 2048, device="cuda").bfloat16() / 64
    args = x, [weight.t()], [torch.randn(2048, device="cuda") for _ in range(norm.vectors)]
    tile = ring_of(plain[0])
    assert tile is not None
    (got,) = kernel.launch(*args, kernel.text_of(norm, plain), tile)
    (want,) = kernel.reference(*args, norm, plain)
    torch.testing.assert_close(got, want, equal_nan=True, rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, 6e4])
@pytest.mark.parametrize("kind", KINDS)
def test_special_numbers(value: float, kind: tuple[bool, bool]) -> None:
    """And rows of one copy of weights and of several, of numbers whose squares overflow halves."""
    norm, plain = Norm(1e-6, 1.0, *kind), epilogues("float16")[:1]
    for k in (8, 2048, 4104):
        x, weight = torch.randn(1, k, device="cuda"), torch.randn(520, k, device="cuda") / 64
        x[0, k // 2] = value
        vectors = [torch.randn(k, device="cuda") for _ in range(norm.vectors)]
        args = x.half(), [weight.half().t()], vectors
        tile = ring_of(plain[0])
        assert tile is not None
        (got,) = kernel.launch(*args, kernel.text_of(norm, plain), tile)
        (want,) = kernel.reference(*args, norm, plain)
        torch.testing.assert_close(got, want, equal_nan=True, rtol=2e-2, atol=2e-2)
