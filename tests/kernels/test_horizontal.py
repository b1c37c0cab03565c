"""The kernel of many members: its reference, its text for every device, its operator."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code
from torch._subclasses.fake_tensor import FakeTensorMode

from fusepass.graph.epilogue import OPERATIONS, Epilogue, Operand, Output, Step
from fusepass.graph.horizontal import Program, parse
from fusepass.kernels import horizontal as kernel
from fusepass.kernels import horizontal_launch as launching
from fusepass.kernels import kept_memory
from fusepass.kernels.horizontal_source import NAME, source
from fusepass.kernels.kept_memory import KeptMemory
from tests.kernels import on_host as host
from tests.kernels.nvrtc import ARCHITECTURES, compile_error, needs_nvrtc
from tests.kernels.on_host import needs_compiler

DTYPES = ("float32", "float16", "bfloat16")
TRUTHS = ("logical_not", "logical_and", "logical_or")


def scaled(dtype: str) -> Epilogue:
    """A weight times what a batch norm makes of its variance."""
    operands = Operand("full", dtype), Operand("column", "float32")
    steps = Step("add", ("%1", 1e-5)), Step("rsqrt", ("%2",)), Step("mul", ("%0", "%3"))
    return Epilogue(0, operands, steps, (Output("%4", dtype),))


def blended(dtype: str) -> Epilogue:
    """Two tensors, a number and truth values."""
    operands = tuple(
        Operand(kind, of)
        for kind, of in (("full", dtype), ("full", dtype), ("scalar", dtype), ("full", "bool"))
    )
    steps = (
        Step("sigmoid", ("%0",)),
        Step("mul", ("%4", "%1")),
        Step("maximum", ("%5", "%2")),
        Step("where", ("%3", "%6", float("-inf"))),
    )
    return Epilogue(0, operands, steps, (Output("%7", dtype),))


def stepped(dtype: str) -> Epilogue:
    """Two averages and what comes of them, as a step of Adam has them."""
    operands = tuple(Operand("full", of) for of in (dtype, dtype, "float32", "float32"))
    steps = (
        Step("mul", ("%2", 0.9)),
        Step("add", ("%4", "%1")),
        Step("mul", ("%1", "%1")),
        Step("add", ("%3", "%6")),
        Step("sqrt", ("%7",)),
        Step("add", ("%8", 1.0)),
        Step("div", ("%5", "%9")),
        Step("sub", ("%0", "%10")),
    )
    outputs = Output("%5", "float32"), Output("%11", dtype), Output("%7", "float32")
    return Epilogue(0, operands, steps, outputs)


def every_operation() -> list[Epilogue]:
    """One body for each operation there is."""
    operands = tuple(Operand("full", kind) for kind in ("float32", "float16", "bool"))
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
        made.append(Epilogue(0, operands, (Step(op, numbers[:count]),), (last,)))
    return made


def members(device: str, dtype: str, count: int) -> tuple[list[Tensor], Program]:
    """Of odd sizes, some off the multiples of 16 bytes, some of no elements."""
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
    return operands, Program((scaled(dtype), blended(dtype), stepped(dtype)), tuple(of))


def addresses_of(
    operands: list[Tensor], results: list[Tensor], program: Program
) -> list[list[int]]:
    """Of each member's operands, then of its results."""
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


def every_operations_operands(device: str) -> tuple[list[Tensor], Program]:
    """For a program of :func:`every_operation`: numbers, and such as are none."""
    bodies = every_operation()
    x = torch.tensor([0.3, -2.0, 0.0, float("nan"), float("inf"), -float("inf"), 1e-20, 7.0, 0.9])
    y = x.flip(0).half()
    operands = [t.to(device) for _ in bodies for t in (x, y, x > 0)]
    return operands, Program(tuple(bodies), tuple(range(len(bodies))))


