"""Tensors made on the CPU and moved: made on the device instead, where the bits are the same.

On a machine without a second device a move does nothing, and the values are what is compared. What
becomes of each line can only be seen on CUDA, so all of these have the device of their argument.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..inputs import INF, calls, floats, normal
from ..program import Calls, Family

FAMILY = Family("host_tensors")


@FAMILY.program(floats(3, 4), grad=True)
def zeros_and_ones(x: Tensor) -> Tensor:
    a = torch.zeros(3, 4).to(x.device)  # expect: cuda: host_tensor device on_device
    b = torch.ones(4).to(x.device)  # expect: cuda: host_tensor device on_device
    return x * a + b


@FAMILY.program(floats(4, 4), grad=True, tags="inductor")
def causal_mask(x: Tensor) -> Tensor:
    mask = torch.tril(torch.ones(4, 4, dtype=torch.bool))
    mask = mask.to(x.device)  # expect: cuda: host_tensor device on_device
    return x.masked_fill(~mask, -1e9).softmax(-1)


@FAMILY.program(floats(4, 4), grad=True)
def infinite_mask(x: Tensor) -> Tensor:
    mask = torch.full((4, 4), -INF).triu(1)
    mask = mask.to(x.device)  # expect: cuda: host_tensor device on_device
    return (x + mask).softmax(-1)


@FAMILY.program(floats(3, 4), grad=True)
def positions(x: Tensor) -> Tensor:
    place = torch.arange(4).to(x.device)  # expect: cuda: host_tensor device on_device
    return x + place, x.index_select(1, place.flip(0))


@FAMILY.program(floats(5, 4), grad=True)
class Embeds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        place = torch.arange(x.shape[0]).unsqueeze(0)
        place = place.to(x.device)  # expect: cuda: host_tensor device on_device
        mask = (place.transpose(0, 1) >= place).float()
        return mask @ (x + self.table(place)[0])


@FAMILY.program(floats(3, 4))
def literal_table(x: Tensor) -> Tensor:
    scale = torch.tensor([0.1, 0.2, 0.3, 0.4])
    scale = scale.to(x.device)  # expect: cuda: host_tensor device on_device
    shift = torch.tensor(3).to(x.device)  # expect: cuda: host_tensor device on_device
    return x * scale + shift


@FAMILY.program(floats(3, 4), grad=True)
def half_and_double(x: Tensor) -> Tensor:
    a = torch.full((4,), 0.1).half().to(x.device)  # expect: cuda: host_tensor device on_device
    b = torch.full((4,), 1 / 3, dtype=torch.float64)
    b = b.to(x.device)  # expect: cuda: host_tensor device on_device
    return x * a, x + b


@FAMILY.program(floats(3, 4))
def to_dtype_and_device(x: Tensor) -> Tensor:
    a = torch.arange(4)
    a = a.to(device=x.device, dtype=x.dtype)  # expect: cuda: host_tensor device on_device
    b = torch.eye(4).to(x)  # expect: cuda: host_tensor device on_device
    return x * a @ b


@FAMILY.program(floats(3, 4))
def written_before_it_moves(x: Tensor) -> Tensor:
    mask = torch.zeros(4)
    mask[1] = 1
    mask[2:] = 5
    return x * mask.to(x.device)  # expect: cuda: host_tensor device on_device


@FAMILY.program(floats(3, 4), grad=True)
def written_after_it_moved(x: Tensor) -> Tensor:
    total = torch.zeros(3).to(x.device)  # expect: cuda: host_tensor device on_device
    total += x.detach().sum(1)
    return x * total.unsqueeze(1)


@FAMILY.program(calls(lambda: [(normal(n, 4),) for n in (3, 5, 0, 2)]), dynamic=True)
def sizes_that_change(x: Tensor) -> Tensor:
    n = x.shape[0]
    place = torch.arange(n).to(x.device)  # expect: cuda: host_tensor device on_device
    mask = torch.ones(n, n).tril().to(x.device)  # expect: cuda: host_tensor device on_device
    return mask @ x + place.unsqueeze(1)


@FAMILY.program(floats(3, 4))
def stays_on_the_host_too(x: Tensor) -> tuple[Tensor, Tensor]:
    place = torch.arange(4)
    return x + place.to(x.device), place  # expect: cuda: host_tensor device on_device


@FAMILY.program(floats(3, 4))
def moved_twice(x: Tensor) -> Tensor:
    mask = torch.ones(4).cumsum(0)
    return x * mask.to(x.device) + mask.to(x.device)  # expect: cuda: host_tensor device on_device


@FAMILY.program(floats(3, 4))
def linear_spacing(x: Tensor) -> Tensor:
    steps = torch.linspace(0.1, 0.9, 4).to(x.device)  # expect: cuda: host_tensor device on_device
    halves = torch.arange(0, 1, 0.25).to(x.device)  # expect: cuda: host_tensor device on_device
    return x * steps + halves


@FAMILY.program(floats(3, 4), grad=True)
def inexact_on_a_device(x: Tensor) -> Tensor:
    freq = torch.exp(torch.arange(0, 4).float() * (-math.log(10000.0) / 4))
    freq = freq.to(x.device)  # expect: cuda: host_tensor device on_device
    wave = torch.sin(torch.arange(4).float())
    wave = wave.to(x.device)  # expect: cuda: host_tensor device on_device
    return x * freq + wave


@FAMILY.program(calls(lambda: [(normal(3, 4),), (normal(3, 4),)]))
def random_on_the_host(x: Tensor) -> Tensor:
    noise = torch.randn(4).to(x.device)  # expect: cuda: host_tensor keep random_op
    keep = (torch.rand(3, 4) > 0.5).to(x.device)  # expect: cuda: host_tensor keep random_op
    more = torch.rand(2).to(x.device)  # expect: cuda: host_tensor keep random_op
    return x * keep + noise + more.sum()


@FAMILY.program(calls(lambda: [(normal(3, 4),), (normal(3, 4),)]))
def permuted_on_the_host(x: Tensor) -> Tensor:
    order = torch.randperm(3).to(x.device)  # expect: cuda: host_tensor keep random_op
    return x[order]


def batches() -> Calls:
    return [(normal(3, 4), [1, 3, 2]), (normal(3, 4), [4, 1, 1])]


@FAMILY.program(batches)
def of_python_values(x: Tensor, lengths: list[int]) -> Tensor:
    n = torch.tensor(lengths).to(x.device)  # expect: any
    place = torch.arange(4).to(x.device)  # expect: cuda: host_tensor device on_device
    return x.masked_fill(place[None] >= n[:, None], 0.0)


@FAMILY.program(floats(3, 4))
def summed_on_the_host(x: Tensor) -> Tensor:
    weights = torch.tensor([0.1, 0.7, 1e-9, 0.2])
    weights = (weights / weights.sum()).to(x.device)  # expect: cuda: host_tensor device on_device
    return x * weights


@FAMILY.program(floats(3, 4))
def made_with_gradients(x: Tensor) -> Tensor:
    w = torch.ones(4, requires_grad=True).to(x.device)  # expect: any
    return x * w


@FAMILY.program(floats(3, 4), grad=True)
def nothing_to_move(x: Tensor) -> Tensor:
    a = torch.ones(4, device=x.device).to(x.device)
    return x * a + x.to(x.device), x.to(x.dtype)


@FAMILY.program(floats(3, 4))
def the_same_object(x: Tensor) -> Tensor:
    y = x.to(x.device)
    y.add_(1)
    return y, x.to(x.device, copy=True).add_(1)


@FAMILY.program(floats(3, 4), grad=True)
def back_and_forth(x: Tensor) -> Tensor:
    y = x.cpu()  # expect: none
    z = (y * 2).to(x.device)  # expect: cuda: host_tensor keep not_constant
    return z + x


@FAMILY.program(floats(3, 4), grad=True)
class KeepsItself(nn.Module):
    """A buffer that stays on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.linspace(0, 1, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale.to(x.device)  # expect: any


@FAMILY.program(floats(3, 4))
def constant_written_by_the_caller(x: Tensor) -> Tensor:
    one = torch.ones(4).to(x.device)  # expect: cuda: host_tensor device on_device
    one[0] = x[0, 0]
    again = torch.ones(4).to(x.device)  # expect: cuda: host_tensor device on_device
    again.mul_(2)
    return one, again


@FAMILY.program(floats(3, 4))
def given_strides(x: Tensor) -> Tensor:
    a = torch.arange(12).reshape(4, 3).t()
    a = a.to(x.device)  # expect: cuda: host_tensor device on_device
    b = torch.ones(1, 4).expand(3, 4).to(x.device)  # expect: cuda: host_tensor device on_device
    return a, b, x * a * b


@FAMILY.program(floats(3, 4))
def one_hot_on_the_host(x: Tensor) -> Tensor:
    table = F.one_hot(torch.arange(4), 5).to(x.device)  # expect: cuda: host_tensor device on_device
    return x @ table.to(x.dtype)


@FAMILY.program(floats(3, 4))
def compared_on_the_host(x: Tensor) -> Tensor:
    i = torch.arange(4)
    band = (i[:, None] - i[None, :]).abs() <= 1
    band = band.to(x.device)  # expect: cuda: host_tensor device on_device
    return x @ band.to(x.dtype)
