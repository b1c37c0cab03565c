"""The kernel of products of a normalised row: its operator, its text, its launches."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code

from fusepass.fusion.kernel_ir.epilogue import Epilogue, EpilogueOperand, EpilogueStep, Output
from fusepass.fusion.kernel_ir.norm import Norm, normalize, parse
from fusepass.kernels.gemm import normed_gemms as kernel
from fusepass.kernels.gemm.norm_baseline import normalise
from fusepass.kernels.gemm.tiles import is_hopper, ring_of
from fusepass.numerics import error_bound, half_ulp, passes, rms, rms_error
from tests.kernels.interpreter import interpret, needs_triton


def epilogues(dtype: str) -> list[Epilogue]:
    """Epilogues of one product: without operands and with some."""
    row, full = EpilogueOperand("row", dtype), EpilogueOperand("full", dtype)
    steps = (
        EpilogueStep("add", ("%0", "%1")),
        EpilogueStep("relu", ("%3",)),
        EpilogueStep("mul", ("%4", "%2")),
    )
    return [
        Epilogue(1, (), (), (Output("%0", dtype),)),
        Epilogue(1, (row,), (EpilogueStep("add", ("%0", "%1")),), (Output("%2", dtype),)),
        Epilogue(1, (row, full), steps, (Output("%5", dtype), Output("%3", "float32"))),
    ]


def gated(dtype: str) -> Epilogue:
    """``sigmoid(v0 + row) * v1``."""
    steps = (
        EpilogueStep("add", ("%0", "%2")),
        EpilogueStep("sigmoid", ("%3",)),
        EpilogueStep("mul", ("%4", "%1")),
    )
    return Epilogue(2, (EpilogueOperand("row", dtype),), steps, (Output("%5", dtype),))


KINDS = ((False, False), (True, False), (True, True))
"""Whether a norm is centred, and shifted."""


class Case:
    """Products of one row: a pair, one, or several."""

    def __init__(
        self, draw: random.Random, dtype: torch.dtype, products: int, device: str = "cpu"
    ) -> None:
        def noise(*shape: int) -> Tensor:
            return torch.randn(shape, device=device)

        k, between = 8 * draw.randint(1, 90), 8 * draw.randint(0, 2)
        named = str(dtype).removeprefix("torch.")
        widths = [8 * draw.randint(1, 12) for _ in range(products)]
        if products == 2:  # a pair
            widths[1] = widths[0]
            self.epilogues = [gated(named)]
        else:
            self.epilogues = [draw.choice(epilogues(named)) for _ in widths]
        eps, offset = draw.choice([1e-6, 1e-5, 0.5]), draw.choice([0.0, 1.0])
        self.norm = Norm(eps, offset, *draw.choice(KINDS))
        size, middle = draw.choice([0.01, 1, 30]), draw.choice([0, 0, 5])
        self.x = ((noise(1, k) + middle) * size).to(dtype)
        self.weights = [(noise(n, k + between) / k**0.5).to(dtype)[:, :k].t() for n in widths]
        self.operands = [
            noise(k).to(draw.choice([dtype, torch.float32])) for _ in range(self.norm.vectors)
        ]
        for n, one in zip(widths, self.epilogues, strict=False):
            shapes = {"row": (n,), "full": (1, n)}
            self.operands += [noise(*shapes[operand.kind]).to(dtype) for operand in one.operands]

    @property
    def text(self) -> str:
        """The text of its norm and epilogues."""
        return kernel.text_of(self.norm, self.epilogues)

    @property
    def vectors(self) -> list[Tensor]:
        """The vectors of its norm."""
        return self.operands[: self.norm.vectors]

    def check(self, got: list[Tensor]) -> None:
        """By the error rule."""
        wide = [one.double() for one in self.operands]
        weights = [one.double() for one in self.weights]
        exact = kernel.reference(self.x.double(), weights, wide, self.norm, self.epilogues)
        rounded = normalize(self.x, self.vectors, self.norm).to(self.x.dtype).double()
        eager = _behind(rounded, weights, wide[self.norm.vectors :], self.epilogues)
        for one, want, theirs in zip(got, exact, eager, strict=True):
            assert one.shape == want.shape
            assert one.is_contiguous()
            # The reference does not round the product of float32 results to half types, as eager
            # does; special functions may be off by 2 units in the last place.
            few = 2 if one.dtype is torch.float32 else 1
            bound = error_bound(half_ulp(one.dtype, rms(want)), few * rms_error(theirs, want), None)
            assert passes(rms_error(one, want), bound)


def _behind(
    rows: Tensor, weights: list[Tensor], operands: list[Tensor], epilogues: list[Epilogue]
) -> list[Tensor]:
    """Products of a norm that was rounded, as eager has them."""
    from fusepass.kernels.gemm import op, sibling_gemms

    if len(epilogues) == len(weights):
        return sibling_gemms.reference(rows, weights, operands, epilogues)
    return op.reference(rows, weights, operands, epilogues[0])


def _of_large_equal_numbers() -> None:
    """A mean times a scale that is beyond single precision, and columns that are not there."""
    norm, plain = Norm(1e-6, 1.0, True, True), epilogues("float32")[:1]
    x, weight = torch.full((1, 128), 2.0**119), torch.randn(16, 128).t()
    args = x, [weight], [torch.ones(128), torch.randn(128)]
    text = kernel.text_of(norm, plain)
    for tile in kernel.choices(norm, plain):
        (got,) = kernel.launch(*args, text, tile)
        torch.testing.assert_close(got, kernel.reference(*args, norm, plain)[0])


def interpreted() -> None:
    """Through Triton's interpreter, in fp16: it knows no bf16."""
    for seed in range(9):
        torch.manual_seed(seed)
        case = Case(random.Random(seed), torch.float16, seed % 3 + 1)
        for tile in kernel.choices(case.norm, case.epilogues):
            case.check(kernel.launch(case.x, case.weights, case.operands, case.text, tile))
        made = normalise(case.x, case.vectors, case.norm)
        want = normalize(case.x, case.vectors, case.norm)
        torch.testing.assert_close(made.float(), want, rtol=1e-3, atol=1e-6)
    _of_large_equal_numbers()
    for value in (float("nan"), float("inf"), 0.0):
        case.x[0, 3] = value
        args = case.x, case.weights, case.operands
        got = kernel.launch(*args, case.text, kernel.choices(case.norm, case.epilogues)[0])
        for one, want in zip(
            got, kernel.reference(*args, *kernel.parse_text(case.text)), strict=True
        ):
            torch.testing.assert_close(one, want, equal_nan=True, rtol=1e-2, atol=1e-2)


