"""Arms of torch.cond that Inductor simplifies still leave the operands of the branch alone."""

from __future__ import annotations

import torch
from torch import Tensor


def test_an_arm_that_folds_to_its_operand() -> None:
    # Before torch 2.15 Inductor overwrote x here: the folded arm hands x on, and `* 2` reuses it.
    def program(x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = x + torch.rand_like(x) * 0
        return x * 2

    compiled = torch.compile(program, backend="fusepass")
    for sign in (1.0, -1.0):
        x = torch.full((3, 4), sign)
        assert torch.equal(compiled(x), torch.full((3, 4), 2 * sign))
        assert torch.equal(x, torch.full((3, 4), sign))
