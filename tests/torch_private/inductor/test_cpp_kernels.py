"""A number that is used under a mask and beside it gives C++ that compiles."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._inductor.codegen.cpp import CppVecOverrides

import fusepass
from fusepass.torch_private.inductor.generated_code import keep_numbers
from fusepass.torch_private.versions import torch_version


def test_installed_once() -> None:
    keep_numbers()
    ours = CppVecOverrides.masked
    keep_numbers()
    assert CppVecOverrides.masked is ours
    assert hasattr(ours, "__wrapped__") is (torch_version() < (2, 13))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", [3.0, 2, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_filled_and_added(number: float, dtype: torch.dtype) -> None:
    def program(x: Tensor) -> list[Tensor]:
        made = [x + number]
        x[1:] = number
        made.append(x + number)
        x[2:] = number
        return [*made, x * number, x + number]

    compiled = torch.compile(program, backend="fusepass")
    x = torch.arange(40).to(dtype)
    torch.testing.assert_close(compiled(x.clone()), program(x))
    assert not fusepass.last_report(compiled).graph_breaks
