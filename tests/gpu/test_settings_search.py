"""Configs tried whole on a CUDA device, by the wall and as CUDA graphs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fusepass
from fusepass import tune
from fusepass.inductor.settings_search import RULE

pytestmark = [pytest.mark.gpu, pytest.mark.gpu_alone]  # what looks hopeless at first is dropped


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(16, 32, 3), nn.Conv2d(32, 32, 3, padding=1)
        self.last = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.first(x))
        x = F.silu(self.second(x)) + x
        return F.gelu(self.last(x.mean((2, 3))))


@pytest.mark.parametrize("mode", ["max-autotune", "max-autotune-no-cudagraphs"])
def test_all_configs_are_tried(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEPASS_CACHE_DIR", str(tmp_path))
    tune.reset()
    torch.compiler.reset()
    module = Network().eval().cuda().half()
    x = torch.randn(8, 16, 33, 33, device="cuda").half()
    compiled = torch.compile(module, backend="fusepass", options={"mode": mode})
    with torch.no_grad():
        for scale in (1, 2, 3):
            torch.compiler.cudagraph_mark_step_begin()
            torch.testing.assert_close(
                compiled(x * scale).float(), module(x * scale).float(), rtol=2e-2, atol=2e-2
            )
    (one,) = (d for d in fusepass.last_report(compiled).decisions if d.rule == RULE)
    names = ("inductor", "library_products", "layout_as_it_is", "channels_last")
    names += "combo_kernels", "whole_reductions", "cooperative_reductions"
    for name in (*names, "tiles_in_two_dimensions"):
        assert f"{name} " in one.reason, one.reason
    fusepass.reset()
    tune.reset()
