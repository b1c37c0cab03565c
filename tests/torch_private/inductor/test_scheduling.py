"""What reads memory that a call has written stays behind it, also where loops are laid out anew."""

from __future__ import annotations

import pytest
import torch
from torch._inductor.scheduler import SchedulerNode

from fusepass.torch_private.inductor.generated_code import keep_order_of_writes
from fusepass.torch_private.versions import torch_version
from tests.inductor.faults.programs import PROGRAMS


def test_installed_once() -> None:
    keep_order_of_writes()
    ours = SchedulerNode.recompute_size_and_body
    keep_order_of_writes()
    assert SchedulerNode.recompute_size_and_body is ours
    assert hasattr(ours, "__wrapped__") is (torch_version() < (2, 15))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["pool_and_where", "scatter_and_transposed"])
def test_gradients(name: str) -> None:
    program, given = PROGRAMS[name]()
    wanted = [one for one in given if one.requires_grad]
    eager, compiled = program(*given), torch.compile(program, backend="fusepass")(*given)
    torch.testing.assert_close(compiled, eager)
    if wanted:
        weights = torch.linspace(0, 1, eager.numel()).view_as(eager)
        grads = [torch.autograd.grad((one * weights).sum(), wanted) for one in (eager, compiled)]
        torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-4)
