"""``fusepass.syncs``: what fusepass removes of a program's waits, what stays, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fusepass
from fusepass.errors import HostSyncs, NotAProgram, NotCompiled
from fusepass.report.host_syncs import api, residence
from fusepass.report.host_syncs.kinds import Kind
from fusepass.testing import assert_no_syncs


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is compiled runs op by op; the CPU stands in for a device on every machine."""
    monkeypatch.setattr(residence, "no_device", lambda: True)
    with fusepass.options(codegen="eager"):
        yield


def x() -> Tensor:
    return torch.tensor([1.0, -2.0, 3.0, 0.5])


def rows(fn: Any, *args: Any) -> list[tuple[str, int, int, bool | None, str]]:
    found = fusepass.syncs(fn, *args)
    return [(r.kind.value, r.count, r.remaining, r.removed, r.treatment) for r in found]


def guarded(t: Tensor) -> Tensor:
    for _ in range(3):
        if t.sum() > 100:
            t = t.clamp(max=5)
        t = t * 2
    return t


def chosen(t: Tensor) -> Tensor:
    return t * 2 if t.sum() > 0 else t - 1


def raising(t: Tensor) -> Tensor:
    if not t.isfinite().all():
        raise ValueError(f"not finite: {t}")
    if t.max() > 1e9:
        raise ValueError("large")
    return t * 2


def used_as_key(t: Tensor) -> dict[float, int]:
    return {t.sum().item(): 1}


def indexed(t: Tensor) -> Tensor:
    return t[t > 0] * 2


def guarded_store(t: Tensor) -> Tensor:
    mask = t > 100
    t = t * 1
    if mask.any():
        t[mask] = 0.0
    return t


def kept_in_a_loop(t: Tensor) -> list[int]:
    seen: list[int] = []
    for i in range(3):
        t = t * 2
        if t.sum() > 5:
            seen.append(i)
        t = t + len(seen)
    return seen


def test_branches_in_a_loop_are_one_row_and_removed() -> None:
    assert rows(guarded, x()) == [("branch", 3, 0, True, "where")]


def test_raises_are_read_back_once() -> None:
    assert rows(raising, x()) == [
        ("branch", 1, 0, True, "sink"),
        ("branch", 1, 0, True, "sink"),
        ("read_back", 0, 1, False, ""),
    ]


def test_guard_of_a_masked_store_is_dropped() -> None:
    found = {row[0]: row[1:] for row in rows(guarded_store, x())}
    assert found["branch"] == (1, 0, True, "drop")


def test_kept_in_a_frame_that_dynamo_gives_up() -> None:
    ((kind, count, left, removed, treatment),) = rows(kept_in_a_loop, x())
    assert (kind, count, left, removed, treatment) == ("branch", 3, 3, False, "keep")


def test_number_used_as_a_key_stays_with_advice() -> None:
    (row,) = fusepass.syncs(used_as_key, x())
    assert (row.kind, row.count, row.remaining, row.removed) == (Kind.ITEM, 1, 1, False)
    assert "0-d tensor" in row.instead
    assert (row.file, row.line) == (__file__, used_as_key.__code__.co_firstlineno + 1)


def test_boolean_index_stays() -> None:
    (row,) = fusepass.syncs(indexed, x())
    assert (row.kind, row.operations, row.remaining) == (Kind.NONZERO, ("aten.index",), 1)
    assert "torch.where" in row.instead


def test_cond_still_asks_the_host() -> None:
    with fusepass.options(treatment="cond"):
        (row,) = fusepass.syncs(chosen, x())
    assert (row.kind, row.count, row.remaining, row.treatment) == (Kind.BRANCH, 1, 1, "cond")
    assert row.removed is False
    assert row.line == chosen.__code__.co_firstlineno + 1


def test_option_to_keep() -> None:
    with fusepass.options(treatment="keep"):
        (row,) = fusepass.syncs(chosen, x())
    assert (row.remaining, row.treatment, row.reason_code) == (1, "keep", "forced")


def test_copy_is_not_known_without_a_device() -> None:
    def upload(t: Tensor) -> Tensor:
        return t + torch.arange(4).to(t.device)

    (row,) = fusepass.syncs(upload, x())
    assert (row.kind, row.remaining) == (Kind.COPY_IN, 1)
    assert row.removed is None


