"""Numbers that differ between the arms: each call that uses one is made twice and selected between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from fusepass.capture.scalars.arm_scalars import choice

from ..support.side_by_side import Outcome, side_by_side, signed

TURNS = signed(1.0, -0.5, 2.0, 0.25)


def scaled(x: Tensor) -> Tensor:
    s = 2.0 if x.sum() > 0 else 0.1
    return x * s


def choices(outcome: Outcome) -> list[fx.Node]:
    return [n for gm in outcome.graphs for n in gm.graph.nodes if n.target is choice]


def test_choice_runs_as_it_stands() -> None:
    assert choice(torch.tensor(True), 1, 2) == 1
    assert choice(torch.tensor(False), 1, 2) == 2


def test_the_call_is_made_with_either_number() -> None:
    outcome = side_by_side(scaled, *TURNS)
    outcome.only("where", "pure_total")
    assert outcome.ops["mul"] == 2
    assert outcome.ops["where"] == 1
    assert not choices(outcome)
    (gm,) = outcome.graphs
    numbers = {n.args[1] for n in gm.graph.nodes if n.target in ("mul", torch.mul)} | {
        n.args[1] for n in gm.graph.nodes if getattr(n.target, "__name__", "") == "mul"
    }
    assert numbers == {2.0, 0.1}


def test_a_number_nobody_uses_leaves_nothing() -> None:
    def program(x: Tensor) -> Tensor:
        s = 2.0 if x.sum() > 0 else 0.1
        s = 3.0
        return x * s

    outcome = side_by_side(program, *TURNS)
    outcome.only("where", "pure_total")
    assert outcome.ops["mul"] == 1
    assert outcome.ops["where"] == 0
    assert not choices(outcome)


def test_arithmetic_of_numbers_is_done_when_compiling() -> None:
    def program(x: Tensor) -> Tensor:
        s = 3 if x.sum() > 0 else 0.5
        return x * (2 * s + 1)

    outcome = side_by_side(program, *TURNS)
    outcome.only("where", "pure_total")
    assert outcome.ops["mul"] == 2
    assert outcome.ops["add"] == 0


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.uint8]
)
def test_promotion_and_rounding_are_those_of_the_number(dtype: torch.dtype) -> None:
    def program(x: Tensor, flag: Tensor) -> tuple[Tensor, Tensor]:
        s = 3 if flag else 7
        return x * s, x / 3 + s

    x = torch.tensor([1, 2, 100, 0]).to(dtype)
    outcome = side_by_side(program, *[(x, torch.tensor(f)) for f in (True, False, True)])
    outcome.only("where", "pure_total")


def test_gradients_are_those_of_the_arm_taken() -> None:
    side_by_side(scaled, *TURNS, grad=True).only("where", "pure_total")


def test_no_nan_from_the_number_not_taken() -> None:
    def program(x: Tensor) -> Tensor:
        s = float("inf") if x.sum() > 0 else 2.0
        return x * s

    negative = [(-torch.rand(4),)]
    side_by_side(program, *negative, grad=True).only("where", "pure_total")


def ratio(x: Tensor) -> Tensor:
    den = x.relu().sum()
    loss = x.sum() / den if den != 0 else 0.0
    return (loss + x.mean()) * 2


def test_a_tensor_in_one_arm_and_a_number_in_the_other() -> None:
    calls = [*signed(1.0, -0.5, 2.0), (torch.zeros(3),)]
    side_by_side(ratio, *calls).only("where", "pure_total")
    side_by_side(ratio, *calls, grad=True).only("where", "pure_total")


def test_dynamic_shapes() -> None:
    calls = [(s * torch.arange(-1.0, n),) for n in (5, 7, 6) for s in (1, -1)]
    outcome = side_by_side(scaled, *calls, dynamic=True)
    assert set(outcome.treatments) == {("where", "pure_total")}


def test_scalars_of_arms_times_empty_tensors() -> None:
    def program(x: Tensor, flag: Tensor) -> Tensor:
        s = 2.0 if flag else 0.1
        return x * s

    calls = [(torch.zeros(0, 3), torch.tensor(flag)) for flag in (True, False)]
    side_by_side(program, *calls).only("where", "pure_total")


SEEN: dict[str, Callable[[Tensor, Any], Any]] = {
    "returned": lambda x, s: (x * 2, s),
    "a dimension": lambda x, s: torch.stack([x, x, x, x]).sum(s - 2),
    "in place": lambda x, s: (x * 1).mul_(s),
    "a size": lambda x, s: x.new_zeros(s) + 1,
    "a reduction": lambda x, s: x.norm(s),
    "a test": lambda x, s: x * 2 if s > 2 else x + 1,
}


@pytest.mark.parametrize("name", SEEN)
def test_where_more_than_tensor_arithmetic_uses_it_either_number_is_used(name: str) -> None:
    def program(x: Tensor) -> Any:
        s = 2 if x.sum() > 0 else 3
        return SEEN[name](x, s)

    side_by_side(program, *TURNS).only("where", "pure_total")


def test_either_result_is_used_where_they_differ_in_dtype() -> None:
    def program(x: Tensor) -> Tensor:
        s = 2 if x.sum() > 0 else 0.5
        return x * s

    calls = signed(3, -1, 2, dtype=torch.int64)
    side_by_side(program, *calls).only("where", "pure_total")


def test_kept_where_a_number_divides_whole_numbers_by_nothing() -> None:
    def program(x: Tensor) -> Tensor:
        s = 2 if x.sum() > 0 else 0
        return x // s if x.numel() else x

    outcome = side_by_side(program, (torch.tensor([5, -2]),))
    assert {t for t, _ in outcome.treatments} <= {"keep", "cond"}


def test_a_cond_does_not_choose_numbers() -> None:
    outcome = side_by_side(scaled, *TURNS, treatment="cond")
    assert {t for t, _ in outcome.treatments} <= {"keep", "cond"}


def test_a_number_chosen_in_an_arm_that_draws_leaves_its_draws_there() -> None:
    """What autocast is entered for in the arms is read by nobody, and stays in them."""

    def program(x: Tensor, level: Tensor, flag: Tensor) -> Tensor:
        if x.min() > 0:
            return x + torch.rand_like(x)
        t = x + torch.rand_like(x) * 3
        if not (level and not flag):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                _unread = (x @ x).float()
            k = 0.5
        else:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                _unread = (t @ x).float()
            k = 1.0
        return x - k + t

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for x in (torch.ones(2, 2), -torch.ones(2, 2)):
        for level in (0.0, 1.0):
            given = (x, torch.tensor([[level]]), torch.tensor(False))
            torch.manual_seed(3)
            want, after = program(*given), torch.get_rng_state()
            torch.manual_seed(3)
            torch.testing.assert_close(compiled(*given), want)
            assert torch.equal(torch.get_rng_state(), after)


def test_arithmetic_of_a_number_that_differs_stays_small() -> None:
    def program(x: Tensor) -> Tensor:
        s = 1.0 if x.sum() > 0 else 2.0
        for _ in range(60):  # as one expression of the first number it has 2 ** 60 terms
            s = s * s - s
        return x * s

    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for x in (torch.ones(2), -torch.ones(2)):
        assert torch.equal(compiled(x), program(x))


def test_arithmetic_of_a_number_that_differs_is_not_algebra() -> None:
    def program(x: Tensor) -> Tensor:
        s = float("inf") if x.sum() > 0 else 1.0
        return x * (s - s) + (s + 1e20 - 1e20)

    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for x in (torch.ones(2), -torch.ones(2)):
        assert torch.equal(compiled(x).nan_to_num(7.0), program(x).nan_to_num(7.0))