@needs_triton
def test_its_numbers_through_the_interpreter(tmp_path: Path) -> None:
    interpret(__file__, tmp_path)


@needs_triton
@pytest.mark.sampled(4)
@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("products", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_it_compiles_without_a_gpu(capability: int, products: int, kind: tuple[bool, bool]) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    every = [gated("bfloat16")] if products == 2 else epilogues("bfloat16")[:1] * products
    norm = Norm(1e-6, 0.0, *kind)
    made = kernel.kernel(kernel.text_of(norm, every), kernel.choices(norm, every)[0], 1024)
    (config,) = made.configs
    names = made.fn.arg_names
    pointers = [n for n in names if n.endswith("_ptr") or (n[0] in "po" and n[1].isdigit())]
    kinds = dict.fromkeys(pointers, "*bf16")
    signature = {n: "constexpr" if n in config.kwargs else kinds.get(n, "i32") for n in names}
    constants = {(names.index(n),): value for n, value in config.kwargs.items()}
    aligned = {*kinds, "K", "sx", "sw"}
    whole = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if n in aligned}
    source = ASTSource(made.fn, signature, constants, whole)
    ptx = triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm["ptx"]
    assert "rsqrt" in ptx
    assert ", 0x10" in ptx or ".v4" in ptx  # 16 bytes at once


def test_texts() -> None:
    every = epilogues("float16")
    for norm in (Norm(1e-6, 1.0), *(Norm(1e-5, 0.0, *kind) for kind in KINDS)):
        text = kernel.text_of(norm, every)
        assert kernel.parse_text(text) == (norm, every)
        assert "\n" not in text  # it stands in comments of Inductor's code
    assert Norm(1e-6, 1.0).text() == '{"eps":1e-06,"offset":1.0}'  # choices are kept under it


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"eps":0.0,"offset":0.0}',
        '{"eps":"a","offset":0}',
        '{"eps":1e-6,"offset":0.0,"shifted":true}',
    ],
)
def test_no_norms(text: str) -> None:
    with pytest.raises(ValueError, match="norm"):
        parse(text)


