"""The two options that give up exactness where the user says so, and what they do not give up."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .support.check import BACKEND, fresh_compiler


def decided(compiled: object) -> list[tuple[str, str]]:
    """(treatment, reason code) of the branch sites."""
    import fusepass

    decisions = fusepass.last_report(compiled).to_dict()["decisions"]
    return [(d["treatment"], d["reason_code"]) for d in decisions if d["station"] == "capture"]


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left = nn.Linear(3, 3)
        self.right = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) if x.sum() > 0 else self.right(x)


def test_allow_zero_grad() -> None:
    with fresh_compiler():
        module, eager = Experts(), Experts()
        options = {"codegen": "eager", "allow_zero_grad": True}
        compiled = torch.compile(module, backend=BACKEND, options=options)
        for sign in (1.0, -1.0):
            x = torch.full((2, 3), sign)
            module.zero_grad()
            eager.zero_grad()
            wanted, got = eager(x), compiled(x)
            assert torch.equal(wanted, got)
            wanted.sum().backward()
            got.sum().backward()
            for one, other in zip(eager.parameters(), module.parameters(), strict=True):
                expected = torch.zeros_like(other) if one.grad is None else one.grad
                assert other.grad is not None
                assert torch.equal(expected, other.grad)
        assert decided(compiled) == [("where", "pure_total")]


def hand_back(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x * 2
    return x


def test_allow_fresh_output() -> None:
    with fresh_compiler():
        options = {"codegen": "eager", "allow_fresh_output": True}
        compiled = torch.compile(hand_back, backend=BACKEND, options=options)
        for sign in (1.0, -1.0):
            x = torch.full((2, 3), sign)
            assert torch.equal(hand_back(x), compiled(x))
        assert decided(compiled) == [("where", "pure_total")]


def written_later(x: Tensor) -> Tensor:
    y = x if x.sum() > 0 else x * 2
    x.add_(1)
    return y * 1


def test_allow_fresh_output_is_about_outputs_only() -> None:
    """A later write that shows through the alias changes values: still kept."""
    with fresh_compiler():
        options = {"codegen": "eager", "allow_fresh_output": True}
        compiled = torch.compile(written_later, backend=BACKEND, options=options)
        for sign in (1.0, -1.0):
            one, other = torch.full((3,), sign), torch.full((3,), sign)
            assert torch.equal(written_later(one), compiled(other))
            assert torch.equal(one, other)
        assert set(decided(compiled)) == {("keep", "alias")}
