"""Weights as constants: what is folded, what a change of them does, what is left as it was."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fusepass
from fusepass.errors import FrozenChanged

OPTIONS = {"frozen": True}


class Net(nn.Module):
    """A convolution with a norm, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 8)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(self.conv(x))).mean((2, 3)))


def code_of(compiled: Callable[..., Tensor], x: Tensor) -> str:
    from torch._inductor.utils import run_and_get_code

    with torch.no_grad():
        _, code = run_and_get_code(compiled, x)
    return "\n".join(code)


def test_norms_are_folded_and_weights_laid_out() -> None:
    net, x = Net().eval(), torch.randn(2, 3, 8, 8)
    frozen = code_of(torch.compile(net, backend="fusepass", options=OPTIONS), x)
    torch.compiler.reset()
    plain = code_of(torch.compile(net, backend="fusepass"), x)
    assert "_frozen_param" in frozen
    assert "_frozen_param" not in plain
    assert "rsqrt" not in frozen
    assert "native_batch_norm" not in frozen.split("def call")[-1]


def test_values() -> None:
    net, x = Net().eval(), torch.randn(2, 3, 8, 8)
    compiled = torch.compile(net, backend="fusepass", options=OPTIONS)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), net(x), rtol=1e-4, atol=1e-5)


def doubled(net: Net) -> None:
    with torch.no_grad():
        net.conv.weight.mul_(2)


def loaded(net: Net) -> None:
    net.load_state_dict(Net().state_dict())


def statistics(net: Net) -> None:
    assert net.norm.running_mean is not None
    net.norm.running_mean.add_(1)


def new_memory(net: Net) -> None:
    net.head.weight.data = torch.randn(8, 16)


@pytest.mark.parametrize("change", [doubled, loaded, statistics, new_memory])
def test_a_change_is_an_error_until_it_is_compiled_again(change: Callable[[Net], None]) -> None:
    net, x = Net().eval(), torch.randn(2, 3, 8, 8)
    compiled = torch.compile(net, backend="fusepass", options=OPTIONS)
    with torch.no_grad():
        compiled(x)
        change(net)
        with pytest.raises(FrozenChanged, match="was changed after it had been compiled"):
            compiled(x)
        torch.compiler.reset()
        torch.testing.assert_close(compiled(x), net(x), rtol=1e-4, atol=1e-5)


def transposed(weight: Tensor) -> Tensor:
    return weight.t()


def fewer_rows(weight: Tensor) -> Tensor:
    return weight[:4]


def one_row_for_all(weight: Tensor) -> Tensor:
    return weight[:1].expand(8, 8)


@pytest.mark.parametrize("entered", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("change", [transposed, fewer_rows, one_row_for_all])
def test_another_view_of_the_same_memory_is_a_change(
    change: Callable[[Tensor], Tensor], entered: Callable[[], AbstractContextManager[None]]
) -> None:
    """``.data =`` counts no version, and the address stays."""
    net, x = nn.Linear(8, 8, bias=False).eval(), torch.randn(3, 8)
    compiled = torch.compile(net, backend="fusepass", options=OPTIONS)
    with entered():
        for _ in range(3):
            compiled(x)
        net.weight.data = change(net.weight.data)
        with pytest.raises(FrozenChanged, match="weight"):
            compiled(x)
        torch.compiler.reset()
        torch.testing.assert_close(compiled(x), net(x))


def test_the_same_view_again_is_no_change() -> None:
    net, x = nn.Linear(8, 8, bias=False).eval(), torch.randn(3, 8)
    compiled = torch.compile(net, backend="fusepass", options=OPTIONS)
    for entered in (torch.no_grad, torch.inference_mode, torch.no_grad, torch.inference_mode):
        with entered():
            torch.testing.assert_close(compiled(x), net(x))
        net.weight.data = net.weight.data.view(8, 8)
        net.weight.requires_grad_(not net.weight.requires_grad)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_a_step_that_counts_no_version(kind: type[torch.optim.Optimizer]) -> None:
    """No error for an optimizer of other weights, nor for a step without gradients."""
    net, other, x = Net().eval(), nn.Linear(4, 4), torch.randn(2, 3, 8, 8)
    compiled = torch.compile(net, backend="fusepass", options=OPTIONS)
    optimizers = [kind(one.parameters(), lr=0.5, fused=True) for one in (other, net)]
    with torch.no_grad():
        compiled(x)
    other(torch.randn(2, 4)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x), rtol=1e-4, atol=1e-5)
    net(x).sum().backward()
    optimizers[1].step()
    with torch.no_grad():
        with pytest.raises(FrozenChanged, match="weight"):
            compiled(x)
        torch.compiler.reset()
        torch.testing.assert_close(compiled(x), net(x), rtol=1e-4, atol=1e-5)


def test_another_weight_object_is_compiled_anew() -> None:
    net, x = Net().eval(), torch.randn(2, 3, 8, 8)
    compiled = torch.compile(net, backend="fusepass", options=OPTIONS)
    with torch.no_grad():
        compiled(x)
        net.head.weight = nn.Parameter(torch.randn(8, 16))
        torch.testing.assert_close(compiled(x), net(x), rtol=1e-4, atol=1e-5)


def test_where_gradients_are_recorded_nothing_is_frozen() -> None:
    net, x = Net().eval(), torch.randn(2, 3, 8, 8)
    compiled = torch.compile(net, backend="fusepass", options=OPTIONS)
    compiled(x).sum().backward()
    assert net.conv.weight.grad is not None
    with torch.no_grad():
        net.conv.weight.mul_(2)
    torch.testing.assert_close(compiled(x), net(x))


def test_other_compilers_in_the_process_freeze_nothing() -> None:
    net, x = Net().eval(), torch.randn(2, 3, 8, 8)
    with fusepass.options(frozen=True), torch.no_grad():
        other = torch.compile(net, backend="inductor")
        assert "_frozen_param" not in code_of(other, x)
