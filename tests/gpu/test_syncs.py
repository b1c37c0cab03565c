"""``fusepass.syncs`` on real models, held to what torch warns of and what the profiler shows.

``pytest -m gpu -s tests/gpu/test_syncs.py`` prints, for each program, both set differences and the
table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass.report.host_syncs.kinds import Kind
from fusepass.report.host_syncs.result import Syncs
from fusepass.report.restore import everything_restored
from fusepass.testing import assert_no_syncs

from . import sync_programs, sync_truth

pytestmark = pytest.mark.gpu

# Kinds that torch does not warn of; docs/syncs.md has the list.
NOT_WARNED_OF = (Kind.SYNCHRONIZE, Kind.ALLOCATION, Kind.READ_BACK)


@pytest.fixture(autouse=True)
def op_by_op() -> Iterator[None]:
    """The list of the program itself is compared; how it is compiled does not matter."""
    with fusepass.options(codegen="eager"), torch.no_grad():
        yield


def truth(fn: Any, args: Any, kwargs: Any) -> tuple[Counter[Any], Counter[Any]]:
    """Warnings by line, and the profiler's waits by function, of a call that is warm."""
    with everything_restored(fn, args, kwargs):
        fn(*args, **kwargs)
    with everything_restored(fn, args, kwargs):
        lines = sync_truth.warned(lambda: fn(*args, **kwargs))
    with everything_restored(fn, args, kwargs):
        events = sync_truth.profiled(lambda: fn(*args, **kwargs))
    return lines, sync_truth.waits_by_function(events)


def compared(name: str, found: Syncs, lines: Counter[Any], functions: Counter[Any]) -> list[str]:
    """Print both set differences; returns what the list lacks."""
    listed = {(row.file, row.line) for row in found if row.count}
    counts: Counter[Any] = Counter()
    for row in found:
        counts[sync_truth.function_of((row.file, row.line))] += row.count
    lacking = [
        f"torch warns {n} × at {f}:{k}" for (f, k), n in lines.items() if (f, k) not in listed
    ]
    for (file, first), times in functions.items():
        own = sum(n for own, n in counts.items() if sync_truth.same(own, (file, first)))
        if own < times:
            lacking.append(f"profiler: {times} × in {file}({first}), listed {own} ×")
    quiet = [row for row in found if row.count and (row.file, row.line) not in lines]
    beyond = [f"{row.kind.value} {row.count} × at {row.file}:{row.line}" for row in quiet]
    lines_of_text = [
        f"\n=== {name}: {len(listed)} lines, {sum(r.count for r in found)} waits listed",
        f"torch warns at {len(lines)} lines, {sum(lines.values())} times",
        f"the profiler shows {sum(functions.values())} waits in {len(functions)} functions",
        "in these and not in the list:",
        *(f"  {one}" for one in lacking or ["nothing"]),
        "in the list and not warned of:",
        *(f"  {one}" for one in beyond or ["nothing"]),
        str(found),
    ]
    print("\n".join(lines_of_text))  # noqa: T201
    return lacking


@pytest.mark.parametrize("name", list(sync_programs.PROGRAMS))
def test_finds_what_torch_and_the_profiler_find(name: str) -> None:
    if name == "mask_rcnn":
        pytest.importorskip("torchvision")
    else:
        pytest.importorskip("transformers")
    torch.manual_seed(0)
    fn, args, kwargs = sync_programs.PROGRAMS[name]("cuda", False)
    lines, functions = truth(fn, args, kwargs)
    found = fusepass.syncs(fn, *args, **kwargs)
    assert compared(name, found, lines, functions) == []
    for row in found:
        if row.count and row.kind not in NOT_WARNED_OF and (row.file, row.line) not in lines:
            own = sync_truth.function_of((row.file, row.line))
            assert any(sync_truth.same(own, one) for one in functions), f"nobody sees {row}"
        assert row.kind is not Kind.UNKNOWN
        assert row.remaining == 0 or row.instead
    assert any(row.wait_us for row in found)


def test_sampler_lines_and_kinds() -> None:
    fn, args, kwargs = sync_programs.PROGRAMS["sampler"]("cuda", True)
    found = fusepass.syncs(fn, *args, **kwargs)
    kinds = {(row.line, row.kind.value) for row in found if row.count}
    asked = {pair for pair in kinds if pair[1] == "synchronize"}
    assert len(asked) == 1
    assert kinds - asked == sync_programs.tagged_lines()


def slow(x: Tensor) -> Tensor:
    """Enough work that the host has to wait for it."""
    for _ in range(20):
        x = x @ x * 1e-3
    return x


