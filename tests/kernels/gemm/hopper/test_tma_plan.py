"""For which matrices the host makes a kernel's descriptors, and what Inductor is given then."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fusepass.fusion.kernel_ir.epilogue import Epilogue
from fusepass.kernels.gemm import op as kernel
from fusepass.kernels.gemm import tiles
from fusepass.kernels.gemm.hopper import tma_plan as copies
from fusepass.kernels.gemm.hopper.tma_plan import tma_operands
from fusepass.kernels.gemm.tiles import Tile
from fusepass.torch_private.inductor.kernel_call import KernelCall
from tests.kernels.gemm.test_op import (
    BACKWARD,
    GELU,
    GRADIENT,
    MASKED,
    PLAIN,
    SUMS,
    SWIGLU,
    inputs,
    needs_triton,
)

M, N, K = 40, 24, 32
TILE = Tile(128, 128, 64, 4, 5, form="pingpong")
Changed = tuple[Tensor, list[Tensor], list[Tensor]]


def by_host(
    x: Tensor, weights: Sequence[Tensor], operands: Sequence[Tensor], epilogue: Epilogue
) -> bool:
    assert kernel.refuses(x, weights, operands, epilogue) is None
    return copies.by_host((x, *weights, *operands), epilogue)


def given(epilogue: Epilogue) -> Changed:
    return inputs(epilogue, M, N, K)


@pytest.mark.parametrize("epilogue", [PLAIN, GELU, SWIGLU, GRADIENT, SUMS, BACKWARD])
def test_matrices_whose_rows_lie_apart(epilogue: Epilogue) -> None:
    x, weights, operands = given(epilogue)
    assert by_host(x, weights, operands, epilogue)
    assert by_host(x, [w.contiguous() for w in weights], operands, epilogue)  # (K, N)
    both = torch.cat([w.t() for w in [*weights, *weights][:2]])
    assert by_host(x, both.t().chunk(2, dim=1)[: len(weights)], operands, epilogue)  # packed
    side_by_side = torch.cat([*weights, *weights][:2], 1).contiguous()
    assert by_host(x, side_by_side.chunk(2, dim=1)[: len(weights)], operands, epilogue)
    wider = torch.zeros(M, 2 * K).bfloat16()
    assert by_host(wider[:, K:], weights, operands, epilogue)
    assert by_host(
        x[:1], weights, [o[:1] if o.shape[:1] == (M,) else o for o in operands], epilogue
    )


@pytest.mark.parametrize("apart", [0, 8, K - 8])
@pytest.mark.parametrize("rows", [1, M])
def test_rows_that_overlap(apart: int, rows: int) -> None:
    """A driver refuses distances smaller than a row is long; a kernel's own descriptors do not."""
    x, weights, operands = given(GELU)
    room = torch.zeros(1 << 12).bfloat16()
    operands = [operands[0], operands[1][:rows]]
    assert not by_host(room.as_strided((rows, K), (apart, 1)), weights, operands, GELU)
    assert not by_host(x[:rows], [room.as_strided((K, N), (1, apart))], operands, GELU)  # (N, K)
    less = min(apart, N - 8)
    assert not by_host(x[:rows], [room.as_strided((K, N), (less, 1))], operands, GELU)
    full = room.as_strided((rows, N), (less, 1))
    assert not by_host(x[:rows], weights, [operands[0], full], GELU)


def test_rows_that_touch() -> None:
    x, weights, operands = given(GELU)
    touching = torch.zeros(M * K).bfloat16().as_strided((M, K), (K, 1))
    assert by_host(touching, weights, operands, GELU)
    assert by_host(x.expand(M, K), weights, operands, GELU)
    assert not by_host(x[:1].expand(M, K), weights, operands, GELU)


def test_what_is_not_copied_by_descriptors_may_overlap() -> None:
    """A row for all rows, and a matrix of another dtype than the results'."""
    x, weights, _ = given(MASKED)
    column, factor = torch.zeros(M, 1).half(), torch.zeros(())
    one_row = torch.zeros(1, N, dtype=torch.bool).expand(M, N)
    assert by_host(x, weights, [column, factor, one_row], MASKED)
    x, weights, (_, full) = given(GELU)
    assert by_host(x, weights, [torch.zeros(1).bfloat16().expand(N), full], GELU)


