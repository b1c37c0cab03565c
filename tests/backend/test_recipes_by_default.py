"""The recipe that is tried without max-autotune: for many reductions side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass import recipe_search, tune
from fusepass.recipe_search import RECIPES, RULE
from fusepass.recipe_trial import Trial
from fusepass.tune.timing import Samples

NAME = "combo_kernels"


@pytest.fixture(autouse=True)
def on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """As if what is for CUDA were for the CPU, too, and faster; whether a bar was to be shown."""
    monkeypatch.setenv("FUSEPASS_CACHE_DIR", str(tmp_path))
    everywhere = tuple(replace(one, devices=("cpu",)) for one in RECIPES)
    monkeypatch.setattr(recipe_search, "RECIPES", everywhere)
    monkeypatch.setattr(recipe_search, "_spent", [0.0])
    shown: list[bool] = []

    def timed(self: Trial, calls: dict[str, Callable[[], Any]]) -> Samples:
        shown.append(self.shows)
        return Samples({name: [5.0 if name == NAME else 10.0] * 7 for name in calls})

    monkeypatch.setattr(Trial, "_timed", timed)
    tune.reset()
    yield shown
    tune.reset()


def norms(*given: Tensor) -> Tensor:
    return torch.stack([one.norm() for one in given])


def scaled(*given: Tensor) -> list[Tensor]:
    return [one / one.abs().amax(1, keepdim=True) for one in given]


def cut_off(*given: Tensor) -> list[Tensor]:
    total = torch.stack([one.norm() for one in given]).norm()
    for one in given:
        one.mul_((1 / total).clamp(max=1))
    return list(given)


def drawing(*given: Tensor) -> list[Tensor]:
    return [(one + torch.rand_like(one)).sum() for one in given]


def side_by_side(*given: Tensor) -> list[Tensor]:
    return [one + 1 for one in given]


def tensors(count: int = 8) -> list[Tensor]:
    return [torch.rand(5 + i, 4) + 0.5 for i in range(count)]


def decided(program: Callable[..., Any], given: list[Tensor], **options: Any) -> list[Any]:
    torch.compiler.reset()
    compiled = torch.compile(program, backend="fusepass", options=options, dynamic=False)
    mine, theirs = ([one.clone() for one in given] for _ in range(2))
    with torch.set_grad_enabled(options == {"mode": None}):
        torch.testing.assert_close(compiled(*mine), program(*theirs))
    torch.testing.assert_close(mine, theirs)
    return [one for one in fusepass.last_report(compiled).decisions if one.rule == RULE]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("program", [norms, scaled])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_many_reductions(program: Any, mode: str, on_the_cpu: list[bool]) -> None:
    (one,) = decided(program, tensors(), mode=mode)
    assert (one.outcome, one.reason_code) == ("applied", "measured")
    assert f"{NAME} is 2.00 times as fast" in one.reason
    assert not any(on_the_cpu)
    assert recipe_search._spent[0] > 0
    (again,) = decided(program, tensors(), mode=mode)  # from the table
    assert again.reason == one.reason.partition("; finding out took")[0] != one.reason


def test_what_is_left() -> None:
    assert not decided(norms, tensors(7))
    assert not decided(side_by_side, tensors(9))
    assert not decided(norms, tensors(), rules={"recipes": False})
    assert not decided(norms, tensors(), **{"inductor.combo_kernels": False})
    assert not decided(norms, tensors(), codegen="eager")


@pytest.mark.parametrize(("program", "why"), [(cut_off, "writes its inputs"), (drawing, "random")])
def test_what_cannot_be_called_to_see(program: Any, why: str) -> None:
    torch.compiler.reset()
    compiled = torch.compile(program, backend="fusepass", dynamic=False)
    given = tensors()
    with torch.no_grad():
        compiled(*given)
    (one,) = (d for d in fusepass.last_report(compiled).decisions if d.rule == RULE)
    assert one.outcome == "rejected"
    assert why in one.reason


def test_with_gradients_nothing_is_tried() -> None:
    torch.compiler.reset()
    compiled = torch.compile(norms, backend="fusepass", dynamic=False)
    compiled(*tensors())
    assert not [d for d in fusepass.last_report(compiled).decisions if d.rule == RULE]


def test_its_seconds_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known is used all the same."""
    (first,) = decided(norms, tensors())
    monkeypatch.setattr(recipe_search, "_spent", [31.0])
    (known,) = decided(norms, tensors())
    assert known.outcome == first.outcome == "applied"
    (other,) = decided(norms, tensors(9))
    assert (other.outcome, other.reason_code) == ("rejected", "cost")
    assert "30 s" in other.reason


def test_of_sizes_that_vary_nothing_is_tried() -> None:
    torch.compiler.reset()
    compiled = torch.compile(norms, backend="fusepass", dynamic=True)
    with torch.no_grad():
        compiled(*tensors())
    assert not [d for d in fusepass.last_report(compiled).decisions if d.rule == RULE]
