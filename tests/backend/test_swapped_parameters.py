"""What is compiled holds on to nothing that keeps a module from being converted."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if y.isnan().any():
            y = torch.nan_to_num(y)
        if y.sum() > 1e9:
            raise ValueError(f"{y} {self.calls}")
        self.calls.add_(1)
        return y * y.max().item()


@pytest.fixture
def _swaps() -> Iterator[None]:
    torch.__future__.set_swap_module_params_on_conversion(True)
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()  # what is in cycles stays, as what has survived a few collections does
    with torch._dynamo.config.patch(run_gc_after_compile=False):
        yield
    if enabled:
        gc.enable()
    torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.usefixtures("_swaps")
@pytest.mark.parametrize("make", [Net, lambda: nn.Linear(4, 4)])
@pytest.mark.parametrize("codegen", ["eager", "inductor"])
@pytest.mark.parametrize("training", [True, False])
def test_parameters_can_be_swapped(make: Any, codegen: str, training: bool) -> None:
    model = make().train(training)
    compiled = torch.compile(model, backend="fusepass", options={"codegen": codegen})
    with torch.set_grad_enabled(training):
        result = compiled(torch.ones(2, 4))
        if training:
            result.sum().backward()
    del result
    model.zero_grad()
    assert not any(map(weakref.getweakrefs, model.parameters()))
    model.double()
    assert compiled(torch.ones(2, 4, dtype=torch.float64)).dtype is torch.float64
