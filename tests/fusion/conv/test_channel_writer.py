"""What happens to the channels of images as vectors: nothing, where nothing has to."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.patterns.conv_programs import CHANNELS, aten_graph


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_bias_alone_is_not_copied(dtype: torch.dtype) -> None:
    module = nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 3), nn.ReLU()).eval().to(dtype)
    graph = aten_graph(module, torch.randn(2, CHANNELS, 7, 5).to(dtype), "conv_relu")
    assert "fusepass.conv_relu" in graph
    assert "convert_element_type" not in graph
