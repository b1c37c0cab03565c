"""On a GPU: the same bits wherever a tensor is made, no copy left, nobody waits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import fusepass
from fusepass.testing.compare import assert_same

from .host_chains import DYNAMIC, MADE, Program
from .host_chains_kept import KEPT, LEFT

pytestmark = pytest.mark.gpu
SIZES = (1, 2, 3, 31, 33, 257, 1000, 4097, 100003)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

Made = Callable[[int, torch.dtype], Tensor]
TABLE: dict[str, tuple[tuple[torch.dtype, ...], Made]] = {
    "zeros": ((*INTEGERS, *FLOATS, torch.bool), lambda n, d: torch.zeros(n, dtype=d)),
    "ones": ((*INTEGERS, *FLOATS, torch.bool), lambda n, d: torch.ones(n, dtype=d)),
    "full": ((*INTEGERS, *FLOATS), lambda n, d: torch.full((n,), 7, dtype=d)),
    "minus infinity": (FLOATS, lambda n, d: torch.full((n,), float("-inf"), dtype=d)),
    "a third": ((torch.float32, torch.float64), lambda n, d: torch.full((n,), 1 / 3, dtype=d)),
    "arange": (INTEGERS[2:], lambda n, d: torch.arange(min(n, 32767), dtype=d)),
    "arange of floats": (FLOATS[2:], lambda n, d: torch.arange(n, dtype=d)),
    "small arange": ((*INTEGERS, *FLOATS), lambda n, d: torch.arange(0, min(n, 120), 3, dtype=d)),
    "downwards": (INTEGERS[3:], lambda n, d: torch.arange(n, -n, -3, dtype=d)),
    "eye": ((*INTEGERS, *FLOATS), lambda n, d: torch.eye(min(n, 300), dtype=d)),
    "triangles": (
        (*INTEGERS, *FLOATS),
        lambda n, d: torch.ones(min(n, 300), 7, dtype=d).tril(1).triu(-5),
    ),
    "infinite triangle": (
        FLOATS,
        lambda n, d: torch.full((min(n, 300), min(n, 300)), float("-inf"), dtype=d).triu(1),
    ),
    "mask": (
        FLOATS,
        lambda n, d: (1.0 - torch.ones(min(n, 300), min(n, 300), dtype=d).tril()) * -10240.0,
    ),
    "positions": (
        FLOATS[2:],
        lambda n, d: (torch.arange(n)[:, None] - torch.arange(3)).to(d) * 2 + 1,
    ),
    "comparisons": (
        (torch.bool,),
        lambda n, d: (torch.arange(n) % 3 == 1) & ~(torch.arange(n) > 5) | (torch.arange(n) <= 2),
    ),
    "integers": (
        (torch.int32, torch.int64),
        lambda n, d: (torch.arange(n, dtype=d) // 3 * 5 - 7) % 11 + torch.arange(n, dtype=d).neg(),
    ),
    # Inductor of torch 2.11 cannot compile .sub(9).clamp(2, 90) in a cat, wherever it is made.
    "clamped": (INTEGERS[3:], lambda n, d: torch.arange(n, dtype=d).clamp(2, 90).sub(9)),
    "counts": (
        (torch.int64,),
        lambda n, d: torch.ones(min(n, 300), 77, dtype=torch.bool).tril().cumsum(1).sum(0),
    ),
    "chosen": (
        FLOATS,
        lambda n, d: torch.where(torch.arange(n) % 2 == 0, 0.5, -2.0).to(d),
    ),
    "filled": (
        FLOATS,
        lambda n, d: torch.zeros(n, dtype=d).masked_fill(torch.arange(n) > 2, -32768.0),
    ),
    "placed": (
        INTEGERS[3:],
        lambda n, d: torch.cat(
            [torch.arange(n, dtype=d).flip(0), torch.zeros(2, dtype=d), torch.ones(1, dtype=d)]
        ).roll(1)[1:],
    ),
    "stacked": (
        INTEGERS[3:],
        lambda n, d: torch.stack(
            torch.meshgrid(
                torch.arange(min(n, 50) + 1, dtype=d), torch.arange(9, dtype=d), indexing="ij"
            )
        ).transpose(0, 2),
    ),
    "cast": ((*INTEGERS, *FLOATS), lambda n, d: torch.arange(min(n, 100)).float().half().to(d)),
    "large to float": ((torch.float32, torch.float64), lambda n, d: torch.arange(n).to(d)),
    "to truth values": ((torch.bool,), lambda n, d: torch.arange(n).float().to(d)),
}


# x[i] = 3.0 on a GPU copies the number over, op by op; Inductor compiles that away.
STORE_NUMBERS = ("as_an_index", "indices_of_one", "written_after_the_copy")


@pytest.fixture(autouse=True)
def no_padding() -> Iterator[None]:
    """Where Inductor finds a padded product faster, it hands the result out with the padding."""
    with torch._inductor.config.patch(shape_padding=False):
        yield


def programs() -> list[Any]:
    return [pytest.param(p, id=p.__name__) for p in (*MADE, *KEPT)]


def without_waiting(run: Callable[[], Any]) -> Any:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        return run()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def copies_from_the_host(run: Callable[[], Any]) -> int:
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        run()
        torch.cuda.synchronize()
    return sum("Memcpy HtoD" in event.name for event in found.events())


def outcomes(compiled: Any) -> set[tuple[str, str]]:
    decisions = fusepass.last_report(compiled).decisions
    found = [d for d in decisions if d.rule == "host_tensor"]
    return {(d.outcome.value, d.reason_code.value) for d in found}


@pytest.mark.parametrize("program", programs())
@pytest.mark.parametrize("codegen", ["eager", "inductor"])
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_no_copy_is_left(program: Program, codegen: str, device: str) -> None:
    if device == "cuda:0" and codegen == "inductor":
        pytest.skip("the index changes the graph in the same way for both")
    compiled = torch.compile(program, backend="fusepass", options={"codegen": codegen})
    x = torch.randn(7, 7, device="cuda")
    expected = program(x, device)
    found = compiled(x, device)
    if codegen == "eager" and program.__name__ in STORE_NUMBERS:
        again = compiled(x, device)
    else:
        again = without_waiting(lambda: compiled(x, device))
    for result in (found, again):
        assert_same(expected, result, "result", _bits if codegen == "eager" else _close)
    assert outcomes(compiled) == {("applied", "on_device")}
    if codegen == "inductor" or program.__name__ not in STORE_NUMBERS:
        assert copies_from_the_host(lambda: compiled(x, device)) == 0


@pytest.mark.parametrize("program", [p for p in MADE if p in DYNAMIC])
@pytest.mark.parametrize("codegen", ["eager", "inductor"])
def test_no_copy_is_left_under_dynamic_shapes(program: Program, codegen: str) -> None:
    compiled = torch.compile(
        program, backend="fusepass", dynamic=True, options={"codegen": codegen}
    )
    for size in (7, 9, 12):
        x = torch.randn(size, size, device="cuda")
        expected = program(x, "cuda")
        compiled(x, "cuda")
        waits = codegen == "eager" and program.__name__ in STORE_NUMBERS
        run = functools.partial(compiled, x, "cuda")
        found = run() if waits else without_waiting(run)
        assert_same(expected, found, "result", _bits if codegen == "eager" else _close)
    assert outcomes(compiled) == {("applied", "on_device")}


@pytest.mark.parametrize("program", LEFT)
def test_what_is_left_does_as_before(program: Program) -> None:
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    x = torch.randn(7, 7, device="cuda")
    torch.manual_seed(2)
    expected = program(x, "cuda")
    torch.manual_seed(2)
    assert_same(expected, compiled(x, "cuda"), "result", _bits)
    assert ("rejected", LEFT[program]) in outcomes(compiled)


@pytest.mark.parametrize("program", programs())
def test_under_cuda_graphs(program: Program) -> None:
    compiled = torch.compile(program, backend="fusepass", mode="reduce-overhead")
    for _ in range(4):
        x = torch.randn(7, 7, device="cuda")
        expected = program(x, "cuda")
        torch.compiler.cudagraph_mark_step_begin()
        assert_same(expected, compiled(x, "cuda"), "result", _close)


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("codegen", ["eager", "inductor"])
def test_table_has_the_same_bits(name: str, dynamic: bool, codegen: str) -> None:
    """Made on the device, op by op or compiled, beside what the CPU makes and is copied."""
    dtypes, make = TABLE[name]

    def program(xs: list[Tensor], n: int) -> list[Tensor]:
        found = []
        for x, dtype in zip(xs, dtypes, strict=True):
            there = make(n, dtype).to(x.device)
            found += [there, torch.cat([x, there.reshape(-1)])]
        return found

    compiled = torch.compile(
        program, backend="fusepass", dynamic=dynamic, options={"codegen": codegen}
    )
    for size in SIZES if dynamic else SIZES[::3]:
        xs = [torch.ones(3, device="cuda").to(dtype) for dtype in dtypes]
        assert_same(program(xs, size), compiled(xs, size), f"{name} of {size}", _bits)
    assert outcomes(compiled) <= {("applied", "on_device"), ("rejected", "inexact")}
    if not dynamic:
        decisions = fusepass.last_report(compiled).decisions
        texts = [d.reason for d in decisions if d.rule == "host_tensor"]
        assert all("same bits" in text for text in texts), texts


def test_a_pinned_input_is_copied_without_waiting() -> None:
    def program(x: Tensor) -> Tensor:
        return x.to("cuda") * 2

    x = torch.randn(1000).pin_memory()
    for given, waits in (({}, True), ({"non_blocking": True}, False)):
        for codegen in ("eager", "inductor"):
            torch.compiler.reset()
            compiled = torch.compile(
                program, backend="fusepass", options={**given, "codegen": codegen}
            )
            compiled(x)
            if waits:
                with pytest.raises(RuntimeError, match="synchroniz"):
                    without_waiting(lambda compiled=compiled: compiled(x))
            else:
                found = without_waiting(lambda compiled=compiled: compiled(x))
                assert torch.equal(found.cpu(), x * 2)
                unpinned = torch.randn(1000)
                assert torch.equal(compiled(unpinned).cpu(), unpinned * 2)


def test_random_numbers_of_the_device() -> None:
    def program(x: Tensor) -> Tensor:
        return x + torch.randn(10000).to(x.device)

    x = torch.zeros(10000, device="cuda")
    compiled = torch.compile(program, backend="fusepass", options={"host_random": True})
    compiled(x)
    before = torch.get_rng_state()
    drawn = without_waiting(lambda: compiled(x))
    assert torch.equal(before, torch.get_rng_state())
    assert abs(float(drawn.mean())) < 0.05
    assert abs(float(drawn.std()) - 1) < 0.05


@pytest.mark.parametrize("program", [p for p in (*MADE, *KEPT) if p.__name__.startswith("a_")])
def test_on_another_device(program: Program) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    x = torch.randn(7, 7, device="cuda:1")
    assert_same(program(x, "cuda:1"), compiled(x, "cuda:1"), "result", _bits)
    assert outcomes(compiled) == {("applied", "on_device")}


def _bits(eager: Tensor, compiled: Tensor, path: str) -> None:
    ours, theirs = (t.cpu().reshape(-1).view(torch.uint8) for t in (eager, compiled))
    same = torch.equal(ours, theirs)
    if not same and eager.isnan().any():  # NaN has many bit patterns
        same = torch.equal(eager.isnan(), compiled.isnan())
        eager, compiled = eager.nan_to_num(), compiled.nan_to_num()
        same = same and torch.equal(eager, compiled)
    assert same, f"{path}\neager    {eager}\ncompiled {compiled}"


def _close(eager: Tensor, compiled: Tensor, path: str) -> None:
    # Inductor does not round to half precision between the operations of one kernel.
    near = 1e-3 if eager.dtype in (torch.float16, torch.bfloat16) else 1e-5
    torch.testing.assert_close(compiled, eager, rtol=near, atol=near, equal_nan=True, msg=path)
