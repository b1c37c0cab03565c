"""The kernel of convolutions with an epilogue: its operator, its text, its launches on a device."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code
from torch._subclasses.fake_tensor import FakeTensorMode

from fusepass.fusion.kernel_ir.epilogue import Epilogue, EpilogueOperand, EpilogueStep, Output
from fusepass.kernels.conv import implicit_gemm as kernel
from fusepass.kernels.conv.implicit_gemm_source import ConvShape, ConvTile
from fusepass.numerics import error_bound, half_ulp, passes, rms, rms_error
from tests.kernels.interpreter import interpret, needs_triton

LAST = torch.channels_last


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


class Case:
    """A convolution that makes at least one pixel, with operands of :func:`everything`."""

    def __init__(self, draw: random.Random, dtype: torch.dtype, device: str = "cpu") -> None:
        def pair(*sizes: int) -> tuple[int, int]:
            return draw.choice(sizes), draw.choice(sizes)

        while True:
            self.steps = pair(1, 1, 2, 3), pair(0, 1, 2), pair(1, 1, 2)
            batch, channels = draw.choice([1, 2, 3]), draw.choice([32, 64, 96])
            width, window = draw.choice([16, 48, 80]), pair(1, 3, 3, 5)
            image = draw.randint(1, 13), draw.randint(1, 13)
            sides = zip(image, window, *self.steps, strict=True)
            if all(n + 2 * p - d * (k - 1) >= 1 for n, k, _, p, d in sides):
                break

        def noise(*shape: int) -> Tensor:
            return torch.randn(shape, device=device).to(dtype)

        self.x = noise(batch, channels, *image).to(memory_format=LAST)
        self.weight = (noise(width, channels, *window) * 0.1).to(memory_format=LAST)
        self.shape = kernel.shape_of(self.x, self.weight, *self.steps)
        m, n = batch * self.shape.result[0] * self.shape.result[1], width
        self.epilogue = everything(str(dtype).removeprefix("torch."))
        self.operands = [noise(n), noise(m, 1), noise(m, n), noise(), noise(m, n) > 0]

    def name(self, tile: str) -> str:
        """What the operator is given."""
        return kernel.tile_name(tile, *self.steps)

    def check(self, got: list[Tensor]) -> None:
        """By the error rule."""
        wide = [one if one.dtype is torch.bool else one.double() for one in self.operands]
        given = self.x.double(), self.weight.double(), wide, self.epilogue, *self.steps
        exact = kernel.reference(*given)
        eager = kernel.reference(self.x, self.weight, self.operands, self.epilogue, *self.steps)
        for one, want, theirs in zip(got, exact, eager, strict=True):
            assert one.dtype is want.dtype
            assert one.shape == want.shape
            # The reference does not round the product of float32 results to half types, as eager
            # does; special functions may be off by 2 units in the last place.
            few = 2 if one.dtype is torch.float32 else 1
            bound = error_bound(half_ulp(one.dtype, rms(want)), few * rms_error(theirs, want), None)
            assert passes(rms_error(one, want), bound)


def interpreted() -> None:
    """Through Triton's interpreter, in fp16: it knows no bf16."""
    for seed in range(10):
        torch.manual_seed(seed)
        draw = random.Random(seed)
        case = Case(draw, torch.float16)
        k = draw.choice([16, 32])
        tile = ConvTile(draw.choice([16, 64]), draw.choice([16, 32]), k, 4, 2)
        given = case.x, case.weight, case.operands, case.epilogue.text(), case.name(tile.name)
        case.check(kernel.launch(*given))


@needs_triton
def test_its_numbers_through_the_interpreter(tmp_path: Path) -> None:
    interpret(__file__, tmp_path)


@needs_triton
@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_it_compiles_without_a_gpu(capability: int, dtype: str) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    case = Case(random.Random(1), getattr(torch, dtype))
    made = kernel.kernel(case.epilogue.text(), case.shape, ConvTile(64, 32, 32, 4, 3))
    (config,) = made.configs
    short = {"float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32", "bool": "*i1"}
    kinds = {"x_ptr": short[dtype], "w0_ptr": short[dtype]}
    for letter, some in (("p", case.epilogue.operands), ("o", case.epilogue.outputs)):
        kinds |= {f"{letter}{i}": short[one.dtype] for i, one in enumerate(some)}
    signature = {
        one: "constexpr" if one in config.kwargs else kinds.get(one, "i32")
        for one in made.fn.arg_names
    }
    constants = {(made.fn.arg_names.index(n),): value for n, value in config.kwargs.items()}
    source = ASTSource(made.fn, signature, constants)
    target = GPUTarget("cuda", capability, 32)
    assert "fusepass_conv" in triton.compile(source, target=target).asm["ptx"]


