"""Follow the advice for a branch that draws random numbers: the branch is captured then."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fusepass
from fusepass.report.advice import advice_for
from fusepass.report.decision import Reason


def draws(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x + torch.rand_like(x)
    return x * 2


def draws_before(x: Tensor) -> Tensor:
    noise = torch.rand_like(x)
    if x.sum() > 0:
        return x + noise
    return x * 2


class Layer(nn.Module):
    def __init__(self, before: bool) -> None:
        super().__init__()
        self.linear, self.dropout, self.before = nn.Linear(4, 4), nn.Dropout(0.5), before

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        if not self.before:
            return self.dropout(h) if x.sum() > 0 else h * 2
        keep = self.dropout(torch.ones_like(h))
        return h * keep if x.sum() > 0 else h * 2


def called(program: object, x: Tensor) -> Tensor:
    torch.manual_seed(3)
    return program(x)  # type: ignore[operator,no-any-return]


@pytest.mark.parametrize("kind", ["direct", "layer"])
def test_random_numbers_drawn_before_the_branch(kind: str) -> None:
    torch.manual_seed(0)
    kept, mended = (draws, draws_before) if kind == "direct" else (Layer(False), Layer(True))
    if isinstance(kept, nn.Module) and isinstance(mended, nn.Module):
        mended.load_state_dict(kept.state_dict())
    with fusepass.options(codegen="eager"):
        for value in (1.0, -1.0):
            x = torch.full((8, 4), value, requires_grad=True)
            report = fusepass.explain(kept, x)
            (decision,) = [d for d in report.decisions if d.treatment == "keep"]
            assert decision.reason_code is Reason.RANDOM_OP
            assert advice_for(decision) in str(report)
            assert "torch.ones_like(x)" in advice_for(decision)
            assert not fusepass.explain(mended, x).graph_breaks
            compiled = torch.compile(mended, backend="fusepass")
            assert torch.equal(called(compiled, x), called(kept, x))
