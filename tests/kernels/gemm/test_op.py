"""The kernel of GEMM regions: what it refuses, that it compiles for every device, its numbers."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fusepass.fusion.kernel_ir.epilogue import (
    Epilogue,
    EpilogueOperand,
    EpilogueStep,
    Output,
    evaluate,
    parse,
)
from fusepass.kernels.gemm import op as kernel
from fusepass.kernels.gemm.baseline import reduce_partial_results
from fusepass.kernels.gemm.tiles import Tile
from fusepass.numerics import error_bound, half_ulp, passes, rms, rms_error
from tests.kernels.interpreter import interpret, needs_triton

SILU = (
    EpilogueStep("sigmoid", ("%0",)),
    EpilogueStep("mul", ("%0", "%2")),
    EpilogueStep("mul", ("%3", "%1")),
)
SWIGLU = Epilogue(2, (), SILU, (Output("%4", "bfloat16"), Output("%1", "bfloat16")))
GELU = Epilogue(
    1,
    (EpilogueOperand("row", "bfloat16"), EpilogueOperand("full", "bfloat16")),
    (
        EpilogueStep("add", ("%0", "%1")),
        EpilogueStep("mul", ("%3", 2**-0.5)),
        EpilogueStep("erf", ("%4",)),
        EpilogueStep("add", ("%5", 1.0)),
        EpilogueStep("mul", ("%3", "%6")),
        EpilogueStep("mul", ("%7", 0.5)),
        EpilogueStep("add", ("%8", "%2")),
    ),
    (Output("%9", "bfloat16"), Output("%3", "bfloat16")),
)
MASKED = Epilogue(
    1,
    (
        EpilogueOperand("column", "float16"),
        EpilogueOperand("scalar", "float32"),
        EpilogueOperand("full", "bool"),
    ),
    (
        EpilogueStep("mul", ("%0", "%1")),
        EpilogueStep("relu", ("%4",)),
        EpilogueStep("tanh", ("%5",)),
        EpilogueStep("mul", ("%6", "%2")),
        EpilogueStep("mul", ("%7", "%3")),  # a truth value times a number
        EpilogueStep("where", ("%3", "%8", float("-inf"))),
    ),
    (Output("%9", "float32"),),
)
TRUTHS = Epilogue(  # of numbers and of truth values
    1,
    (EpilogueOperand("full", "bool"), EpilogueOperand("column", "float32")),
    (
        EpilogueStep("relu", ("%0",)),
        EpilogueStep("logical_or", ("%3", "%1")),
        EpilogueStep("logical_and", ("%4", "%2")),
        EpilogueStep("where", ("%5", "%0", 0.5)),
    ),
    (Output("%6", "bfloat16"),),
)
QUOTIENT = Epilogue(  # x / (1 + exp(-x)) + (1 + tanh(x)) + tanh(x)
    1,
    (),
    (
        EpilogueStep("neg", ("%0",)),
        EpilogueStep("exp", ("%1",)),
        EpilogueStep("add", ("%2", 1.0)),
        EpilogueStep("div", ("%0", "%3")),
        EpilogueStep("tanh", ("%0",)),
        EpilogueStep("add", (1.0, "%5")),
        EpilogueStep("add", ("%4", "%6")),
        EpilogueStep("add", ("%5", "%7")),
    ),
    (Output("%8", "bfloat16"), Output("%6", "float32"), Output("%4", "float32")),
)
PLAIN = Epilogue(1, (), (), (Output("%0", "bfloat16"),))
GELU_TANH = Epilogue(
    1,
    (EpilogueOperand("row", "bfloat16"),),
    (
        EpilogueStep("add", ("%0", "%1")),
        EpilogueStep("mul", ("%2", "%2")),
        EpilogueStep("mul", ("%3", "%2")),
        EpilogueStep("mul", (0.044715, "%4")),
        EpilogueStep("add", ("%2", "%5")),
        EpilogueStep("mul", ("%6", 0.7978845608028654)),
        EpilogueStep("tanh", ("%7",)),
        EpilogueStep("add", ("%8", 1.0)),
        EpilogueStep("mul", (0.5, "%2")),
        EpilogueStep("mul", ("%9", "%10")),
    ),
    (Output("%11", "bfloat16"),),
)
GRADIENT = Epilogue(  # of a bias, too
    1,
    (EpilogueOperand("full", "bfloat16"),),
    (EpilogueStep("tanh", ("%1",)), EpilogueStep("mul", ("%0", "%2"))),
    (
        Output("%3", "bfloat16"),
        Output("%3", "float32", "rows"),
        Output("%3", "float32", "columns", "max"),
    ),
)
SUMS = Epilogue(2, (), SILU, (Output("%4", "bfloat16"), Output("%1", "float32", "columns")))
TAIL = Epilogue(  # GELU with nothing behind it, so that its small results are seen
    1,
    (EpilogueOperand("row", "bfloat16"),),
    (
        EpilogueStep("add", ("%0", "%1")),
        EpilogueStep("mul", ("%2", 2**-0.5)),
        EpilogueStep("erf", ("%3",)),
        EpilogueStep("add", ("%4", 1.0)),
        EpilogueStep("mul", ("%2", "%5")),
        EpilogueStep("mul", ("%6", 0.5)),
    ),
    (Output("%7", "bfloat16"),),
)
LOSS = Epilogue(1, (), (EpilogueStep("mul", ("%0", "%0")),), (Output("%1", "float32", "rows"),))
BACKWARD = Epilogue(  # of a gated pair: what comes from behind, and both that were saved
    1,
    (EpilogueOperand("full", "bfloat16"), EpilogueOperand("full", "bfloat16")),
    (
        EpilogueStep("sigmoid", ("%1",)),
        EpilogueStep("mul", ("%0", "%3")),
        EpilogueStep("mul", ("%0", "%2")),
    ),
    (Output("%5", "bfloat16"), Output("%4", "bfloat16")),
)
ONE_OF_TWO = replace(BACKWARD, outputs=(Output("%5", "bfloat16"), Output("%5", "float32", "rows")))
PAIR_AND_MORE = Epilogue(
    2,
    (EpilogueOperand("full", "bfloat16"), EpilogueOperand("full", "bfloat16")),
    (
        EpilogueStep("sigmoid", ("%0",)),
        EpilogueStep("mul", ("%4", "%1")),
        EpilogueStep("add", ("%5", "%2")),
        EpilogueStep("mul", ("%6", "%3")),
    ),
    (Output("%7", "bfloat16"),),
)
EPILOGUES = {
    "backward": BACKWARD,
    "one_of_two": ONE_OF_TWO,
    "pair_and_more": PAIR_AND_MORE,
    "gradient": GRADIENT,
    "sums": SUMS,
    "loss": LOSS,
    "plain": PLAIN,
    "gelu_tanh": GELU_TANH,
    "quotient": QUOTIENT,
    "swiglu": SWIGLU,
    "gelu": GELU,
    "masked": MASKED,
    "truths": TRUTHS,
}


def single(epilogue: Epilogue) -> Epilogue:
    """The same of operands and results in fp32."""
    return parse(epilogue.text().replace("bfloat16", "float32").replace("float16", "float32"))


def inputs(
    epilogue: Epilogue, m: int, n: int, k: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(m + n + k + 10**6 * seed)

    def noise(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        made = torch.randn(shape, generator=generator)
        return made > 0 if dtype is torch.bool else made.to(dtype)

    shapes = {"row": (n,), "column": (m, 1), "full": (m, n), "scalar": ()}
    operands = [noise(*shapes[o.kind], dtype=getattr(torch, o.dtype)) for o in epilogue.operands]
    scale = max(k, 1) ** -0.5  # so that functions are not asked for numbers far out only
    return noise(m, k), [(noise(n, k) * scale).t() for _ in range(epilogue.products)], operands


def exact_and_eager(
    epilogue: Epilogue, x: Tensor, weights: Sequence[Tensor], operands: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs in fp64, and as single operations give them."""
    exact = kernel.reference(x.double(), [w.double() for w in weights], operands, epilogue)
    if x.dtype is torch.float32 and x.shape[-2] > 1:  # on the CPU there is no TF32
        x, weights = as_tf32(x), [as_tf32(w) for w in weights]
    products = [(x @ w).float().flatten(0, -2) for w in weights]
    eager = evaluate(epilogue, products, operands)
    return reduce_partial_results(epilogue, exact), reduce_partial_results(epilogue, eager)