def test_times() -> None:
    def program(x: Tensor) -> Tensor:
        if slow(x).sum() > 0:
            x = x + 1
        return x * 2

    (row,) = fusepass.syncs(program, torch.randn(4096, 4096, device="cuda"))
    assert row.kind is Kind.BRANCH
    assert row.wait_us is not None
    assert row.wait_us > 1000  # 20 products of 137 GFLOP
    assert row.idle_us is not None
    assert 0 < row.idle_us < 2000


@pytest.mark.parametrize(
    ("fn", "kind"),
    [
        (lambda x: x.sum().item(), "item"),
        (lambda x: x.tolist(), "item"),
        (lambda x: f"{x}", "print"),
        (lambda x: f"{x.sum()}", "print"),
        (lambda x: torch.tensor([1.0, 2.0], device=x.device), "copy_in"),
        (lambda x: torch.arange(4).to(x.device), "copy_in"),
        (lambda x: x[[0, 1]], "copy_in"),
        (lambda x: x.cpu(), "copy_out"),
        (lambda x: x[x > 0], "nonzero"),
        (lambda x: torch.where(x > 0), "nonzero"),
        (lambda x: x.unique(), "size"),
        (lambda x: x.repeat_interleave(x.long().abs()), "size"),
        (lambda x: torch.equal(x, x.clone()), "operation"),
        (lambda x: torch.linalg.inv(torch.diag(x)), "operation"),
        (lambda x: torch.cuda.synchronize(), "synchronize"),
        (lambda x: torch.cuda.current_stream().synchronize(), "synchronize"),
    ],
)
def test_each_kind(fn: Callable[[Tensor], Any], kind: str) -> None:
    found = fusepass.syncs(fn, torch.tensor([1.0, -2.0, 3.0, 0.5], device="cuda"))
    assert {row.kind.value for row in found if row.count} == {kind}
    assert {row.file for row in found if row.count} == {__file__}


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * 2,
        lambda x: torch.ones(3).sum().item(),  # on the host, next to a GPU
        lambda x: bool(torch.tensor([1.0])[0] > 0),
        lambda x: str(torch.ones(2)),
        lambda x: torch.zeros(3, device=x.device) + 1,
        lambda x: torch.zeros(3).pin_memory().to(x.device, non_blocking=True),
        lambda x: x.masked_fill(x > 0, 1.0),
        lambda x: x.clone().index_put_((x > 0,), torch.tensor(1.0)),
        lambda x: x.to("cpu", non_blocking=True),
        lambda x: torch.nn.functional.one_hot(x.long().abs(), 5),
        lambda x: x.quantile(0.5),
        lambda x: x.abs().multinomial(1),
        lambda x: x.abs().multinomial(2),
        lambda x: torch.equal(x, x),  # the same memory
        lambda x: x.shape[0] if x.is_cuda else 0,
        lambda x: torch.linalg.inv_ex(torch.diag(x)),
    ],
)
@pytest.mark.filterwarnings("ignore::fusepass.errors.NotCompiled")  # pin_memory, in torch 2.11
def test_nothing_waits(fn: Callable[[Tensor], Any]) -> None:
    x = torch.tensor([1.0, -2.0, 3.0, 0.5], device="cuda")
    found = [row for row in fusepass.syncs(fn, x) if row.kind is not Kind.ALLOCATION]
    assert [row for row in found if row.count] == []


def test_compiled_program_asks_nothing() -> None:
    def program(x: Tensor) -> Tensor:
        x = x * 2
        if x.sum() > 0:
            x = x + 1
        return x * 3

    for mode in ("default", "reduce-overhead"):
        compiled = torch.compile(program, backend="fusepass", mode=mode)
        x = torch.randn(64, device="cuda")
        assert_no_syncs(compiled, x)
        (row,) = fusepass.syncs(compiled, x)
        assert (row.count, row.remaining, row.removed, row.treatment) == (1, 0, True, "where")
    with pytest.raises(AssertionError, match=r"torch\.where"):
        assert_no_syncs(program, torch.randn(64, device="cuda"))


def test_line_of_a_wait_inside_a_graph() -> None:
    def program(x: Tensor) -> Tensor:
        x = x.abs() + 1
        y = x.histc(8)
        return y + 1

    compiled = torch.compile(program, backend="fusepass", options={"codegen": "inductor"})
    (row,) = fusepass.syncs(compiled, torch.randn(64, device="cuda"))
    assert (row.kind, row.line) == (Kind.OPERATION, program.__code__.co_firstlineno + 2)
    assert row.count == row.remaining > 0


def test_state_is_put_back_on_the_device() -> None:
    x = torch.zeros(4, device="cuda")

    def program(t: Tensor) -> float:
        t.add_(torch.rand(4, device="cuda"))
        return t.sum().item()

    state = torch.cuda.get_rng_state()
    assert len(fusepass.syncs(program, x)) == 1
    assert x.tolist() == [0.0] * 4
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert torch.cuda.get_sync_debug_mode() == 0
