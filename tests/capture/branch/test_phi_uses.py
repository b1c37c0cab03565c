"""Code behind a join that looks at a value of which the arms left two."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ..programs import waiting_joins as joins
from ..support.side_by_side import side_by_side, signed

TURNS = signed(1.5, -0.5, 2.0, 0.25)
# One predicate true, then another, both, none.
FOUR = [
    (torch.tensor([a, b, 0.5, 2.0]),)
    for a, b in ((1.0, -1.0), (-1.0, 1.0), (1.0, 1.0), (-1.0, -1.0))
] * 2


PROGRAMS = [*joins.WHOLE, *joins.OTHERS]
# What is kept, in training only or always, and a part of the reason.
KEPT = {joins.filtered: "a list"}
if sys.version_info >= (3, 12):  # where a comprehension fills a list of the frame's own
    KEPT |= {joins.comprehension: "looks at a list", joins.iterators: "different co"}
KEPT_IN_TRAINING = {
    joins.random_numbers: "draws random numbers",
    joins.fails_in_one_arm: "linalg_inv",
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("grad", [False, True])
def test_equal_to_eager_and_one_graph(program: Callable[[Tensor], Any], grad: bool) -> None:
    outcome = side_by_side(program, *FOUR, grad=grad)
    kept = {**KEPT, **(KEPT_IN_TRAINING if grad else {})}
    if program in kept:
        assert "keep" in {treatment for treatment, _ in outcome.treatments}
        assert kept[program] in " ".join(outcome.reasons)
    else:
        assert "keep" not in {treatment for treatment, _ in outcome.treatments}, outcome.reasons
        assert outcome.breaks == []
        assert len(outcome.graphs) == 1


COMPILED = [
    joins.is_none,
    joins.flags,
    joins.exit_index,
    joins.loop_over_range,
    joins.options_of_a_call,
    joins.must_not_be_none,
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("program", COMPILED)
def test_inductor(program: Callable[[Tensor], Any]) -> None:
    side_by_side(program, *FOUR, by_rule=True, codegen="inductor")
    side_by_side(program, *FOUR, by_rule=True, codegen="inductor", grad=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "program", [joins.is_none, joins.options_of_a_call, joins.shape_of_it, joins.list_length]
)
def test_dynamic_shapes(program: Callable[[Tensor], Any]) -> None:
    side_by_side(program, *FOUR, dynamic=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "program", [joins.is_none, joins.flags, joins.exit_index, joins.key, joins.types]
)
def test_fullgraph(program: Callable[[Tensor], Any]) -> None:
    torch._dynamo.reset()
    options = {"codegen": "eager"}
    compiled = torch.compile(program, backend="fusepass", fullgraph=True, options=options)
    for (x,) in FOUR:
        assert str(compiled(x.clone())) == str(program(x.clone()))


class Encoder(nn.Module):
    """A mask that is dropped, a flag that later layers ask, a projection used in one arm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        mask = x > 0
        if mask.all():
            mask = None  # type: ignore[assignment]
        skip = False
        for layer in self.layers:
            y = layer(x)
            if mask is not None:
                y = y.masked_fill(~mask, 0.0)
            if not skip:
                x = x + y
            if x.sum() > 3:
                skip = True
        return self.norm(x) * 2


@pytest.mark.parametrize("grad", [False, True])
def test_a_module_whose_layers_ask(grad: bool) -> None:
    torch.manual_seed(0)
    rows = [(torch.randn(4) + shift,) for shift in (3.0, 0.0, -1.0, 1.0)]
    outcome = side_by_side(Encoder().requires_grad_(grad), *rows, grad=grad)
    if not grad:
        assert outcome.breaks == []


def test_twenty_flags_take_at_most_three_times_as_many_operations_as_ten() -> None:
    def program(count: int) -> Callable[[Tensor], Tensor]:
        def flags_in_a_row(x: Tensor) -> Tensor:
            ok = True
            for i in range(count):
                if x[i] > 0.5:
                    ok = False
            return x * 2 if ok else x * 3

        return flags_in_a_row

    torch.manual_seed(0)
    rows = [(torch.zeros(20),), (torch.rand(20),), (torch.full((20,), 0.4),)]
    few, many = (side_by_side(program(count), *rows) for count in (10, 20))
    assert sum(many.ops.values()) <= 3 * sum(few.ops.values())
    assert many.breaks == []


def test_work_is_bounded() -> None:
    """A loop in a loop, each over one of two ranges, would be traced again and again."""

    def program(x: Tensor) -> Tensor:
        counts = [400 if x[i] > 0 else 401 for i in range(4)]
        for count in counts:
            for i in range(count):
                x = x + i
        return x

    side_by_side(program, *FOUR[:2])


def folded_before_and_after(x: Tensor) -> tuple[Tensor, str, str]:
    flag = x[0] > 0
    name = "a"
    if flag:
        name = "b"
    first = name + "z"
    flag.logical_not_()
    name = "a"
    if flag:
        name = "b"
    return x + 1, first, name + "z"


def folded_after(x: Tensor) -> tuple[Tensor, str, str]:
    flag = x[0] > 0
    first = second = "a"
    if flag:
        first = "b"
    flag.logical_xor_(x[1] > 0)
    if flag:
        second = "b"
    return x + 1, first + "z", second + "z"


def asked_each_round(x: Tensor) -> Tensor:
    flag = x[0] > 0
    for _ in range(3):
        name = "right" if flag else "left"
        flag.logical_not_()
        x = x * 2 + 1 if name == "right" else x * 2
    return x


def written_in_the_arm_around(x: Tensor) -> tuple[Tensor, Tensor | None]:
    made = None
    if x[1] > 0:
        flag = x[0] > 0
        if flag:
            made = x * 2
        flag.logical_not_()
    return x + 1 if made is None else made, made


def left_in_an_arm_that_writes(x: Tensor) -> tuple[Tensor, Any]:
    flag = x[0] > 0
    name = None
    if flag:
        name = "a"
    kept = None
    if x[1] > 0:
        flag.logical_not_()
        kept = (name, x * 3)
    return x + 1, kept


WRITTEN = [
    folded_before_and_after,
    folded_after,
    asked_each_round,
    written_in_the_arm_around,
    left_in_an_arm_that_writes,
]


@pytest.mark.parametrize("program", WRITTEN)
def test_a_predicate_written_later_decides_nothing_older(program: Callable[[Tensor], Any]) -> None:
    side_by_side(program, *FOUR).only("where", "pure_total")