def far_out(
    mean: float, m: int, dtype: torch.dtype, n: int = 32, k: int = 64
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Inputs of ``TAIL`` whose pre-activations are near ``mean``."""
    x, (weight,), _ = inputs(PLAIN, m, n, k, dtype)
    return x, [(weight.t() * 0.3).t()], [torch.full((n,), mean, dtype=dtype)]


def as_tf32(matrix: Tensor) -> Tensor:
    """Rounded to the 10 bits behind the point that tensor cores read, as cuBLAS does."""
    finite = ((matrix.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    return torch.where(matrix.isfinite(), finite, matrix)


def within(got: Sequence[Tensor], exact: Sequence[Tensor], eager: Sequence[Tensor]) -> bool:
    bounds = [
        error_bound(half_ulp(g.dtype, rms(e[e.isfinite()])), rms_error(r, e), None)
        for g, e, r in zip(got, exact, eager, strict=True)
    ]
    errors = [rms_error(g, e) for g, e in zip(got, exact, strict=True)]
    return all(map(passes, errors, bounds))


def batches_of(count: int, m: int, *given: Any) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Batches of which x and the weights are, as :func:`inputs` makes them of all their rows."""
    epilogue, n, k, dtype = given
    x, _, operands = inputs(epilogue, count * m, n, k, dtype)
    weights = [
        torch.stack([inputs(epilogue, i + j, n, k, dtype)[1][0].t() for i in range(count)]).mT
        for j in range(epilogue.products)
    ]
    return x.view(count, m, k), weights, operands


@pytest.mark.parametrize("name", [name for name in EPILOGUES if not EPILOGUES[name].reduced])
def test_the_operator_on_batches(name: str) -> None:
    epilogue = EPILOGUES[name]
    x, weights, operands = batches_of(3, 5, epilogue, 8, 16, torch.bfloat16)
    args = x, weights, operands, epilogue.text(), "reference"
    got = torch.ops.fusepass.gemm_region(*args)
    rows = slice(5, 10)
    parts = [
        o[rows] if kind.kind in ("full", "column") else o
        for o, kind in zip(operands, epilogue.operands, strict=True)
    ]
    alone = torch.ops.fusepass.gemm_region(
        x[1], [w[1] for w in weights], parts, epilogue.text(), "reference"
    )
    for whole, part in zip(got, alone, strict=True):
        torch.testing.assert_close(whole[rows], part)
    torch.library.opcheck(torch.ops.fusepass.gemm_region.default, args)


@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("size", [(5, 8, 16), (1, 1, 1), (3, 7, 0), (0, 4, 4)])
def test_the_operator(name: str, size: tuple[int, int, int]) -> None:
    epilogue = EPILOGUES[name]
    x, weights, operands = inputs(epilogue, *size)
    args = x, weights, operands, epilogue.text(), "reference"
    got = reduce_partial_results(epilogue, torch.ops.fusepass.gemm_region(*args))
    assert within(got, *exact_and_eager(epilogue, x, weights, operands))
    assert all(out.is_contiguous() for out in got)
    assert all(out.shape == size[:2] for out in got[: len(epilogue.stored)])
    torch.library.opcheck(torch.ops.fusepass.gemm_region.default, args)


def test_a_malformed_epilogue() -> None:
    x, weights, _ = inputs(SWIGLU, 4, 8, 8)
    with pytest.raises(ValueError, match="epilogue"):
        torch.ops.fusepass.gemm_region(x, weights, [], "{}", "reference")


def refused(x: Tensor, weights: list[Tensor], epilogue: Epilogue = SWIGLU) -> str | None:
    return kernel.refuses(x, weights, [], epilogue)


def test_refuses_unsupported_regions() -> None:
    x, weights, _ = inputs(SWIGLU, 16, 16, 32)
    assert refused(x, weights) is None
    assert refused(x.float(), [w.float() for w in weights]) is None
    assert refused(x.float(), weights) is not None
    assert refused(x.double(), [w.double() for w in weights]) is not None
    assert refused(*inputs(SWIGLU, 16, 16, 20, torch.float32)[:2]) is None  # multiples of 16 bytes
    assert refused(*inputs(SWIGLU, 16, 16, 18, torch.float32)[:2]) is not None
    assert refused(x, [weights[0], weights[1].half()]) is not None
    assert refused(x.t().contiguous().t(), weights) is not None  # K is not contiguous
    assert refused(x[:, 1:], [w[1:] for w in weights]) is not None  # does not start at 16 bytes
    assert refused(*inputs(SWIGLU, 16, 16, 30)[:2]) is not None  # nor do its rows
    assert refused(x, [weights[0], weights[1].contiguous()]) is not None  # other strides
    assert refused(x, [w.contiguous() for w in weights]) is None  # (K, N), for some of the tiles
    assert refused(x, [weights[0].contiguous()], PLAIN) is None  # one product need not
    batches = x.expand(3, 16, 32), [w.expand(3, 32, 16) for w in weights]
    assert refused(*batches) is None
    assert refused(*batches, SUMS) is not None  # reduced
    assert (
        refused(x.new_zeros(3, 516)[:, :512].view(3, 16, 32), batches[1]) is not None
    )  # alignment
    beside = batches[0], batches[1][:1], [torch.zeros(16).bfloat16()]
    for count, fine in ((48, True), (16, False)):  # operands have the rows of all batches
        full = torch.zeros(count, 16).bfloat16()
        assert (kernel.refuses(*beside[:2], [*beside[2], full], GELU) is None) == fine
    row, whole = torch.zeros(16).bfloat16(), torch.zeros(16, 48).bfloat16()
    for full, fine in (
        (whole[:, :16], True),
        (whole[:4, :16], False),  # other rows than the product has
        (whole[:, 8:24], True),
        (whole[:, 1:17], False),  # does not start at 16 bytes
        (torch.zeros(16, 20).bfloat16()[:, :16], False),  # nor do its rows
        (torch.zeros(16, 20).half()[:, 1:17], False),  # may be fetched, too, if results are such
        (torch.zeros(16, 20)[:, :16], True),  # is read otherwise, in single precision
        (whole.t()[:16], False),  # not contiguous along its rows
    ):
        assert (kernel.refuses(x, weights[:1], [row, full], GELU) is None) == fine


DTYPES = {2: torch.bfloat16, 4: torch.float32}


def test_batches_of_rows_that_vary() -> None:
    """Their distance is a multiple of 16 bytes whatever the number of rows is."""
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    shapes = ShapeEnv()
    rows = shapes.create_unbacked_symint()
    with FakeTensorMode(shape_env=shapes):
        for k, fine in ((32, True), (36, False)):
            x = torch.empty(3, rows, k, dtype=torch.float16)
            weight = torch.empty(3, k, 16, dtype=torch.float16)
            assert not isinstance(x.stride(0), int)
            assert (kernel.refuses(x, [weight], [], PLAIN) is None) == fine


def interpreted(everything: bool) -> None:
    """Every epilogue through Triton's interpreter, in fp16 and TF32: it knows no bf16.

    Args:
        everything: each form with all sizes and orders of weights, not just some in turn.
    """
    torch.use_deterministic_algorithms(True)  # what is not written is NaN
    turns = itertools.count()
    for name, as_given in EPILOGUES.items():
        first = next(turns) % 4  # another quarter of forms and sizes comes for the next
        epilogue = parse(as_given.text().replace("bfloat16", "float16"))
        grid = Tile(16, 32, 16, 4, 2, split=name == "gelu", group=2)
        kinds = (16, "rows"), (64, "rows"), (1, "row")
        few = [Tile(m, 16, 32, 4, 2, form=form) for m, form in kinds]
        every = (grid, *few)
        some = every if everything else (every[first], every[first - 2])
        sizes = (40, 40, 48), (17, 24, 8), (1, 8, 16)
        for tile, size in itertools.product(every, sizes):
            turn = next(turns)
            if turn % 4 and not everything:
                continue
            x, weights, operands = inputs(epilogue, *size, torch.float16)
            both = (
                torch.stack([w.t() for w in weights], 1).flatten(0, 1).t()
            )  # their columns in turn
            alternating = [both[:, i :: len(weights)] for i in range(len(weights))]
            rows = [w.contiguous() for w in weights]
            orders = (weights, weights[::-1], rows, alternating)
            for given in orders if everything else orders[turn // 4 % 4 :][:1]:
                transposed = all(w.stride(0) == 1 for w in given)
                if kernel.refuses(x, given, operands, epilogue):
                    continue
                if not transposed and (tile.plain or epilogue.products == 2):
                    continue
                made = kernel.launch(x, given, operands, epilogue.text(), tile)
                both_ways = exact_and_eager(epilogue, x, given, operands)
                assert within(reduce_partial_results(epilogue, made), *both_ways), (name, size)
        for tile in some:
            size = (1 if tile.form == "row" else 17), 24, 40
            x, weights, operands = inputs(single(as_given), *size, torch.float32)
            made = kernel.launch(x, weights, operands, single(as_given).text(), tile)
            both_ways = exact_and_eager(single(as_given), x, weights, operands)
            assert within(reduce_partial_results(single(as_given), made), *both_ways), (
                name,
                "in TF32",
            )
        for mean, tile in itertools.product((-2.5, -4.5) if name == "gelu" else (), every):
            for dtype, shown in ((torch.float16, "float16"), (torch.float32, "float32")):
                tail = parse(TAIL.text().replace("bfloat16", shown))
                given = far_out(mean, 1 if tile.form == "row" else 20, dtype)
                made = kernel.launch(*given, tail.text(), tile)
                assert within(made, *exact_and_eager(tail, *given)), (mean, tile.name, dtype)
        for tile in some if not epilogue.reduced else ():
            m = 1 if tile.form == "row" else 19
            x, weights, operands = batches_of(3, m, epilogue, 24, 8, torch.float16)
            made = kernel.launch(x, weights, operands, epilogue.text(), tile)
            assert within(made, *exact_and_eager(epilogue, x, weights, operands)), name


@needs_triton
@pytest.mark.parametrize(
    "which", ["one after the other", pytest.param("everything", marks=pytest.mark.slow)]
)
def test_its_numbers_through_the_interpreter(which: str, tmp_path: Path) -> None:
    interpret(__file__, tmp_path, which)


if __name__ == "__main__":
    interpreted(sys.argv[1] == "everything")
    sys.stdout.write("interpreted\n")