def test_batches() -> None:
    x, weights, operands = given(GELU)
    batches = x[None], [w[None] for w in weights]
    assert not by_host(*batches, operands, GELU)


def test_rows_that_vary() -> None:
    """Their number is in no descriptor's kind; how far apart they are must be known."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    shapes = ShapeEnv()
    some = shapes.create_unbacked_symint()
    with FakeTensorMode(shape_env=shapes):
        weight = torch.empty(N, K).bfloat16().t()
        x = torch.empty(some, K, dtype=torch.bfloat16)
        assert copies.by_host((x, weight), PLAIN)
        apart = torch.empty_strided((M, K), (some, 1), dtype=torch.bfloat16)
        assert not copies.by_host((apart, weight), PLAIN)


@pytest.mark.parametrize("epilogue", [PLAIN, GELU, SWIGLU, GRADIENT, SUMS, BACKWARD])
@pytest.mark.parametrize("transposed", [True, False])
def test_each_matrix_is_described_by_parameters(epilogue: Epilogue, transposed: bool) -> None:
    x, weights, operands = given(epilogue)
    if not transposed:
        weights = [w.contiguous() for w in weights]
    outputs = [torch.empty(M, N).bfloat16() for _ in epilogue.outputs]
    values = x, *weights, *operands
    named = kernel.arguments(x, weights, operands, outputs, epilogue, values, TILE, 2)
    found = tma_operands(epilogue, TILE.m, TILE.n, TILE.k, transposed)
    assert {"x_ptr", "w0_ptr", "o0"} <= set(found)
    for name, (rows, columns, stride, _, multiplied) in found.items():
        assert multiplied == name.startswith(("x", "w"))
        matrix: Tensor = named[name]
        matrix = matrix.mT if name.startswith("w") and transposed else matrix
        assert matrix.shape == (named[rows], named[columns])
        assert matrix.stride() == (named[stride], 1)


def planned(x: Tensor, weight: Tensor, row: Tensor, full: Tensor) -> tuple[KernelCall, str]:
    """How Inductor should compile a call on a device that is not there, and the kernel's text."""
    made = kernel.plan((x, weight, row, full), 1, GELU.text(), TILE.name)
    assert made is not None
    return made, made.kernel.fn.src


@needs_triton
@pytest.mark.parametrize("transposed", [True, False])
def test_plans_with_and_without(transposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._subclasses.fake_tensor.init_gpu_context", lambda device: None)
    monkeypatch.setattr(tiles, "on_hopper", lambda device: True)
    monkeypatch.setattr(kernel, "multiprocessors", lambda device: 132)
    with FakeTensorMode():
        x = torch.empty(M, K, dtype=torch.bfloat16, device="cuda")
        weight = torch.empty(*((N, K) if transposed else (K, N)), dtype=x.dtype, device="cuda")
        weight = weight.t() if transposed else weight
        operands = x.new_empty(N), x.new_empty(M, N)
        hosted, text = planned(x, weight, *operands)
        own, other = planned(x.new_empty(1, K).expand(M, K), weight, *operands)
        batched, third = planned(x.unsqueeze(0), weight.unsqueeze(0), *operands)
        named = [one.arguments((x, weight, *operands), operands[:2]) for one in (hosted, own)]
    assert hosted.count == own.count
    assert hosted.outputs == own.outputs == batched.outputs
    assert [dtype for dtype, _ in hosted.outputs] == [torch.bfloat16] * 2
    assert [list(one) for one in named] == [list(named[0])] * 2
    assert hosted.kernel.fn.arg_names == own.kernel.fn.arg_names
    assert "make_tensor_descriptor" not in text
    of = tma_operands(GELU, TILE.m, TILE.n, TILE.k, transposed)
    assert text.rstrip().endswith(f"use(fusepass_gemm_hopper, globals(), {of!r})")
    for without in (other, third):
        assert "make_tensor_descriptor" in without
        assert without.rstrip().endswith("use(fusepass_gemm_hopper, globals(), {})")