def test_refuses_unsupported_norms() -> None:
    plain = epilogues("float16")[:1]
    x, gain, weight = torch.randn(1, 16).half(), torch.ones(16), torch.randn(24, 16).half().t()

    def refused(x: Tensor, *weights: Tensor, centred: bool = False) -> bool:
        norm = Norm(1e-6, centred=centred)
        return kernel.refuses(x, weights, [gain], norm, plain * len(weights)) is not None

    assert not refused(x, weight, weight[:, :8])
    assert not refused(x, weight)
    assert refused(x.expand(2, 16), weight)
    assert refused(x[:0], weight)
    assert refused(x.float(), weight.float())
    assert refused(x, weight.bfloat16())
    assert refused(x, weight.contiguous())
    assert refused(x, weight[:, :9])
    assert refused(x[:, :12], weight[:12])
    wide, long = torch.randn(1, 16392).half(), torch.randn(24, 16392).half().t()
    assert not refused(wide, long)
    assert refused(wide, long, centred=True)
    assert not refused(wide[:, :16384].clone(), long[:16384], centred=True)
    pair = kernel.refuses(x, [weight, weight], [gain, gain], Norm(1e-6), [gated("float16")])
    assert pair is None
    apart = torch.randn(24, 32).half()[:, :16].t()
    several = [weight, apart], [gain, gain], Norm(1e-6), [gated("float16")]
    assert kernel.refuses(x, *several) is not None


@pytest.mark.parametrize("products", [1, 2, 3])
def test_the_operator(products: int) -> None:
    case = Case(random.Random(3), torch.bfloat16, products)
    args = case.x, case.weights, case.operands, case.text, "reference"
    torch.library.opcheck(kernel.OPERATOR, args, test_utils=("test_schema", "test_faketensor"))
    case.check(kernel.OPERATOR(*args))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("products", [1, 2, 3, 8])
def test_on_a_device(dtype: torch.dtype, products: int) -> None:
    for seed in range(4 if products > 2 else 12):
        torch.manual_seed(seed)
        case = Case(random.Random(seed), dtype, products, "cuda")
        chosen = [*kernel.choices(case.norm, case.epilogues)]
        ring = ring_of(case.epilogues[0])
        if is_hopper(case.x.device) and ring is not None:
            chosen.append(ring)
        for tile in chosen:
            case.check(kernel.launch(case.x, case.weights, case.operands, case.text, tile))
        made = normalise(case.x, case.vectors, case.norm)
        want = normalize(case.x, case.vectors, case.norm).to(dtype)
        torch.testing.assert_close(made, want)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize(
    ("products", "form"), [(2, "row"), (3, "row"), (1, "ring"), (2, "ring"), (3, "ring")]
)
def test_under_inductor(mode: str, products: int, form: str) -> None:
    if form == "ring" and not is_hopper(torch.device("cuda")):
        pytest.skip("needs a Hopper device")
    kernel.install_lowering()
    case = Case(random.Random(5), torch.float16, products, "cuda")
    tile, text = kernel.choices(case.norm, case.epilogues)[0].name, case.text
    if form == "ring":
        ring = ring_of(case.epilogues[0])
        assert ring is not None
        tile = ring.name
    weights, operands = case.weights, case.operands

    def program(x: Tensor) -> list[Tensor]:
        made = torch.ops.fusepass.normed_gemms(x, weights, operands, text, tile)
        return [one + 0 for one in made]

    compiled = torch.compile(program, mode=mode)
    code = ""
    for _ in range(3):
        results, codes = run_and_get_code(compiled, case.x)
        code = codes[0] if codes else code
        case.check([one.clone() for one in results])
    assert "ops.fusepass.normed_gemms" not in code.split("def call")[1]


if __name__ == "__main__":
    interpreted()
    sys.stdout.write("interpreted\n")
