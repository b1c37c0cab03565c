"""Convolution chains keep the strides that eager gives their results."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.patterns.conv_programs import CHANNELS, Layer, agrees


@pytest.mark.parametrize("left", [False, True])
def test_a_sum_lies_as_its_left_operand(left: bool) -> None:
    """Where that is not the convolution's result, its kernel would give other strides."""

    def around(layer: Layer, y: Tensor, x: Tensor) -> Tensor:
        z = x.contiguous(memory_format=torch.channels_last)
        return F.relu(z + y if left else y + z)

    _, found = agrees(Layer(around).eval(), torch.randn(2, CHANNELS, 7, 5))
    assert found == (0 if left else 1)
