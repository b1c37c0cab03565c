"""What only one arm leaves comes out of it, and is chosen behind the graph if it leaves the frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ..support.side_by_side import side_by_side, signed

TURNS = signed(1.0, -0.5, 2.0, 0.25)
WIDE = [(x.reshape(2, 2),) for (x,) in TURNS]


def none_or_tensor(x: Tensor) -> Any:
    h = None
    if x.sum() > 0:
        h = x * 2
    return h, x + 1


def flag(x: Tensor) -> Any:
    ok = True
    if x.sum() > 0:
        ok = False
    return x + 1, ok


def number(x: Tensor) -> Any:
    n = 1
    if x.sum() > 0:
        n = 2
    return x + 1, n


def other_length(x: Tensor) -> Any:
    return [x * 2, x * 3] if x.sum() > 0 else [x * 4]


def inside_a_container(x: Tensor) -> Any:
    if x.sum() > 0:
        return {"a": x * 2, "b": None, "c": (1, "x")}
    return {"a": x * 3, "b": x * 4, "c": (1, "y")}


def function_or_none(x: Tensor) -> Any:
    return x + 1, (torch.sin if x.sum() > 0 else None)


def nested(x: Tensor) -> Any:
    h: Any = 0.5
    if x.sum() > 0:
        h = x.exp() if x[0] > 1 else None
    return h, x + 1


def behind_a_graph_break(x: Tensor) -> Any:
    h = None
    if x.sum() > 0:
        h = x * 2
    torch._dynamo.graph_break()
    return x + 1 if h is None else h + 1


def names_of_one_object(x: Tensor) -> Any:
    a = b = None
    if x.sum() > 0:
        a = b = [x * 2]
    return a, b, a is b


LEAVE = [
    none_or_tensor,
    flag,
    number,
    other_length,
    inside_a_container,
    function_or_none,
    nested,
]


@pytest.mark.parametrize("function", LEAVE)
@pytest.mark.parametrize("codegen", ["eager", "inductor"])
def test_a_value_that_only_leaves_is_chosen_behind_the_graph(
    function: Callable[[Tensor], Any], codegen: str
) -> None:
    outcome = side_by_side(function, *TURNS, codegen=codegen)
    outcome.only("where", "pure_total")


@pytest.mark.parametrize("function", [*LEAVE, behind_a_graph_break, names_of_one_object])
@pytest.mark.parametrize("grad", [False, True])
def test_values_and_gradients(function: Callable[[Tensor], Any], grad: bool) -> None:
    side_by_side(function, *TURNS, grad=grad)
    side_by_side(function, *TURNS, grad=grad, allow_zero_grad=False, dynamic=True)


def test_an_older_object_is_itself() -> None:
    def handed_on(x: Tensor, y: Tensor) -> Any:
        h = None
        if x.sum() > 0:
            h = y
        return h

    compiled = torch.compile(handed_on, backend="fusepass", options={"codegen": "eager"})
    x, y = torch.ones(3), torch.ones(3)
    assert compiled(x, y) is y
    assert compiled(-x, y) is None


def test_layouts_of_what_one_arm_made() -> None:
    def transposed(x: Tensor) -> Any:
        return (x * 2).t() if x.sum() > 0 else None

    side_by_side(transposed, *WIDE).only("where", "pure_total")


def test_an_arm_that_may_fail_runs_only_if_it_is_taken() -> None:
    def solved(x: Tensor) -> Any:
        return torch.linalg.inv(x) if x.sum() > 0 else None

    outcome = side_by_side(solved, *WIDE)
    outcome.only("cond", "partial_op")


def test_a_tested_tensor_that_is_written_afterwards() -> None:
    class Once(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("ready", torch.tensor(False))

        def forward(self, x: Tensor) -> Any:
            if not self.ready:
                h = None
            else:
                h = x * 2
            self.ready.fill_(True)  # type: ignore[operator]
            return h, x + 1

    module = Once()
    outcome = side_by_side(module, *TURNS)
    assert outcome.breaks == []


def test_kept_where_later_code_looks_at_it() -> None:
    def raises(x: Tensor) -> Any:
        h = None
        if x.sum() > 0:
            h = x * 2
        return h + 1  # type: ignore[operator]

    side_by_side(raises, *TURNS).only("keep", "python_value")
