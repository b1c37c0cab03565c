"""Reductions over few numbers where no device can be asked.

What the rule does with one is in ``tests/gpu``, its code without one in ``tests/kernels``.
"""

from __future__ import annotations

import pytest
import torch
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fusepass.options import Options
from fusepass.patterns import whole_reductions
from fusepass.report.decision import Station
from fusepass.rewrite.apply.graph_rule_driver import rewrite


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_graph_for_a_device_that_is_not_there(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a program is compiled for export elsewhere: asking for processors would raise."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with FakeTensorMode():
        x = torch.empty(512, 4096, device=device)
        gm = make_fx(lambda x: x.softmax(0), select_decomp_table())(x)
    before = str(gm.graph)
    decisions = rewrite(gm, (whole_reductions.RULE,), Options(), Station.AFTER)
    assert str(gm.graph) == before
    assert {one.reason_code for one in decisions} == ({"variant"} if device == "cuda" else set())
