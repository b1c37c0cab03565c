"""Programs of public reports: values, dtypes, gradients, writes, memory and errors as in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.inductor.faults.programs import PROGRAMS


def laid_out_alike(x: Tensor) -> tuple[Tensor, Tensor]:
    """A copy with the same strides in memory of its own, and all of that memory."""
    count = x.untyped_storage().nbytes() // x.element_size()
    memory = torch.as_strided(x.detach(), (count,), (1,), 0).clone()
    copy = torch.as_strided(memory, x.shape, x.stride(), x.storage_offset())
    return (copy.requires_grad_() if x.requires_grad else copy), memory


def results(program: Any, given: tuple[Tensor, ...]) -> Any:
    """What a program returns, writes and differentiates, or the type of the error it raises."""
    copies, memories = zip(*map(laid_out_alike, given), strict=True)
    try:
        made = program(*copies)
    except (RuntimeError, NotImplementedError, IndexError) as error:
        return type(error)
    outputs: tuple[Tensor, ...] = made if isinstance(made, tuple) else (made,)
    wanted = [one for one in copies if one.requires_grad]
    grads = []
    if wanted:
        weights = torch.linspace(0.5, 2, outputs[0].numel()).view_as(outputs[0])
        grads = [*torch.autograd.grad((outputs[0] * weights).sum(), wanted)]
    shared = [
        [one.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr() for one in outputs]
        for memory in memories
    ]
    return [one.detach() for one in outputs], grads, list(memories), shared


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", PROGRAMS)
def test_reported_programs_equal_eager(name: str) -> None:
    program, given = PROGRAMS[name]()
    wanted = results(program, given)
    got = results(torch.compile(program, backend="fusepass"), given)
    if isinstance(wanted, type):
        assert got is wanted
        return
    assert got[3] == wanted[3]
    for mine, theirs in zip(got[:3], wanted[:3], strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True)


def test_a_reported_fault_in_an_arm() -> None:
    """A row of the table is met in the arms of a captured branch, too."""

    class Program(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.sum() > 0:
                x = x // 0.1
            return x

    x = torch.tensor([1.0, 0.5, 6.0, 1.0] * 4)
    torch.testing.assert_close(torch.compile(Program(), backend="fusepass")(x), Program()(x))
