"""Inputs of a graph that share memory which it writes, in this call or in a later one."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fusepass
from fusepass.graph.dataflow.memory_overlap import OverlapCheck
from fusepass.testing.compare import assert_same

from ..support.shared_pairs import PAIRS, THREE_ROWS, numbers

OPTIONS: list[dict[str, Any]] = [{"codegen": "eager"}, {"codegen": "eager-decomposed"}, {}]
OP_BY_OP = OPTIONS[:2]


def compile_for(program: Any, options: dict[str, Any]) -> Any:
    torch._dynamo.reset()
    return torch.compile(program, backend="fusepass", options=options)


def decisions(compiled: Any) -> list[tuple[str, str]]:
    found = fusepass.last_report(compiled).to_dict()["decisions"]
    return [(d["treatment"], d["reason_code"]) for d in found if d["station"] == "capture"]


def read_behind_the_branch(a: Tensor, b: Tensor) -> Tensor:
    if a.sum() > 0:
        a.add_(100)
    return b[0]


def flat_behind_the_branch(a: Tensor, b: Tensor) -> Tensor:
    if a.sum() > 0:
        a.add_(100)
    return b.reshape(-1)


def both_written(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    if a.sum() > 0:
        a.mul_(2)
        b.add_(1)
        a[0] = b.sum()
    return a[1:], b


def no_branch(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    a.add_(1)
    return b[0], b * 2


def nested(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    for _ in range(2):
        if a.sum() > 0:
            a.sub_(30)
            if b.sum() > 0:
                b[b > 3] *= 2
                a.add_(b.sum())
    return a, b[-1]


PROGRAMS = [read_behind_the_branch, flat_behind_the_branch, both_written, no_branch, nested]


def check(program: Callable[..., Any], compiled: Any, kind: str, sign: int) -> None:
    wanted, given = PAIRS[kind](numbers(sign)), PAIRS[kind](numbers(sign))
    where = f"{kind} of {sign}"
    assert_same(program(*wanted), compiled(*given), where)
    assert_same(wanted, given, f"{where}: inputs")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("options", OP_BY_OP)
def test_ways_to_share(program: Callable[..., Any], options: dict[str, Any]) -> None:
    for kind in ("whole_and_tail", "tail_and_whole", "columns", "every_other", "detached", "data"):
        compiled = compile_for(program, options)
        for sign in (-1, 1):
            check(program, compiled, kind, sign)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("options", OP_BY_OP)
def test_sharing_changes_from_call_to_call(
    program: Callable[..., Any], options: dict[str, Any]
) -> None:
    compiled = compile_for(program, options)
    for kind in THREE_ROWS:
        for sign in (-1, 1):
            check(program, compiled, kind, sign)


def test_under_inductor() -> None:
    compiled = compile_for(read_behind_the_branch, {})
    for kind in ("whole_and_tail", "apart", "head_and_tail"):
        for sign in (-1, 1):
            check(read_behind_the_branch, compiled, kind, sign)


def test_inputs_without_aliases_are_compiled_once() -> None:
    compiled = compile_for(both_written, {"codegen": "eager"})
    with torch.compiler.set_stance("default"):
        check(both_written, compiled, "apart", 1)
    assert decisions(compiled) == [("where", "pure_total")]
    with torch.compiler.set_stance("fail_on_recompile"):
        for sign in (-1, 1, 1):
            for kind in ("apart", "halves"):  # of one storage, but not in one place
                check(both_written, compiled, kind, sign)


def test_the_reason_names_the_inputs() -> None:
    compiled = compile_for(read_behind_the_branch, {"codegen": "eager"})
    check(read_behind_the_branch, compiled, "whole_and_tail", -1)
    (kept,) = (d for d in fusepass.last_report(compiled).decisions if d.treatment == "keep")
    assert kept.reason == "an arm writes memory that inputs share (a and b)"
    assert decisions(compiled) == [("keep", "alias")]


def as_strided_reaches(a: Tensor, b: Tensor) -> Tensor:
    if a.sum() > 0:
        torch.as_strided(a, (6,), (1,), 18).add_(5)
    return b * 2


def recompiled_because(compiled: Any, *args: Any) -> str:
    """What Dynamo says where a call is not what was compiled for."""
    with torch._dynamo.config.patch(error_on_recompile=True):
        with pytest.raises(torch._dynamo.exc.RecompileError) as raised:
            compiled(*args)
    return str(raised.value)


def test_why_it_is_compiled_again() -> None:
    compiled = compile_for(no_branch, OPTIONS[0])
    compiled(numbers(1), numbers(1))
    t = numbers(1)
    said = recompiled_because(compiled, t, t.view_as(t))
    assert said.endswith("0/0: which of a, b share memory is as when it was compiled")

    def many(written: Tensor, others: list[Tensor]) -> Tensor:
        written.add_(1)
        return sum(others)

    compiled = compile_for(many, OPTIONS[0])
    compiled(numbers(1), [numbers(1) for _ in range(9)])
    said = recompiled_because(compiled, t, [t.view_as(t), *(numbers(1) for _ in range(8))])
    assert "which of written, others[0]," in said
    assert said.endswith("others[6], … share memory is as when it was compiled")


@pytest.mark.parametrize("options", OP_BY_OP)
def test_as_strided_reaches_beyond_its_tensor(options: dict[str, Any]) -> None:
    compiled = compile_for(as_strided_reaches, options)
    for sign in (1, -1):
        check(as_strided_reaches, compiled, "head_and_tail", sign)
        check(as_strided_reaches, compiled, "halves", sign)


class Model(nn.Module):
    """Writes a buffer behind a test; the input, another buffer or the weight may be its memory."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6), requires_grad=False)
        self.register_buffer("state", torch.zeros(6))
        self.register_buffer("tail", torch.zeros(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if x.sum() > 0:
            self.state.add_(x)
        return self.tail * self.weight[0], x[0] + self.state, self.tail[1:]


def share_nothing(model: Model) -> Tensor:
    return torch.ones(6)


def share_tail(model: Model) -> Tensor:
    model.tail = model.state[3:]
    return torch.ones(6)


def share_weight(model: Model) -> Tensor:
    model.weight.data = model.state
    return torch.ones(6)


def give_a_view(model: Model) -> Tensor:
    return model.state.view(-1)


def give_the_buffer(model: Model) -> Tensor:
    return model.state


@pytest.mark.parametrize("options", OP_BY_OP)
def test_buffers_and_parameters(options: dict[str, Any]) -> None:
    eager, model = Model(), Model()
    compiled = compile_for(model, options)
    for share in (share_nothing, give_a_view, give_the_buffer, share_tail, share_weight):
        for _ in range(2):
            for each in (eager, model):
                each.state = torch.arange(6.0)
            wanted, given = share(eager), share(model)
            assert_same(eager(wanted), compiled(given), share.__name__)
            assert_same(eager.state, model.state, share.__name__)


HELD = torch.zeros(4, 6)


def of_a_global(a: Tensor) -> Tensor:
    held, other = HELD, a
    if held.sum() > 0:
        if a.sum() > 0:
            held.sub_(1)
    else:
        other = held
    a.add_(100)
    return other


@pytest.mark.parametrize("options", OP_BY_OP)
def test_globals(options: dict[str, Any]) -> None:
    """Dynamo does not guard on an argument and a global being one object."""
    global HELD  # it is what the program reads
    compiled = compile_for(of_a_global, options)
    for choose in (lambda t: t, lambda t: t[1:], lambda t: t.clone()):
        for sign in (-1, 1):
            found = []
            for called in (of_a_global, compiled):
                HELD = numbers(sign)
                given = choose(HELD)
                found.append((called(given), given, HELD))
            assert_same(*found, "global")


@pytest.mark.parametrize("options", OP_BY_OP)
def test_dynamic_sizes(options: dict[str, Any]) -> None:
    compiled = compile_for(no_branch, options)
    base, other = torch.arange(40.0), torch.arange(40.0)
    for start, length in ((20, 4), (20, 6), (20, 8), (3, 8), (20, 9), (1, 9)):
        wanted = base[:length], base[start : start + length]
        given = other[:length], other[start : start + length]
        assert_same(no_branch(*wanted), compiled(*given), f"{start}, {length}")
        assert_same(base, other, "memory")


@pytest.mark.parametrize("options", OP_BY_OP)
def test_training(options: dict[str, Any]) -> None:
    compiled = compile_for(both_written, options)
    for kind in ("apart", "head_and_tail", "detached", "tail_and_head"):
        for sign in (-1, 1):
            found = []
            for called in (both_written, compiled):
                leaf = numbers(sign).requires_grad_()
                a, b = called(*PAIRS[kind](leaf * 1))
                if b.requires_grad:
                    (a.sum() + (b * b).sum()).backward()
                found.append((a.detach(), b.detach(), leaf.grad))
            assert_same(*found, f"{kind} of {sign}")


def writes_one_place_twice(a: Tensor, b: Tensor) -> Tensor:
    a.zero_()
    return b.sum()


@pytest.mark.parametrize("options", OP_BY_OP)
def test_elements_in_one_place(options: dict[str, Any]) -> None:
    for kind in ("expanded_first", "apart"):
        compiled = compile_for(writes_one_place_twice, options)
        check(writes_one_place_twice, compiled, kind, 1)
    expanded = torch.ones(6).expand(4, 6)
    compiled = compile_for(writes_one_place_twice, options)
    assert compiled(expanded, torch.ones(3)) == 3
    assert expanded.count_nonzero() == 0


def data_of_one_piece(a: Tensor, b: Tensor) -> Tensor:
    b.data.add_(2)
    return a * 2


def test_a_view_that_autograd_lets_nobody_write() -> None:
    for options in OP_BY_OP:
        leaf = torch.ones(6, 2, requires_grad=True)
        pieces = (leaf * 1).split(3)
        assert compile_for(data_of_one_piece, options)(*pieces).sum() == 12
        assert pieces[1].sum() == 18


def test_tensors_of_a_call_are_not_kept() -> None:
    compiled = compile_for(no_branch, {"codegen": "eager"})
    a, b = torch.ones(3, 2), torch.ones(3, 2)
    held = [weakref.ref(a), weakref.ref(b)]
    compiled(a, b)
    del a, b
    gc.collect()
    assert [one() for one in held] == [None, None]


def many(tensors: list[Tensor], x: Tensor) -> Tensor:
    for tensor in tensors:
        tensor.add_(x)
    return tensors[0] + x


def test_many_inputs() -> None:
    compiled = compile_for(many, {"codegen": "eager"})
    for shared in (False, True, False):
        found = []
        for called in (many, compiled):
            tensors = [torch.ones(2) for _ in range(80)]
            x = tensors[7] if shared else torch.ones(2)
            found.append((called(tensors, x.view(2)), tensors))
        assert_same(*found, "many")


class Held(nn.Module):
    """A model whose arm writes a buffer, and with more tensors than are asked about for nothing."""

    def __init__(self, shared: str, more: int) -> None:
        super().__init__()
        numbers = np.arange(1.0, 9.0, dtype=np.float32)
        a, b = torch.from_numpy(numbers[:4]), torch.from_numpy(numbers[2:6])
        if shared != "arrays":
            flat = torch.arange(1.0, 9.0)
            a, b = (flat[:4], flat[2:6]) if shared == "flat" else (flat[:4].clone(), b.clone())
        self.a = nn.Parameter(a, requires_grad=False)
        self.register_buffer("b", b)
        weights = (torch.full((4,), 0.5 * n) for n in range(more))
        self.weights = nn.ParameterList(nn.Parameter(w, requires_grad=False) for w in weights)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.b.add_(100)
            y = self.a * 2
        else:
            y = self.a * 3
        return y + torch.stack(list(self.weights)).sum(0)

    def share(self, how: str) -> None:
        if how == "data":
            self.a.data = self.b.data
        elif how == "array":
            self.a.data = torch.from_numpy(self.b.numpy())


@pytest.mark.parametrize("more", [3, 80])
@pytest.mark.parametrize("shared", ["arrays", "flat", "apart"])
def test_aliased_tensors_of_a_module(shared: str, more: int) -> None:
    modules = Held(shared, more), Held(shared, more)
    called = modules[0], compile_for(modules[1], {"codegen": "eager"})
    for sign in (-1, 1, -1, 1):
        found = [one(torch.full((4,), float(sign))) for one in called]
        assert_same((found[0], modules[0].b), (found[1], modules[1].b), f"{shared} of {sign}")
    kept = ("keep", "alias") if shared != "apart" else ("where", "pure_total")
    assert set(decisions(called[1])) == {kept}


@pytest.mark.parametrize("more", [3, 80])
@pytest.mark.parametrize("how", ["data", "array"])
def test_tensors_of_a_module_that_alias_later(how: str, more: int) -> None:
    modules = Held("apart", more), Held("apart", more)
    called = modules[0], compile_for(modules[1], {"codegen": "eager"})
    for turn, sign in enumerate((-1, 1, 1, -1)):
        for module in modules:
            module.share(how if turn == 2 else "")
        found = [one(torch.full((4,), float(sign))) for one in called]
        assert_same((found[0], modules[0].b), (found[1], modules[1].b), f"turn {turn}")


class Plain(Held):
    def forward(self, x: Tensor) -> Any:
        self.b.add_(x)
        return self.a[2:], self.b[0], torch.stack(list(self.weights)).sum(0)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shared", ["arrays", "flat"])
def test_many_that_share_from_the_start_where_nothing_is_captured(
    shared: str, options: dict[str, Any]
) -> None:
    modules = Plain(shared, 80), Plain(shared, 80)
    called = modules[0], compile_for(modules[1], options)
    for sign in (-1, 1):
        found = [one(torch.full((4,), float(sign))) for one in called]
        assert_same((found[0], modules[0].b), (found[1], modules[1].b), f"{shared} of {sign}")


@pytest.mark.parametrize(
    ("kind", "more", "expected"), [(Plain, 80, 2), (Plain, 3, 6), (Held, 80, 83)]
)
def test_later_calls_check_only_inputs_that_are_written(
    kind: type[Held], more: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[int] = set()
    holds = OverlapCheck.holds

    def counted(self: OverlapCheck, *tensors: Tensor) -> bool:
        asked.add(len(tensors))
        return holds(self, *tensors)

    monkeypatch.setattr(OverlapCheck, "holds", counted)
    compiled = compile_for(kind("apart", more), {"codegen": "eager"})
    for sign in (1.0, -1.0):
        compiled(torch.full((4,), sign))
    assert asked == {expected}
