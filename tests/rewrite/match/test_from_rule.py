"""What the trace of a pattern finds out of its sizes is asked of every match."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass

X = torch.randn(4, 8)
PLACES = pytest.mark.parametrize("place", ["before", "after"])


def decision(
    rule: fusepass.Rule, program: Callable[..., Any], *inputs: Tensor, dynamic: bool = False
) -> tuple[str, str]:
    """Reason code and text of the rule's first decision; results must be eager's."""
    fusepass.reset()
    codegen = "eager" if rule.place == "before" else "eager-decomposed"
    with fusepass.rules(rule):
        compiled = torch.compile(
            program, backend="fusepass", options={"codegen": codegen}, dynamic=dynamic
        )
        with torch.no_grad():
            torch.testing.assert_close(compiled(*inputs), program(*inputs))
        decisions = fusepass.last_report(compiled).decisions
    found = [(d.reason_code.value, d.reason) for d in decisions if d.rule == rule.name]
    return found[0] if found else ("nothing", "")


def chooses(x: Tensor) -> Tensor:
    return x.sin() * 2 if x.shape[0] > 2 else x.cos()


def chooses_too(x: Tensor) -> Tensor:
    return 2 * torch.sin(x) + 0 if x.shape[0] > 2 else torch.cos(x) + 0


@PLACES
def test_a_pattern_that_chooses_by_a_size(place: Any) -> None:
    """Only where it would choose the same."""
    rule = fusepass.Rule("test_chooses", chooses, chooses_too, (X,), place=place)
    assert decision(rule, lambda x: x.sin() * 2, torch.randn(3, 5))[0] == "proved"
    code, text = decision(rule, lambda x: x.sin() * 2, torch.randn(2, 5))
    assert code == "shape_mismatch"
    assert "chose by x.shape[0] > 2" in text
    assert decision(rule, lambda x: x.cos(), torch.randn(2, 5))[0] == "nothing"


def test_a_choice_is_not_known_of_a_size_that_varies() -> None:
    rule = fusepass.Rule("test_chooses", chooses, chooses_too, (X,))
    code, _ = decision(rule, lambda x: x.sin() * 2, torch.randn(7, 5), dynamic=True)
    assert code == "shape_mismatch"


def scaled(x: Tensor) -> Tensor:
    return x.exp() * x.shape[-1] ** -0.5


@pytest.mark.parametrize(
    ("place", "dynamic"), [("before", False), ("before", True), ("after", False)]
)
def test_a_number_computed_from_a_size(place: Any, dynamic: bool) -> None:
    rule = fusepass.Rule(
        "test_scale", scaled, lambda x: torch.exp(x) / x.shape[-1] ** 0.5, (X,), place=place
    )
    for size in (8, 16, 24):
        assert decision(rule, scaled, torch.randn(3, size), dynamic=dynamic)[0] == "proved"
    other = decision(rule, lambda x: x.exp() * 3**-0.5, torch.randn(3, 8), dynamic=dynamic)
    assert other[0] != "proved"


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_root_of_a_size(dynamic: bool) -> None:
    rule = fusepass.Rule(
        "test_root",
        lambda x: x.exp() / torch.sym_sqrt(x.shape[-1]),
        lambda x: torch.exp(x) / torch.sym_sqrt(x.shape[-1]),
        (X,),
    )

    def program(x: Tensor) -> Tensor:
        return x.exp() / math.sqrt(x.shape[-1])

    for size in (8, 12):
        assert decision(rule, program, torch.randn(3, size), dynamic=dynamic)[0] == "proved"


def test_another_dtype_in_a_graph_after_autograd() -> None:
    """The number is a tensor of double precision there, so the pattern is traced for that, too."""
    rule = fusepass.Rule(
        "test_scale", scaled, lambda x: torch.exp(x) / x.shape[-1] ** 0.5, (X,), place="after"
    )
    assert decision(rule, scaled, torch.randn(3, 8), dynamic=True)[0] == "variant"


def test_a_size_is_a_whole_number() -> None:
    rule = fusepass.Rule(
        "test_times", lambda x: x.exp() * x.shape[-1], lambda x: x.shape[-1] * torch.exp(x), (X,)
    )
    assert decision(rule, lambda x: x.exp() * 5, torch.randn(3, 5))[0] == "proved"
    assert decision(rule, lambda x: x.exp() * 5.0, torch.randn(3, 5))[0] != "proved"
    assert decision(rule, lambda x: x.exp() * 4, torch.randn(3, 5))[0] != "proved"