def test_names() -> None:
    tile, steps = ConvTile(128, 64, 32, 4, 5), ((2, 1), (0, 3), (1, 1))
    assert kernel.parse_tile_name(kernel.tile_name(tile.name, *steps)) == (tile, steps)
    assert kernel.parse_tile_name(kernel.tile_name("reference", *map(list, steps))) == (None, steps)


@pytest.mark.parametrize("channels", [32, 64, 96, 512])
@pytest.mark.parametrize("width", [16, 32, 64, 80, 256])
def test_choices(channels: int, width: int) -> None:
    one = (1, 1)
    found = kernel.choices(ConvShape((channels, width), (9, 9), (9, 9), (3, 3), one, one, one))
    assert found
    for tile in found:
        assert channels % tile.k == 0
        assert tile.n <= max(width, 32)


def test_refuses_unsupported_convolutions() -> None:
    def refused(x: Tensor, weight: Tensor, dilation: tuple[int, int] = (1, 1)) -> bool:
        return kernel.refuses(x, weight, dilation) is not None

    with FakeTensorMode():
        x = torch.empty(2, 64, 8, 8, dtype=torch.half).to(memory_format=LAST)
        weight = torch.empty(32, 64, 3, 3, dtype=torch.half)
        assert not refused(x, weight)
        assert refused(x.float(), weight.float())
        assert refused(x, weight.bfloat16())
        assert refused(x, weight[:24])
        assert refused(x[:, :48], weight[:, :48])
        assert not refused(torch.empty(1 << 16, 64, 32, 32, dtype=torch.half), weight)
        assert refused(torch.empty(1, 64, 1 << 13, 1 << 12, dtype=torch.half), weight)
        assert refused(x, torch.empty(1 << 15, 64, 32, 32, dtype=torch.half))
        wide = torch.empty(1, 64, 1, 1 << 15, dtype=torch.half)
        assert refused(wide, weight, (1 << 9, 1))
        assert not refused(wide, weight, (1 << 8, 1))


def test_the_operator() -> None:
    case = Case(random.Random(3), torch.bfloat16)
    args = case.x, [case.weight], case.operands, case.epilogue.text(), case.name("reference")
    torch.library.opcheck(kernel.OPERATOR, args, test_utils=("test_schema", "test_faketensor"))
    case.check(kernel.OPERATOR(*args))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("seed", range(12))
def test_on_a_device(dtype: torch.dtype, seed: int) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    case = Case(draw, dtype, "cuda")
    for tile in draw.sample(kernel.choices(case.shape), k=2):
        given = case.x, case.weight, case.operands, case.epilogue.text(), case.name(tile.name)
        case.check(kernel.launch(*given))


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_under_inductor(mode: str, dynamic: bool) -> None:
    kernel.install_lowering()
    weight = (torch.randn(48, 64, 3, 3, device="cuda") * 0.05).half().to(memory_format=LAST)
    steps = (2, 2), (1, 1), (1, 1)
    silu = Epilogue(
        1,
        (),
        (EpilogueStep("sigmoid", ("%0",)), EpilogueStep("mul", ("%0", "%1"))),
        (Output("%2", "float16"),),
    )
    name = kernel.tile_name("triton conv64x32x64w4s4", *steps)

    def program(x: Tensor) -> list[Any]:
        (made,) = torch.ops.fusepass.conv_region(x, [weight], [], silu.text(), name)
        return [made + 1, made]

    compiled = torch.compile(program, mode=mode)
    code = ""
    for batch in (3, 5, 2) if dynamic else (3, 3, 3):
        x = torch.randn(batch, 64, 9, 11, device="cuda").half().to(memory_format=LAST)
        if dynamic:
            torch._dynamo.mark_dynamic(x, 0)
        results, codes = run_and_get_code(compiled, x)
        code = codes[0] if codes else code
        (want,) = kernel.reference(x.double(), weight.double(), [], silu, *steps)
        for got, exact in zip([one.clone() for one in results], [want + 1, want], strict=True):
            torch.testing.assert_close(got, exact, rtol=2e-3, atol=2e-3)
    assert "fusepass_conv" in code
    assert "ops.fusepass.conv_region" not in code.split("def call")[1]


if __name__ == "__main__":
    interpreted()
    sys.stdout.write("interpreted\n")
