"""Where a branch is left to Dynamo: with ``fullgraph=True`` its error has the reason as a note."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import Unsupported


def with_gaps(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return (x + 1)[::2]
    return (x * 2)[::2]


def in_a_helper(x: Tensor) -> Tensor:
    return with_gaps(x) + 1


def in_an_arm(x: Tensor) -> Tensor:
    return with_gaps(x) if x.max() > 0 else (x * 3)[::2]


def taken_back(x: Tensor) -> tuple[Tensor, Tensor]:
    """What keeps it is known only when the graph is complete."""
    y = x * 2
    z = y if x.sum() > 0 else y + 1
    y.add_(1)
    return y, z


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (with_gaps, "stride_mismatch"),
        (in_a_helper, "stride_mismatch"),
        (in_an_arm, "stride_mismatch"),
        (taken_back, "alias"),
    ],
)
def test_the_reason_is_a_note_where_the_graph_may_not_break(
    program: Callable[[Tensor], Any], code: str
) -> None:
    compiled = torch.compile(
        program, backend="fusepass", options={"codegen": "eager"}, fullgraph=True
    )
    with pytest.raises(Unsupported) as raised:
        compiled(torch.ones(4))
    (note,) = (n for n in raised.value.__notes__ if n.startswith("fusepass: "))
    assert __file__ in note
    assert f"kept ({code})" in note


def test_kept_branches_without_fullgraph_raise_no_error() -> None:
    compiled = torch.compile(in_a_helper, backend="fusepass", options={"codegen": "eager"})
    for x in (torch.ones(4), -torch.ones(4)):
        assert torch.equal(compiled(x), in_a_helper(x))


ATTENTION = torch.nn.MultiheadAttention(4, 2, batch_first=True)


def attends_to_itself(x: Tensor) -> Tensor:
    x = x * 2
    if x.abs().max() > 3:
        x = x.clamp(-3, 3)
    result: Tensor = ATTENTION(x, x, x)[0]  # which asks whether these are one tensor
    return result


def is_itself(x: Tensor) -> tuple[Tensor, bool, bool]:
    y = x * 2
    if x.sum() > 0:
        y = y + 1
    z = y
    return y * 3, z is y, y is not z


@pytest.mark.parametrize("program", [attends_to_itself, is_itself])
def test_a_value_is_itself_whichever_arm_made_it(program: Callable[[Tensor], Any]) -> None:
    compiled = torch.compile(
        program, backend="fusepass", options={"codegen": "eager"}, fullgraph=True
    )
    with torch.no_grad():
        for scale in (1.0, 4.0, -1.0):
            x = torch.linspace(0, 1, 24).view(2, 3, 4) * scale
            torch.testing.assert_close(compiled(x), program(x))
