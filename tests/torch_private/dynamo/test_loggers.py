"""What torch logs while it is asked whether something can be traced."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor

_LOGGER = "torch._subclasses.fake_tensor"


def test_an_arm_that_fails_for_these_tensors_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        if x.sum() > 1e9:
            return torch.cat([x, y])
        return x * 2

    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    x, y = torch.ones(2, 3), torch.ones(2, 4)
    with caplog.at_level(logging.ERROR, _LOGGER):
        assert torch.equal(compiled(x, y), program(x, y))
    assert not caplog.records


def test_a_failure_of_the_program_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        if x.sum() > 1e9:
            x = x + 1
        return torch.cat([x, y])

    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    x, y = torch.ones(2, 3), torch.ones(2, 4)
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        program(x, y)
    with (
        caplog.at_level(logging.ERROR, _LOGGER),
        pytest.raises(RuntimeError, match="Sizes of tensors must match"),
    ):
        compiled(x, y)
    assert any("failed while attempting" in record.getMessage() for record in caplog.records)
