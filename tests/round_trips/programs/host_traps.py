"""Tensors of the host that must not be made elsewhere, or not once for all calls."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..inputs import calls, floats, normal
from ..program import Family

FAMILY = Family("host_traps")


@FAMILY.program(calls(lambda: [(normal(3, 4),), (normal(3, 4),)]))
def constant_returned_and_written(x: Tensor) -> Tensor:
    table = torch.tensor([1.0, 2.0, 3.0, 4.0])
    table = table.to(x.device)  # expect: cuda: host_tensor device on_device
    out = x * table
    table.add_(x.sum())
    return out, table


@FAMILY.program(calls(lambda: [(normal(3, 4),), (normal(3, 4),)]), state=lambda module: module.kept)
class HandsOutItsConstant(nn.Module):
    """The caller writes what it got: the next call must not see it."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        for old in self.kept:
            old.add_(100)
        mask = torch.ones(4).to(x.device)  # expect: cuda: host_tensor device on_device
        self.kept.append(mask)
        return x * mask


@FAMILY.program(floats(3, 4), grad=True)
def options_of_the_move(x: Tensor) -> Tensor:
    a = torch.arange(4.0)
    a = a.to(x.device, non_blocking=True)  # expect: cuda: host_tensor device on_device
    b = torch.arange(4.0).to(x.device, copy=True)  # expect: cuda: host_tensor device on_device
    c = torch.arange(4).to(x.device, torch.float64)  # expect: cuda: host_tensor device on_device
    return x * a + b, c


@FAMILY.program(floats(3, 4))
def filled_before_the_move(x: Tensor) -> Tensor:
    a = torch.empty(4).fill_(0.3).to(x.device)  # expect: cuda: host_tensor device on_device
    b = torch.zeros(3, 4, dtype=torch.int32).add_(7)
    b = b.to(x.device)  # expect: cuda: host_tensor device on_device
    return x * a + b


@FAMILY.program(floats(3, 4))
def decided_on_the_host(x: Tensor) -> Tensor:
    steps = torch.arange(4)
    if steps.sum() > 5:
        x = x * 2
    return x + steps.to(x.device)  # expect: any


@FAMILY.program(floats(3, 4))
def number_of_the_host(x: Tensor) -> Tensor:
    steps = torch.linspace(0, 1, 5)
    return x * steps[2].item() + steps.tolist()[1]  # expect: any


@FAMILY.program(calls(lambda: [(normal(3, 4), 0.1), (normal(3, 4), 0.7), (normal(3, 4), 5.0)]))
def filled_with_an_argument(x: Tensor, level: float) -> Tensor:
    return x * torch.full((4,), level).to(x.device)  # expect: any


@FAMILY.program(
    calls(lambda: [(normal(3, 4), torch.arange(4.0)), (normal(3, 4), torch.ones(4))]), hosted=(1,)
)
def given_by_the_caller(x: Tensor, y: Tensor) -> Tensor:
    y.add_(1)
    return x * y.to(x.device) + (y * 2).to(x.device)  # expect: cuda: host_tensor keep not_constant


@FAMILY.program(floats(3, 4))
def printed_on_the_host(x: Tensor) -> Tensor:
    steps = torch.arange(4)
    print("steps", steps)  # expect: any
    return x + steps.to(x.device)  # expect: any


@FAMILY.program(floats(3, 4), tags="float64")
def of_the_default_dtype(x: Tensor) -> Tensor:
    a = torch.tensor([0.1, 0.2, 0.3, 0.4])
    a = a.to(x.device)  # expect: cuda: host_tensor device on_device
    return torch.ones(4).to(x.device), x * a  # expect: cuda: host_tensor device on_device


@FAMILY.program(calls(lambda: [(normal(3, 4),), (normal(3, 4),)]))
def random_between(x: Tensor) -> Tensor:
    a = torch.ones(4).to(x.device)  # expect: cuda: host_tensor device on_device
    noise = torch.rand(4).to(x.device)  # expect: cuda: host_tensor keep random_op
    b = torch.full((4,), 2.0).bernoulli_(0.5)
    b = b.to(x.device)  # expect: cuda: host_tensor keep random_op
    return x * a + noise * b


@FAMILY.program(floats(3, 4), device="cuda")
def by_cuda(x: Tensor) -> Tensor:
    mask = torch.ones(4, 4, dtype=torch.bool).tril().cuda()  # expect: host_tensor device on_device
    return x * mask[2] + torch.arange(4).cuda()  # expect: host_tensor device on_device


@FAMILY.program(floats(3, 4), device="cuda", dynamo=True)
def mixed_devices_raise(x: Tensor) -> Tensor:
    steps = torch.arange(4)
    return x + steps + steps.to(x.device)  # expect: any


@FAMILY.program(floats(3, 4), options={"rules": {"host_tensor": False}})
def switched_off(x: Tensor) -> Tensor:
    return x * torch.arange(4).to(x.device)  # expect: any
