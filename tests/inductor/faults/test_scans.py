"""``cumsum`` of a constant keeps its dtype from a pattern of Inductor's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fusepass.inductor.faults.fault import Fault
from fusepass.inductor.faults.steer import hide_scans, show_scans
from tests.inductor.faults.graphs import traced


@pytest.mark.parametrize(
    ("dtype", "hidden"), [(torch.bfloat16, True), (torch.uint8, True), (None, False)]
)
def test_hidden_and_shown(
    dtype: torch.dtype | None, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fault, "is_here", True)

    def program(x: Tensor) -> Tensor:
        return torch.ones((2, 4), dtype=torch.bool).cumsum(1, dtype=dtype) + x.to(torch.uint8)

    gm = traced(program, torch.zeros(1))
    (scan,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.cumsum.default)
    args = scan.args
    assert bool(hide_scans(gm.graph)) is hidden
    assert (scan.args != args) is hidden
    gm.recompile()
    assert gm(torch.zeros(1)).dtype is program(torch.zeros(1)).dtype
    show_scans(gm.graph)
    assert scan.args == args
