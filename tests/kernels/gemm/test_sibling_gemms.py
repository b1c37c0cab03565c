"""The kernel of several products of one operand: its operator, its text, its launches."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code

from fusepass.fusion.kernel_ir.epilogue import Epilogue, EpilogueOperand, EpilogueStep, Output
from fusepass.kernels.gemm import sibling_gemms as kernel
from fusepass.kernels.gemm.tiles import Tile
from fusepass.numerics import error_bound, half_ulp, passes, rms, rms_error
from tests.kernels.interpreter import interpret, needs_triton


def epilogues(dtype: str) -> list[Epilogue]:
    """Epilogues with no, one and several operands, and one or two results."""
    row, full = EpilogueOperand("row", dtype), EpilogueOperand("full", dtype)
    several = (row, full, EpilogueOperand("column", "float32"))
    steps = (
        EpilogueStep("add", ("%0", "%1")),
        EpilogueStep("mul", ("%4", "%3")),
        EpilogueStep("sub", ("%5", "%2")),
    )
    return [
        Epilogue(1, (), (), (Output("%0", dtype),)),
        Epilogue(1, (row,), (EpilogueStep("add", ("%0", "%1")),), (Output("%2", dtype),)),
        Epilogue(1, several, steps, (Output("%6", dtype), Output("%4", "float32"))),
    ]


def as_tf32(matrix: Tensor) -> Tensor:
    """Rounded to the 10 bits behind the point that tensor cores read, as cuBLAS does."""
    return ((matrix.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


class Case:
    """Products of one operand, with the epilogues in any order."""

    def __init__(
        self, draw: random.Random, dtype: torch.dtype, rows: int, device: str = "cpu"
    ) -> None:
        def noise(*shape: int) -> Tensor:
            return torch.randn(shape, device=device)

        k, apart = 8 * draw.randint(1, 20), 8 * draw.randint(0, 2)
        widths = [8 * draw.randint(1, 12) for _ in range(draw.randint(2, kernel.MOST))]
        self.x = noise(rows, k + apart).to(dtype)[:, :k]
        between = 8 * draw.randint(0, 2)
        self.weights = [(noise(n, k + between) / k**0.5).to(dtype)[:, :k].t() for n in widths]
        known = epilogues(str(dtype).removeprefix("torch."))
        self.epilogues = [draw.choice(known) for _ in widths]
        self.operands: list[Tensor] = []
        for n, one in zip(widths, self.epilogues, strict=True):
            shapes = {"row": (n,), "full": (rows, n + apart), "column": (rows, 1)}
            self.operands += [
                noise(*shapes[operand.kind]).to(getattr(torch, operand.dtype))[..., :n]
                for operand in one.operands
            ]

    @property
    def text(self) -> str:
        """The text of its epilogues."""
        return kernel.text_of(self.epilogues)

    def check(self, got: list[Tensor]) -> None:
        """By the error rule."""
        wide = [one.double() for one in self.operands]
        truth = [one.double() for one in self.weights]
        exact = kernel.reference(self.x.double(), truth, wide, self.epilogues)
        x, weights = self.x, self.weights
        if x.dtype is torch.float32:  # a library may compute such sizes in full single precision
            x, weights = as_tf32(x), [as_tf32(one) for one in weights]
        eager = kernel.reference(x, weights, self.operands, self.epilogues)
        for one, want, theirs in zip(got, exact, eager, strict=True):
            assert one.dtype is theirs.dtype
            assert one.shape == want.shape
            assert one.is_contiguous()
            # The reference does not round the product of float32 results to half types, as eager
            # does; special functions may be off by 2 units in the last place.
            few = 2 if one.dtype is torch.float32 else 1
            bound = error_bound(half_ulp(one.dtype, rms(want)), few * rms_error(theirs, want), None)
            assert passes(rms_error(one, want), bound)


def interpreted() -> None:
    """Through Triton's interpreter, in fp16 and fp32: it knows no bf16."""
    for seed in range(7):
        torch.manual_seed(seed)
        draw = random.Random(seed)
        rows = (1, 3, 40, 70)[seed % 4]
        case = Case(draw, torch.float16 if seed < 4 else torch.float32, rows)
        tiles = [Tile(draw.choice([16, 32, 64]), draw.choice([16, 32]), 32, 4, 2, form="rows")]
        if rows < 4:
            tiles.append(Tile(1, 16, 64, 4, 2, form="row"))
        for tile in tiles:
            case.check(kernel.launch(case.x, case.weights, case.operands, case.text, tile))


@needs_triton
def test_its_numbers_through_the_interpreter(tmp_path: Path) -> None:
    interpret(__file__, tmp_path)