def test_operation_in_a_graph_that_waits() -> None:
    def draw(t: Tensor) -> Tensor:
        return torch.linalg.inv(torch.diag(t) + 1) + 1

    (row,) = fusepass.syncs(draw, x())
    assert (row.kind, row.count, row.remaining) == (Kind.OPERATION, 1, 1)


def test_print_is_heard_once(capsys: pytest.CaptureFixture[str]) -> None:
    def says(t: Tensor) -> Tensor:
        print("sum", t.sum())  # noqa: T201
        return t * 2

    first, *others = fusepass.syncs(says, x())
    assert first.kind is Kind.PRINT
    assert all(row.kind is Kind.READ_BACK for row in others)
    assert capsys.readouterr().out == "sum tensor(2.5000)\n"


def test_prints_are_read_back_once() -> None:
    def says(t: Tensor) -> Tensor:
        t = t * 2
        print(t.sum())  # noqa: T201
        print(f"{t.mean().item():.3f}")  # noqa: T201
        return t

    assert rows(says, x()) == [
        ("print", 1, 0, True, "late"),
        ("print", 1, 0, True, "late"),
        ("read_back", 0, 1, False, ""),
    ]


def test_arm_that_decides_what_is_returned_is_read_back() -> None:
    def hands_on(t: Tensor) -> Tensor:
        return t if t.sum() > 0 else t * 2

    def needs_a_gradient(t: Tensor, w: Tensor) -> Tensor:
        return t * w if t.sum() > 0 else t * 2

    def needs_one_anyway(t: Tensor, w: Tensor) -> Tensor:
        return t * w if t.sum() > 0 else t + w

    w = torch.ones((), requires_grad=True)
    branch = ("branch", 1, 0, True, "where")
    assert rows(hands_on, x()) == [branch, ("read_back", 0, 1, False, "")]
    assert rows(needs_a_gradient, x(), w) == [branch, ("read_back", 0, 1, False, "")]
    assert rows(needs_one_anyway, x(), w) == [branch]


def test_text_without_tensors_is_not_read_back() -> None:
    def says(t: Tensor) -> Tensor:
        print("shape", t.shape)  # noqa: T201
        return t * 2

    assert rows(says, x()) == []


def test_number_handed_out_is_read_late_and_left() -> None:
    def hands_out(t: Tensor) -> tuple[Tensor, float]:
        return t * 2, t.sum().item()

    ((kind, count, left, removed, _),) = rows(hands_out, x())
    assert (kind, count, left, removed) == ("item", 1, 1, False)


def test_number_in_tensor_work_is_removed() -> None:
    def scaled(t: Tensor) -> Tensor:
        for _ in range(3):
            t = t / t.norm().item()
        return t

    assert rows(scaled, x()) == [("item", 3, 0, True, "device")]


def test_state_is_put_back() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.register_buffer("total", torch.zeros(()))

        def forward(self, t: Tensor) -> Tensor:
            self.calls += 1
            self.total += t.sum()
            t.add_(torch.rand(()))
            return t if self.total > 0 else -t

    net, t = Counts(), x()
    random = torch.get_rng_state()
    # One read back says which object is returned: the argument itself, or a new tensor.
    assert [row.kind for row in fusepass.syncs(net, t)] == [Kind.BRANCH, Kind.READ_BACK]
    assert (net.calls, net.total.item()) == (0, 0.0)
    assert torch.equal(t, x())
    assert torch.equal(torch.get_rng_state(), random)


def test_compiled_stays_compiled() -> None:
    compiled = torch.compile(chosen, backend="fusepass", options={"codegen": "eager"})
    compiled(x())
    for _ in range(12):
        assert fusepass.syncs(compiled, x()).compiled
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled(x())


def test_compiled_with_its_own_options() -> None:
    options = {"codegen": "eager", "treatment": "keep"}
    compiled = torch.compile(chosen, backend="fusepass", options=options)
    (row,) = fusepass.syncs(compiled, x())
    assert row.reason_code == "forced"