def agree(got: list[Tensor], want: list[Tensor], dtype: str) -> None:
    tolerance = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype]  # one ulp
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        torch.testing.assert_close(one, other, rtol=tolerance, atol=1e-6, equal_nan=True)


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


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"bodies":[],"members":[0]}',
        Program((Epilogue(1, (), (), (Output("%0", "float32"),)),), (0,)).text(),
        Program((scaled("float32"),), (1,)).text(),
        Program((Epilogue(0, (Operand("row", "bool"),), (), (Output("%0", "bool"),)),), ()).text(),
    ],
)
def test_malformed_programs(text: str) -> None:
    with pytest.raises(ValueError, match="malformed"):
        parse(text)


def test_too_few_operands() -> None:
    with pytest.raises(ValueError, match="1 operands for members that read 2"):
        torch.ops.fusepass.horizontal(
            [torch.ones(2, 2)], Program((scaled("float32"),), (0,)).text()
        )


def test_parameters_fit() -> None:
    """Into what drivers take: 4 KiB in any case, 32764 bytes since CUDA 12.1."""
    assert ctypes.sizeof(launching._table(*launching._SMALL)) <= 4096
    assert ctypes.sizeof(launching._table(*launching._LARGE)) <= 32764


@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_it_compiles_for(architecture: str) -> None:
    bodies = [*every_operation(), *map(scaled, DTYPES), *map(blended, DTYPES)]
    for places in (launching._SMALL, launching._LARGE):
        text = source(bodies, *places)
        assert NAME in text
        assert compile_error(text, architecture) is None


@pytest.mark.parametrize("count", [1, 30, 700])
def test_what_generated_code_calls(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made from its text, it launches each member once, with its own addresses."""
    operands, program = members("cpu", "float16", count)
    monkeypatch.setattr(kernel, "kernel_calls_tested", lambda: True)
    fakes = FakeTensorMode()
    with fakes:
        on_device = [
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda:0")
            for x in operands
        ]
    call = kernel._call(on_device, program.text())
    assert call is not None
    assert (call.module, call.maker) == (launching.__name__, "filler")
    assert kernel._call(operands, program.text()) is None  # not on the CPU
    want = kernel.reference(operands, program)
    said = [(dtype, tuple(shape), tuple(strides)) for dtype, shape, strides in call.outputs]
    assert said == [(one.dtype, tuple(one.shape), one.stride()) for one in want]

    launched: list[tuple[int, Any]] = []
    monkeypatch.setattr(launching, "_kernel", lambda *given: "kernel")
    monkeypatch.setattr(
        launching.nvrtc, "launch", lambda kernel, blocks, n, table, at: launched.append((at, table))
    )
    launching._launches.cache_clear()
    fill = launching.filler(*eval(repr(call.arguments)))
    for _ in range(2):
        fill(*operands, *want)
        got = []
        for device, table in launched:
            assert device == 0
            for i in range(table.count):
                last = table.at[i + 1] if i + 1 < table.count else None
                got.append(list(table.address[table.at[i] : last]))
        expected = addresses_of(operands, want, program)
        for addresses, given in zip(got, expected, strict=True):
            assert addresses[: len(given)] == given
        launched.clear()
    launching._launches.cache_clear()


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The operator's CUDA way, for tensors on the CPU."""
    empty = torch.empty_strided
    for owner, name, there in (
        (launching.nvrtc, "compiled", host.compiled),
        (launching.nvrtc, "launch", host.launch),
        (torch.cuda, "device", lambda device: contextlib.nullcontext()),
        (
            launching.nvrtc,
            "empty_on_cuda",
            lambda likes, shapes, dtypes: [
                empty(shape, like.stride(), dtype=dtype)
                for like, shape, dtype in zip(likes, shapes, dtypes, strict=True)
            ],
        ),
    ):
        monkeypatch.setattr(owner, name, there)
    caches = launching._launches, launching._kernel
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 60, 1500])
def test_the_kernel_on_the_host(dtype: str, count: int, on_host: None) -> None:
    operands, program = members("cpu", dtype, count)
    agree(kernel.launch(operands, program.text()), kernel.reference(operands, program), dtype)


