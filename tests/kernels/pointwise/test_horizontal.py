"""The kernel of many members: its reference, its text for every device, its operators."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code

from fusepass.fusion.kernel_ir.epilogue import Epilogue, EpilogueOperand, EpilogueStep, Output
from fusepass.fusion.kernel_ir.pointwise_program import PointwiseProgram, parse
from fusepass.kernels.pointwise import horizontal as kernel
from fusepass.kernels.pointwise import horizontal_launch as launching
from fusepass.kernels.pointwise.horizontal_source import NAME, source
from tests.kernels.horizontal_programs import (
    DTYPES,
    agree,
    blended,
    every_operation,
    every_operations_operands,
    in_place,
    members,
    scaled,
)
from tests.kernels.nvrtc import ARCHITECTURES, compile_error, needs_nvrtc

SIZES = {"small": (launching._SMALL, 2), "large": (launching._LARGE, 4)}  # places, rounds


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_reference_is_what_the_members_say(dtype: str) -> None:
    operands, program = members("cpu", dtype, 30)
    got = torch.ops.fusepass.horizontal(operands, program.text())
    starts, results = program.starts, program.result_starts
    assert len(got) == results[-1]
    for i, body in enumerate(program.members):
        given = [x.float() for x in operands[starts[i] : starts[i + 1]]]
        made = got[results[i] : results[i + 1]]
        if body == 0:
            want = [given[0] * (given[1] + 1e-5).rsqrt()]
        elif body == 1:
            larger = torch.maximum(given[0].sigmoid() * given[1], given[2])
            want = [larger.where(given[3] != 0, -torch.inf)]
        else:
            first, second = given[2] * 0.9 + given[1], given[3] + given[1] ** 2
            want = [first, given[0] - first / (second.sqrt() + 1), second]
        for one, right in zip(made, want, strict=True):
            assert one.stride() == operands[starts[i]].stride()
            agree([one], [torch.empty_like(one).copy_(right)], dtype)


def test_the_fake_says_what_the_operator_gives() -> None:
    operands, program = members("cpu", "float16", 12)
    torch.library.opcheck(
        torch.ops.fusepass.horizontal.default,
        (operands, program.text()),
        test_utils=("test_schema", "test_faketensor"),
    )
    operands, results, program = in_place("cpu", "float16")
    torch.library.opcheck(
        torch.ops.fusepass.horizontal_into.default,
        (results, operands, program.text()),
        test_utils=("test_faketensor",),  # that of schemas takes results for operands of others
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"bodies":[],"members":[0]}',
        PointwiseProgram((Epilogue(1, (), (), (Output("%0", "float32"),)),), (0,)).text(),
        PointwiseProgram((scaled("float32"),), (1,)).text(),
        PointwiseProgram(
            (Epilogue(0, (EpilogueOperand("row", "bool"),), (), (Output("%0", "bool"),)),), ()
        ).text(),
    ],
)
def test_malformed_programs(text: str) -> None:
    with pytest.raises(ValueError, match="malformed"):
        parse(text)


def test_too_few_operands() -> None:
    with pytest.raises(ValueError, match="1 operands for members that read 2"):
        torch.ops.fusepass.horizontal(
            [torch.ones(2, 2)], PointwiseProgram((scaled("float32"),), (0,)).text()
        )


@needs_nvrtc
@pytest.mark.sampled(6)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("size", SIZES)
def test_kernel_compiles_for_architecture(architecture: str, size: str) -> None:
    bodies = [*every_operation(), *map(scaled, DTYPES), *map(blended, DTYPES)]
    places, rounds = SIZES[size]
    text = source(bodies, *places, rounds)
    assert NAME in text
    assert compile_error(text, architecture) is None


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_results_in_the_place_of_operands(dtype: str) -> None:
    operands, results, program = in_place("cuda", dtype)
    want = kernel.reference(operands, program)
    torch.ops.fusepass.horizontal_into(results, operands, program.text())
    agree(results, want, dtype)


@pytest.mark.gpu
def test_weights_that_change_between_calls_and_streams() -> None:
    """Scaled for products alone, so in memory that is kept; each call has its own numbers."""
    kernel.install_lowering()
    count, size = 12, 64
    scale = Epilogue(
        0,
        (EpilogueOperand("full", "float16"), EpilogueOperand("column", "float32")),
        (EpilogueStep("mul", ("%0", "%1")),),
        (Output("%2", "float16"),),
    )
    text = PointwiseProgram((scale,), (0,) * count).text()
    weights = [torch.randn(size, size, device="cuda").half() * 0.3 for _ in range(count)]
    scales = [torch.rand(size, 1, device="cuda") for _ in range(count)]

    def network(x: Tensor) -> Tensor:
        given = [one for pair in zip(weights, scales, strict=True) for one in pair]
        for weight in torch.ops.fusepass.horizontal(given, text):
            x = (x @ weight).relu()
        return x

    compiled = torch.compile(network)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        x = torch.randn(32, size, device="cuda").half() * 0.1
        _, (code,) = run_and_get_code(compiled, x)
        assert code.split("def call")[1].count("empty_strided_cuda((64, 64)") == 0
        with torch.cuda.graph(graph):
            captured = compiled(x)
        for step in range(6):
            with torch.cuda.stream(
                torch.cuda.Stream() if step % 2 else torch.cuda.current_stream()
            ):
                torch.cuda.synchronize()
                for weight in weights:
                    weight.data.mul_(1 / 0.9 if step % 2 else 0.9)  # 0.28 of the result, and back
                torch.testing.assert_close(compiled(x), network(x), rtol=2e-2, atol=1e-3)
                graph.replay()
                torch.testing.assert_close(captured, network(x), rtol=2e-2, atol=1e-3)
                torch.cuda.synchronize()


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_under_inductor(mode: str) -> None:
    kernel.install_lowering()
    operands, program = members("cuda", "float16", 40)

    def together(given: list[Tensor]) -> list[Tensor]:
        made = torch.ops.fusepass.horizontal(
            [one.neg().neg() for one in given[:1]] + given[1:], text
        )
        return [one.clone() if i % 3 else one for i, one in enumerate(made)]

    text = program.text()
    compiled = torch.compile(together, mode=mode)
    with torch.no_grad():
        _, codes = run_and_get_code(compiled, operands)
        for _ in range(3):
            for operand in operands:
                if operand.is_floating_point():
                    operand.mul_(0.9)
            agree(
                [one.clone() for one in compiled(operands)],
                kernel.reference(operands, program),
                "float16",
            )
    (code,) = codes
    assert ".make_launcher(" in code
    assert "ops.fusepass.horizontal" not in code.split("def call")[1]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 60, 1500])
def test_on_a_device(dtype: str, count: int) -> None:
    operands, program = members("cuda", dtype, count)
    got = torch.ops.fusepass.horizontal(operands, program.text())
    agree(got, kernel.reference(operands, program), dtype)


@pytest.mark.gpu
def test_every_operation_on_a_device() -> None:
    operands, program = every_operations_operands("cuda")
    got = torch.ops.fusepass.horizontal(operands, program.text())
    agree(got, kernel.reference(operands, program), "bfloat16")


@pytest.mark.gpu
def test_in_a_cuda_graph() -> None:
    operands, program = members("cuda", "float16", 40)
    torch.ops.fusepass.horizontal(operands, program.text())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = torch.ops.fusepass.horizontal(operands, program.text())
    torch.ops.fusepass.horizontal([torch.zeros_like(x) for x in operands], program.text())
    for operand in operands:
        if operand.is_floating_point():
            operand.mul_(0.5)
    graph.replay()
    agree(got, kernel.reference(operands, program), "float16")