@needs_triton
@pytest.mark.sampled(4)
@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("rows", [1, 16, 300])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_it_compiles_without_a_gpu(capability: int, rows: int, dtype: torch.dtype) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    name, short = str(dtype).removeprefix("torch."), {"bfloat16": "*bf16", "float32": "*fp32"}
    every = epilogues(name)
    made = kernel.kernel(kernel.text_of(every), kernel.choices(rows, dtype.itemsize)[0])
    (config,) = made.configs
    kinds = dict.fromkeys(("x_ptr", *(f"w{i}_ptr" for i in range(len(every)))), short[name])
    for i, one in enumerate(every):
        for letter, some in (("p", one.operands), ("o", one.outputs)):
            kinds |= {f"{letter}{j}_{i}": short[each.dtype] for j, each in enumerate(some)}
    names = made.fn.arg_names
    signature = {n: "constexpr" if n in config.kwargs else kinds.get(n, "i32") for n in names}
    constants = {(names.index(n),): value for n, value in config.kwargs.items()}
    aligned = {*kinds, "K", "sx", "sw"}
    whole = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if n in aligned}
    source = ASTSource(made.fn, signature, constants, whole)
    ptx = triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm["ptx"]
    assert "fusepass_siblings" in ptx
    assert rows == 1 or ", 0x10" in ptx  # 16 bytes at once, though which weight is known late
    assert ("tf32" in ptx) == (rows > 1 and dtype is torch.float32)


def test_texts() -> None:
    every = epilogues("float16")
    scaled = Epilogue(
        1, (), (EpilogueStep("maximum", ("%0", -math.inf)),), (Output("%1", "float16"),)
    )
    text = kernel.text_of([*every, scaled])
    assert kernel.parse_texts(text) == [*every, scaled]
    assert "\n" not in text  # it stands in comments of Inductor's code
    given = list(kernel.split_operands("abc", range(4), every))
    assert [(w, list(some)) for w, some, _ in given] == [("a", []), ("b", [0]), ("c", [1, 2, 3])]


@pytest.mark.parametrize("rows", [1, 2, 16, 17, 64, 65, 256, 257, 5000])
def test_choices(rows: int) -> None:
    found = kernel.choices(rows)
    single = kernel.choices(rows, 4)
    assert [one.bytes_in_flight(1) for one in single] == [one.bytes_in_flight(1) for one in found]
    assert not {one.name for one in single} & {one.name for one in found}
    assert len(found) == len(set(found)) >= 2
    assert {tile.form for tile in found} == {"row" if rows == 1 else "rows"}
    if rows <= 64:
        assert all(rows <= tile.m < max(2 * rows, 32) for tile in found)


def test_refuses_unsupported_siblings() -> None:
    plain = epilogues("float16")[:1]
    x, weight = torch.randn(4, 16).half(), torch.randn(24, 16).half().t()

    def refused(x: Tensor, *weights: Tensor) -> bool:
        return kernel.refuses(x, weights, [], plain * len(weights)) is not None

    assert not refused(x, weight, weight[:, :8])
    assert not refused(x.float(), weight.float(), weight.float())
    assert refused(x.double(), weight.double(), weight.double())
    assert refused(x.float(), weight, weight)
    assert refused(x, weight, weight.bfloat16())
    assert refused(x, weight, weight.contiguous())
    assert refused(x, weight, torch.randn(8, 32).half()[:, :16].t())
    assert refused(x, weight, weight[:, :9])
    assert refused(x[:, :12], weight[:12], weight[:12])
    assert refused(x.t().contiguous().t(), weight, weight)
    assert refused(x, weight, torch.randn(8, 16).half().t()[:, :0])


def test_the_operator() -> None:
    case = Case(random.Random(3), torch.bfloat16, 9)
    args = case.x, case.weights, case.operands, case.text, "reference"
    torch.library.opcheck(kernel.OPERATOR, args, test_utils=("test_schema", "test_faketensor"))
    case.check(kernel.OPERATOR(*args))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rows", [1, 5, 16, 30, 64, 65, 300, 1000])
def test_on_a_device(dtype: torch.dtype, rows: int, tf32: None) -> None:
    torch.manual_seed(rows)
    case = Case(random.Random(rows), dtype, rows, "cuda")
    for tile in kernel.choices(rows, dtype.itemsize):
        case.check(kernel.launch(case.x, case.weights, case.operands, case.text, tile))


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_under_inductor(mode: str, dynamic: bool) -> None:
    kernel.install_lowering()
    plain, biased, _ = epilogues("float16")
    text, tile = kernel.text_of([biased, plain]), kernel.choices(70)[0].name
    weights = [(torch.randn(n, 64, device="cuda") / 8).half().t() for n in (48, 24)]
    bias = torch.randn(48, device="cuda").half()

    def program(x: Tensor) -> list[Tensor]:
        one, other = torch.ops.fusepass.sibling_gemms(x, weights, [bias], text, tile)
        return [one + 1, other]

    compiled = torch.compile(program, mode=mode)
    code = ""
    for rows in (70, 90, 31) if dynamic else (70, 70, 70):
        x = torch.randn(rows, 64, device="cuda").half()
        if dynamic:
            torch._dynamo.mark_dynamic(x, 0)
        results, codes = run_and_get_code(compiled, x)
        code = codes[0] if codes else code
        first, second = (x.double() @ weight.double() for weight in weights)
        want = [first + bias.double() + 1, second]
        for got, exact in zip([one.double() for one in results], want, strict=True):
            torch.testing.assert_close(got, exact, rtol=2e-3, atol=4e-3)
    assert "fusepass_siblings" in code
    assert "ops.fusepass.sibling_gemms" not in code.split("def call")[1]


if __name__ == "__main__":
    interpreted()
    sys.stdout.write("interpreted\n")