def in_place(device: str, dtype: str) -> tuple[list[Tensor], list[Tensor], Program]:
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
    return operands, results, Program((stepped(dtype),), (0,) * 18)


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
def test_results_in_the_place_of_operands_on_the_host(dtype: str, on_host: None) -> None:
    operands, results, program = in_place("cpu", dtype)
    want = kernel.reference(operands, program)
    shapes, columns = launching.sizes_of(operands, launching.plan_of(program.text()))
    launching.filler(program.text(), shapes, columns, 0)(*operands, *results)
    agree(results, want, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_results_in_the_place_of_operands(dtype: str) -> None:
    operands, results, program = in_place("cuda", dtype)
    want = kernel.reference(operands, program)
    torch.ops.fusepass.horizontal_into(results, operands, program.text())
    agree(results, want, dtype)


@needs_compiler
def test_every_operation_on_the_host(on_host: None) -> None:
    operands, program = every_operations_operands("cpu")
    got = kernel.launch(operands, program.text())
    agree(got, kernel.reference(operands, program), "bfloat16")


def test_results_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same memory as long as nothing is captured; a table is filled when something moved."""
    operands, program = members("cpu", "float16", 12)
    want = kernel.reference(operands, program)
    plan, captured = launching.plan_of(program.text()), [False]
    shapes, columns = launching.sizes_of(operands, plan)
    own = tuple((i, str(want[i].dtype)[6:], want[i].stride()) for i in (1, 2, 7, 11))
    launched: list[list[int]] = []
    filled: list[int] = []
    monkeypatch.setattr(launching, "_kernel", lambda *given: "kernel")
    for name, function in {
        "launch": lambda kernel, blocks, n, table, at: launched.append(list(table.address)),
        "is_capturing": lambda: captured[0],
        "stream": lambda device: 3,
        "empty_of": lambda kinds: [
            torch.empty_strided(s, t, dtype=getattr(torch, d)) for d, s, t in kinds
        ],
    }.items():
        monkeypatch.setattr(launching.nvrtc, name, function)
    monkeypatch.setattr(kept_memory, "_bound", lambda device: 1 << 30)
    monkeypatch.setattr(
        launching, "KeptMemory", lambda kinds, device: KeptMemory(kinds, torch.device("cpu"))
    )
    real = launching._filled
    monkeypatch.setattr(launching, "_filled", lambda *given: (filled.append(1), real(*given))[1])
    launching._launches.cache_clear()
    fill = launching.filler(program.text(), shapes, columns, 0, own)
    given = [one for i, one in enumerate(want) if i not in (1, 2, 7, 11)]

    def agrees(mine: list[Tensor]) -> None:
        (addresses,) = launched
        for i, one in zip((1, 2, 7, 11), mine, strict=True):
            assert (one.dtype, one.shape) == (want[i].dtype, want[i].shape)
            assert one.stride() == want[i].stride()
        results = [*given]
        for place, one in zip((1, 2, 7, 11), mine, strict=True):
            results.insert(place, one)
        expected = [one for some in addresses_of(operands, results, program) for one in some]
        assert addresses[: len(expected)] == expected
        launched.clear()

    first = fill(*operands, *given)
    agrees(first)
    again = fill(*operands, *given)
    assert [one.data_ptr() for one in again] == [one.data_ptr() for one in first]
    agrees(again)
    assert len(filled) == 1
    operands[0] = operands[0].clone()
    agrees(fill(*operands, *given))
    assert len(filled) == 2
    captured[0] = True
    fresh = fill(*operands, *given)
    assert {one.data_ptr() for one in fresh if one.numel()}.isdisjoint(
        one.data_ptr() for one in first
    )
    agrees(fresh)
    launching._launches.cache_clear()


@pytest.mark.gpu
def test_weights_that_change_between_calls_and_streams() -> None:
    """Scaled for products alone, so in memory that is kept; each call has its own numbers."""
    kernel.install_lowering()
    count, size = 12, 64
    scale = Epilogue(
        0,
        (Operand("full", "float16"), Operand("column", "float32")),
        (Step("mul", ("%0", "%1")),),
        (Output("%2", "float16"),),
    )
    text = Program((scale,), (0,) * count).text()
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
    assert ".filler(" in code
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
