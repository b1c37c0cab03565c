"""Numbers computed from inputs, read before the graph runs."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import fusepass
from fusepass.torch_private.dynamo import entry_numbers

pytestmark = pytest.mark.filterwarnings("error::fusepass.errors.CaptureFault")
RULES = {"codegen": "eager", "rules": {"specialize": True}}


def compiled_of(program: Callable[..., Any], **more: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(program, backend="fusepass", options={**RULES, **more})


def assert_same(found: Any, wanted: Any) -> None:
    leaves, form = pytree.tree_flatten(wanted)
    others, other_form = pytree.tree_flatten(found)
    assert form == other_form
    for one, other in zip(leaves, others, strict=True):
        assert type(one) is type(other)
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other


def kept_of(compiled: Any) -> list[str]:
    return [d.reason for d in fusepass.last_report(compiled).decisions if d.treatment == "keep"]


X = torch.arange(160.0).reshape(40, 4)


def rows(x: Tensor, grid: Tensor) -> list[Tensor]:
    found, at = [], 0
    for t, h, w in grid.tolist():
        found.append(x[at : at + t * h * w].reshape(t, h, w, 4).sum((1, 2)))
        at += t * h * w
    return found


def longest(x: Tensor, lengths: Tensor) -> Tensor:
    return x[: lengths.max().item()] * 2


def split(x: Tensor, sizes: Tensor) -> tuple[Tensor, ...]:
    return x.split(sizes.tolist())


def rounds(x: Tensor, counts: Tensor) -> Tensor:
    for i in range(int(counts[0])):
        x = x + i
    return x


def iterated(x: Tensor, grid: Tensor) -> Tensor:
    total = 0
    for t, h, w in grid:
        total = total + t * h * w
    return x[:total]


def keyed(x: Tensor, flags: Tensor) -> Tensor:
    return x * {True: 2, False: 3}[(flags > 0).any().item()]


def other_form(x: Tensor, flag: Tensor) -> Any:
    if (flag == 3).any():
        return x, [1]
    return {"sum": x.sum()}


def two_inputs(x: Tensor, a: Tensor) -> tuple[Tensor, list[int]]:
    return x[: (a[0] + a[1]).item()], (a * 2).tolist()


PROGRAMS = [
    (rows, [[[1, 2, 3], [2, 2, 2]], [[1, 3, 2], [2, 3, 2]], [[1, 4, 2], [2, 2, 3]]]),
    (longest, [[3, 5], [6, 4], [7, 2], [2, 9]]),
    (split, [[10, 20, 10], [20, 10, 10], [12, 8, 20]]),
    (rounds, [[3, 1], [4, 1], [3, 2]]),
    (iterated, [[[1, 2, 3], [1, 1, 4]], [[1, 2, 3], [1, 2, 4]], [[1, 3, 3], [1, 3, 4]]]),
    (keyed, [[0, 0], [0, 1], [2, 1], [0, 0]]),
    (other_form, [[1, 2], [3, 2], [1, 1], [3, 3]]),
    (two_inputs, [[1, 2], [2, 5], [3, 3]]),
]


@pytest.mark.parametrize(("program", "data"), PROGRAMS)
def test_values_of_inputs_break_no_graph(program: Callable[..., Any], data: list[Any]) -> None:
    compiled = compiled_of(program)
    for values in data:
        given = torch.tensor(values)
        assert_same(compiled(X, given), program(X, given))
    assert not kept_of(compiled)
    report = fusepass.last_report(compiled)
    codes = {d.reason_code.value for d in report.decisions if d.treatment == "specialize"}
    assert codes <= {"at_entry"}
    assert report.graphs <= 3


@pytest.mark.parametrize("program", [longest, split])
def test_sizes_take_two_compiles(program: Callable[..., Any]) -> None:
    compiled = compiled_of(program)
    for last in range(2, 12):
        given = torch.tensor([last, 40 - last])
        assert_same(compiled(X, given), program(X, given))
    assert fusepass.last_report(compiled).graphs == 2


def test_off_by_default() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(split, backend="fusepass", options={"codegen": "eager"})
    assert_same(compiled(X, torch.tensor([30, 10])), split(X, torch.tensor([30, 10])))
    assert kept_of(compiled)


# --- near misses ----------------------------------------------------------------------------------


def written_before(x: Tensor, n: Tensor) -> Tensor:
    n.add_(1)
    return x[: n.max().item()]


def written_copy(x: Tensor, n: Tensor) -> Tensor:
    n = n.clone()
    n[0] = 7
    return x[: n.max().item()]


def written_through_numpy(x: Tensor, n: Tensor) -> Tensor:
    n.numpy()[0] = 9
    return x[: n.max().item()]


def filled_through_numpy(x: Tensor, n: Tensor) -> Tensor:
    n.numpy().fill(9)
    return x[: n.max().item()]


def written_by_torch_through_numpy(x: Tensor, n: Tensor) -> Tensor:
    torch.from_numpy(n.numpy()).add_(4)
    return x[: n.max().item()]


def written_alias(x: Tensor, n: Tensor) -> Tensor:
    x.view(torch.int64)[0, 0] = 9
    return x[: n.max().item()]


def given_other_memory(x: Tensor, n: Tensor) -> Tensor:
    n.data = n + 3
    return x[: n.max().item()]


def random_count(x: Tensor, n: Tensor) -> Tensor:
    torch.manual_seed(3)
    return x[: torch.randint(1, 9, (1,)).item()]


def out_of_range(x: Tensor, n: Tensor) -> Any:
    try:
        return x[: n[n[0]].item()]
    except IndexError as error:
        return str(error)


@pytest.mark.parametrize(
    "program",
    [
        written_before,
        written_copy,
        written_through_numpy,
        filled_through_numpy,
        written_by_torch_through_numpy,
        written_alias,
        given_other_memory,
        random_count,
        out_of_range,
    ],
)
def test_what_the_frame_writes_is_read_where_it_stands(program: Callable[..., Any]) -> None:
    compiled = compiled_of(program)
    for values in ([1, 2], [1, 5], [0, 6], [4, 1]):
        x, given = X.clone(), torch.tensor(values)
        mine, other = x.clone(), given.clone()
        assert_same(compiled(x, given), program(mine, other))
        assert torch.equal(given, other)


def test_aliases_written_in_front_of_the_read() -> None:
    def program(x: Tensor, n: Tensor, alias: Tensor) -> Tensor:
        alias.add_(1)
        return x[: n.max().item()]

    compiled = compiled_of(program)
    for start in (1, 2, 5):
        first, second = (torch.tensor([start, 2]) for _ in range(2))
        assert_same(compiled(X, first, first[:]), program(X, second, second[:]))
        assert_same(compiled(X, first, second), program(X, first, second - 1))


def test_too_many_truth_values_are_kept() -> None:
    def program(x: Tensor, flags: Tensor) -> Tensor:
        for flag in flags.tolist():
            x = x + {True: 2, False: 3}[flag]
        return x

    compiled = compiled_of(program)
    for n in range(8):
        given = torch.tensor([bool(n & 1), bool(n & 2), bool(n & 4)])
        assert_same(compiled(X, given), program(X, given))
    assert kept_of(compiled)
    assert fusepass.last_report(compiled).graphs <= 8


def test_numbers_compiled_one_by_one_leave_the_function_compiled() -> None:
    compiled = compiled_of(rounds)
    for n in range(1, 20):
        given = torch.tensor([n, 0])
        assert_same(compiled(X, given), rounds(X, given))
    assert fusepass.last_report(compiled).graphs <= 2 * torch._dynamo.config.recompile_limit


def test_many_numbers_are_kept() -> None:
    compiled = compiled_of(split)
    sizes = torch.ones(65, dtype=torch.int64)
    x = torch.ones(65, 2)
    assert_same(compiled(x, sizes), split(x, sizes))
    assert kept_of(compiled)


def test_floats_are_kept() -> None:
    def program(x: Tensor, s: Tensor) -> Any:
        return {s.item(): x + 1}

    compiled = compiled_of(program)
    for value in (0.5, 1.5):
        assert_same(compiled(X, torch.tensor(value)), program(X, torch.tensor(value)))
    assert kept_of(compiled)


@pytest.mark.parametrize("dynamic", [True, False])
def test_dynamic_as_asked(dynamic: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(longest, backend="fusepass", options=RULES, dynamic=dynamic)
    for n in (3, 4, 5):
        given = torch.tensor([n, 2])
        assert_same(compiled(X, given), longest(X, given))
    assert fusepass.last_report(compiled).graphs == (1 if dynamic else 3)


# --- guards -----------------------------------------------------------------------------------


def test_filters_of_guards_do_not_drop_those_on_values() -> None:
    compiled = compiled_of(keyed, guard_filter_fn=lambda entries: [False for _ in entries])
    for values in ([0, 0], [0, 1], [0, 0], [3, 3]):
        given = torch.tensor(values)
        assert_same(compiled(X, given), keyed(X, given))
    sizes = compiled_of(longest, guard_filter_fn=lambda entries: [False for _ in entries])
    for n in (3, 4, 0, 1, 5):
        given = torch.tensor([n, 0])
        assert_same(sizes(X, given), longest(X, given))


def test_a_stance_without_guards_is_not_silent() -> None:
    compiled = compiled_of(keyed)
    given = [torch.tensor(values) for values in ([0, 0], [0, 1])]
    compiled(X, given[0])
    with torch.compiler.set_stance(skip_guard_eval_unsafe=True):
        with pytest.raises(RuntimeError, match="skip_guard_eval_unsafe"):
            compiled(X, given[1])
        assert_same(compiled(X, given[0]), keyed(X, given[0]))
    compiled(X, given[1])
    with torch.compiler.set_stance(skip_guard_eval_unsafe=True):
        for one in (*given, *given):
            assert_same(compiled(X, one), keyed(X, one))


def test_versions_of_one_call_share_what_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Tensor, counts: Tensor) -> Tensor:
        for _ in range(counts.sum().item()):
            x = x + 1
        return x

    compiled = compiled_of(program)
    given = [torch.tensor([n, 1]) for n in range(5)]
    for one in given:
        compiled(X, one)
    done = []
    computed = entry_numbers.computed
    monkeypatch.setattr(
        entry_numbers, "computed", lambda *args: done.append(args) or computed(*args)
    )
    for one in (*given, *given):
        done.clear()
        assert_same(compiled(X, one), program(X, one))
        assert len(done) == 1


class Seen(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        return function(*args, **(kwargs or {}))


def test_under_modes_and_transforms() -> None:
    compiled = compiled_of(longest)
    given = torch.tensor([3, 4])
    for _ in range(2):
        with torch.inference_mode():
            assert_same(compiled(X, given), longest(X, given))
        with Seen():
            assert_same(compiled(X, given), longest(X, given))
        found = torch.func.vmap(lambda x, given=given: compiled(x, given))(X[None].repeat(2, 1, 1))
        assert_same(found, longest(X, given).repeat(2, 1, 1))
        given = given + 1


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("shape", torch.tensor([[2, 2, 3]]))

    def forward(self, x: Tensor, sizes: Tensor) -> tuple[Tensor, ...]:
        y = x[: self.count.item()]
        for flag, size in zip(self.flags.tolist(), sizes.tolist(), strict=False):
            more = x.new_full((size, x.shape[1]), {True: 1.0, False: -1.0}[flag])
            y = torch.cat([y, more])
        ((a, b, c),) = self.shape.tolist()
        return y, torch.ones(a, b, c), x[: sizes.max().item()]


def _change(model: Held, sizes: Tensor, draw: random.Random) -> Tensor:
    """Change one input or buffer in some way; gives the sizes for the next call."""
    new = torch.tensor([draw.randint(0, 9) for _ in range(sizes.numel())])
    at = draw.randrange(sizes.numel())
    kind = draw.randrange(14)
    if kind < 4 and sizes.is_inference():
        kind = 4
    if kind == 0:
        sizes.numpy()[at] = draw.randint(0, 9)
    elif kind == 1:
        sizes.data.copy_(new)
    elif kind == 2:
        sizes.data = new
    elif kind == 3:
        sizes[at] = draw.randint(0, 9)
    elif kind == 4:
        sizes = new
    elif kind == 5:
        sizes = new.to(draw.choice([torch.int32, torch.int64]))
    elif kind == 6:
        with torch.no_grad():
            model.count.fill_(draw.randint(0, 30))
    elif kind == 7:
        model.count = torch.tensor(draw.randint(0, 30))
    elif kind == 8:
        state = copy.deepcopy(model.state_dict())
        state["count"] += 1
        state["flags"] = ~state["flags"]
        model.load_state_dict(state)
    elif kind == 9:
        sizes = torch.stack([new, new], 1)[:, 0]
    elif kind == 10:
        with torch.inference_mode():
            sizes = new.clone()
    elif kind == 11:
        model.shape.view(-1)[draw.randrange(3)] = draw.randint(1, 4)
    elif kind == 12:
        sizes = torch.tensor([3, 4, 5][: draw.randint(1, 3)])
    else:
        model.flags.numpy()[draw.randrange(2)] = draw.random() < 0.5
    return sizes


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(4))
def test_no_change_of_contents_goes_unseen(seed: int) -> None:
    draw = random.Random(seed)
    model = Held()
    sizes = torch.tensor([3, 4])
    with torch._dynamo.config.patch(recompile_limit=64):
        compiled = compiled_of(model)
        for _ in range(2500):
            assert_same(compiled(X, sizes), model(X, sizes))
            sizes = _change(model, sizes, draw)