def test_compiled_with_another_backend() -> None:
    def mixed(t: Tensor) -> Tensor:
        t = t * 2 if t.sum() > 0 else t - 1
        return t + t.mean().item()

    found = fusepass.syncs(torch.compile(mixed, backend="eager"), x())
    assert (found.before, found.compiled) == ("eager", False)
    assert [(r.kind.value, r.count) for r in found] == [("branch", 1), ("item", 1)]
    assert found[0].removed is True


def test_what_another_backend_leaves() -> None:
    def read(t: Tensor) -> Tensor:
        return t * t.sum().item()

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        found = fusepass.syncs(torch.compile(read, backend="aot_eager"), x())
    assert found.before == "aot_eager"
    assert [r.count for r in found] == [1]  # inside the graph now, but still read


def test_module_compiled_in_place() -> None:
    class Net(nn.Module):
        def forward(self, t: Tensor) -> Tensor:
            return chosen(t)

    net = Net()
    net.compile(backend="fusepass", options={"codegen": "eager"})
    found = fusepass.syncs(net, x())
    assert found.compiled
    assert [(r.count, r.remaining) for r in found] == [(1, 0)]


def test_compiled_part_of_a_function() -> None:
    inner = torch.compile(chosen, backend="fusepass", options={"codegen": "eager"})

    def step(t: Tensor) -> Tensor:
        return inner(t) + 1

    assert rows(step, x()) == [("branch", 1, 0, True, "where")]


def test_no_syncs_is_false_and_says_so() -> None:
    found = fusepass.syncs(lambda t: t * 2, x())
    assert not found
    assert (len(found), list(found), found.remaining) == (0, [], ())
    assert "none" in str(found)


def test_table_and_json() -> None:
    found = fusepass.syncs(used_as_key, x())
    text = str(found)
    assert "test_syncs.py:" in text
    assert found[0].instead in text
    record = json.loads(found.to_json())
    assert record["program"] == "used_as_key"
    (row,) = record["syncs"]
    assert (row["kind"], row["line"], row["removed"]) == ("item", found[0].line, False)
    assert set(row) == set(found[0].to_dict())


def read_and_printed(t: Tensor) -> Tensor:
    mean = t.mean().item()
    print(mean)  # noqa: T201
    return t * 2


def read_and_raised(t: Tensor) -> Tensor:
    norm = t.norm().item()
    if norm > 1e9:
        raise ValueError(f"norm {norm}")
    return t * 2


def read_used_and_printed(t: Tensor) -> Tensor:
    norm = t.norm().item()
    t = t / norm
    print(f"{norm:.3f}")  # noqa: T201
    return t


@pytest.mark.parametrize("program", [read_and_printed, read_and_raised, read_used_and_printed])
def test_number_that_is_shown_on_another_line_is_still_read(program: Any) -> None:
    found = fusepass.syncs(program, x())
    assert {row.kind for row in found} == {Kind.ITEM, Kind.READ_BACK}
    assert sum(row.remaining for row in found) == 1
    compiled = torch.compile(program, backend="fusepass")
    with pytest.raises(HostSyncs):
        assert_no_syncs(compiled, x())
    assert_no_syncs(compiled, x(), allow="read_back")


def test_line_of_mere_text_waits_for_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def says(t: Tensor) -> Tensor:
        print("step")  # noqa: T201
        return t * 2

    assert not fusepass.syncs(says, x())
    assert_no_syncs(torch.compile(says, backend="fusepass"), x())
    assert capsys.readouterr().out


def test_what_cannot_be_called() -> None:
    for asked in (fusepass.syncs, assert_no_syncs):
        with pytest.raises(NotAProgram, match="type int is no program"):
            asked(3, x())


def test_error_of_the_program_is_raised() -> None:
    def fails(t: Tensor) -> None:
        raise KeyError("theirs")

    with pytest.raises(KeyError, match="theirs"):
        fusepass.syncs(fails, x())


def test_program_that_runs_and_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def pins(t: Tensor) -> Tensor:
        return t * t.sum().item()

    def raises(*_: Any) -> Any:
        raise ValueError("only as it is written")

    monkeypatch.setattr(api, "watch_compiled", raises)
    with pytest.warns(NotCompiled, match=r"pins runs, but torch\.compile raises.*as it is written"):
        (row,) = fusepass.syncs(pins, x())
    assert (row.kind, row.count, row.remaining, row.removed) == (Kind.ITEM, 1, 1, False)
    assert row.instead
