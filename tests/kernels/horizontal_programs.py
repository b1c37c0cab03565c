"""Programs of many members, for the tests of their kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from fusepass.fusion.kernel_ir.epilogue import (
    OPERATIONS,
    Epilogue,
    EpilogueOperand,
    EpilogueStep,
    Output,
)
from fusepass.fusion.kernel_ir.pointwise_program import PointwiseProgram

DTYPES = ("float32", "float16", "bfloat16")
TRUTHS = ("logical_not", "logical_and", "logical_or")


def scaled(dtype: str) -> Epilogue:
    """A weight times what a batch norm makes of its variance."""
    operands = EpilogueOperand("full", dtype), EpilogueOperand("column", "float32")
    steps = (
        EpilogueStep("add", ("%1", 1e-5)),
        EpilogueStep("rsqrt", ("%2",)),
        EpilogueStep("mul", ("%0", "%3")),
    )
    return Epilogue(0, operands, steps, (Output("%4", dtype),))


def blended(dtype: str) -> Epilogue:
    """Two tensors, a number and truth values."""
    operands = tuple(
        EpilogueOperand(kind, of)
        for kind, of in (("full", dtype), ("full", dtype), ("scalar", dtype), ("full", "bool"))
    )
    steps = (
        EpilogueStep("sigmoid", ("%0",)),
        EpilogueStep("mul", ("%4", "%1")),
        EpilogueStep("maximum", ("%5", "%2")),
        EpilogueStep("where", ("%3", "%6", float("-inf"))),
    )
    return Epilogue(0, operands, steps, (Output("%7", dtype),))


def stepped(dtype: str) -> Epilogue:
    """Two averages and what comes of them, as a step of Adam has them."""
    operands = tuple(EpilogueOperand("full", of) for of in (dtype, dtype, "float32", "float32"))
    steps = (
        EpilogueStep("mul", ("%2", 0.9)),
        EpilogueStep("add", ("%4", "%1")),
        EpilogueStep("mul", ("%1", "%1")),
        EpilogueStep("add", ("%3", "%6")),
        EpilogueStep("sqrt", ("%7",)),
        EpilogueStep("add", ("%8", 1.0)),
        EpilogueStep("div", ("%5", "%9")),
        EpilogueStep("sub", ("%0", "%10")),
    )
    outputs = Output("%5", "float32"), Output("%11", dtype), Output("%7", "float32")
    return Epilogue(0, operands, steps, outputs)


def every_operation() -> list[Epilogue]:
    """One body for each operation there is."""
    operands = tuple(EpilogueOperand("full", kind) for kind in ("float32", "float16", "bool"))
    made = []
    for op in OPERATIONS:
        count = {"where": 3}.get(op, 2)
        numbers: tuple[str | float, ...] = ("%0", "%1")
        single = "neg abs exp expm1 log log1p sqrt rsqrt reciprocal erf tanh sigmoid relu"
        if op in single.split():
            count = 1
        if op in TRUTHS:
            numbers, count = ("%2", "%2"), 1 if op == "logical_not" else 2
        if op == "where":
            numbers = "%2", "%0", float("inf")
        last = Output("%3", "bool" if op in TRUTHS or op in "eq ne lt le gt ge" else "bfloat16")
        made.append(Epilogue(0, operands, (EpilogueStep(op, numbers[:count]),), (last,)))
    return made


def members(device: str, dtype: str, count: int) -> tuple[list[Tensor], PointwiseProgram]:
    """Members of odd sizes: some no multiple of 16 bytes, some without elements."""
    generator = torch.Generator().manual_seed(1)
    kind = getattr(torch, dtype)
    operands: list[Tensor] = []
    of = []

    def pick(*among: int) -> int:
        return among[int(torch.randint(len(among), (), generator=generator))]

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device)

    for _ in range(count):
        rows, columns = pick(1, 3, 64, 77), pick(0, 1, 7, 64, 147, 576, 2049)
        x = noise(rows * columns + 1).to(kind)[pick(0, 1) :][: rows * columns]
        x = x.view(rows, columns) if pick(0, 1) else x.view(columns, rows).t()
        of.append(pick(0, 1, 2))
        if of[-1] == 2:
            more = [
                torch.empty_strided(x.shape, x.stride(), dtype=d, device=device)
                for d in (kind, torch.float32, torch.float32)
            ]
            for one in more:
                one.copy_(noise(*x.shape).abs())
            operands += [x, *more]
        elif of[-1]:
            more = [
                torch.empty_strided(x.shape, x.stride(), dtype=d, device=device)
                for d in (kind, torch.bool)
            ]
            more[0].copy_(noise(*x.shape))
            more[1].copy_(noise(*x.shape) > 0)
            operands += [x, more[0], noise().to(kind), more[1]]
        else:
            slowest = 0 if x.stride(0) >= x.stride(1) and (x.stride(0), rows) > (1, columns) else 1
            shape = (rows, 1) if slowest == 0 else (1, columns)
            operands += [x, noise(*shape).abs() + 0.1]
    return operands, PointwiseProgram((scaled(dtype), blended(dtype), stepped(dtype)), tuple(of))


def addresses_of(
    operands: list[Tensor], results: list[Tensor], program: PointwiseProgram
) -> list[list[int]]:
    """For each member's operands, then for its results."""
    starts, behind = program.starts, program.result_starts
    return [
        [
            one.data_ptr()
            for one in (
                *operands[starts[i] : starts[i + 1]],
                *results[behind[i] : behind[i + 1]],
            )
        ]
        for i in range(len(program.members))
    ]


def every_operations_operands(device: str) -> tuple[list[Tensor], PointwiseProgram]:
    """For a program of :func:`every_operation`: numbers, and such as are none."""
    bodies = every_operation()
    x = torch.tensor([0.3, -2.0, 0.0, float("nan"), float("inf"), -float("inf"), 1e-20, 7.0, 0.9])
    y = x.flip(0).half()
    operands = [t.to(device) for _ in bodies for t in (x, y, x > 0)]
    return operands, PointwiseProgram(tuple(bodies), tuple(range(len(bodies))))


def agree(got: list[Tensor], want: list[Tensor], dtype: str) -> None:
    tolerance = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype]  # one ulp
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        torch.testing.assert_close(one, other, rtol=tolerance, atol=1e-6, equal_nan=True)


def in_place(device: str, dtype: str) -> tuple[list[Tensor], list[Tensor], PointwiseProgram]:
    """Results that are operands of the same member: what averages become, and what is updated."""
    generator = torch.Generator().manual_seed(2)
    operands: list[Tensor] = []
    results: list[Tensor] = []
    for size in (0, 1, 7, 4096, 4097, 70000) * 3:
        p, g, m, v = (
            torch.randn(size + 1, generator=generator).abs().to(getattr(torch, of)).to(device)[1:]
            for of in (dtype, dtype, "float32", "float32")
        )
        operands += [p, g, m, v]
        results += [m, p, v]
    return operands, results, PointwiseProgram((stepped(dtype),), (0,) * 18)
