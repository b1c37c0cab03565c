"""Programs whose CPU tensors become constants of the graph, or are copied as before."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .host_chains import KEPT, LEFT, dynamic, kept, left, on_device

__all__ = ["KEPT", "LEFT"]


@kept
def a_literal(x: Tensor, device: str) -> Tensor:
    return x[:3, :3] * torch.tensor([0.485, 0.456, 0.406]).to(device)


@kept
@on_device
def a_literal_on_the_device(x: Tensor, device: str) -> Tensor:
    return x[:3, :3] * torch.tensor([[1.5], [2.5], [0.1]], device=device)


@kept
@on_device
def a_literal_like(x: Tensor, device: str) -> Tensor:
    return x[:2, :2] + x.new_tensor([1, 2]) + torch.as_tensor([3.0, 4.0], device=device)


@kept
@on_device
def a_literal_that_is_written(x: Tensor, device: str) -> Any:
    t = torch.tensor([1.0, 2.0, 3.0]).to(device)
    t += x[0, :3]
    return t, torch.tensor([1.0, 2.0, 3.0], device=device)


@kept
@on_device
def the_same_literal_twice(x: Tensor, device: str) -> Tensor:
    return x[:2, :2] * torch.tensor([1.0, 2.0]).to(device) + torch.tensor([1.0, 2.0], device=device)


@kept
@on_device
def an_unrepresentable_number(x: Tensor, device: str) -> Tensor:
    return x.half() * torch.tensor(0.1, dtype=torch.float16, device=device)


@kept
def a_literal_index(x: Tensor, device: str) -> Tensor:
    return x[torch.tensor([0, 2])] + x[:2].index_select(0, torch.tensor([1, 0]).to(device))


@kept
def by_the_class(x: Tensor, device: str) -> Tensor:
    return x[:2, :2] * torch.Tensor([0.5, 1.5]).to(device)


@kept
def steps(x: Tensor, device: str) -> Tensor:
    return torch.linspace(0, 1, 7).to(device), torch.logspace(0, 2, 5).to(device, torch.float64)


@kept
def frequencies(x: Tensor, device: str) -> Tensor:
    return (1.0 / 10000 ** (torch.arange(0, 8, 2) / 8)).to(device)


@kept
def sinusoids(x: Tensor, device: str) -> Tensor:
    angle = torch.arange(5)[:, None] * torch.exp(torch.arange(0, 4, 2) * -2.3)
    table = torch.zeros(5, 4)
    table[:, 0::2] = torch.sin(angle)
    table[:, 1::2] = torch.cos(angle)
    return table.to(device)


@kept
def written_through_an_index(x: Tensor, device: str) -> Tensor:
    rows = torch.tensor([0, 2])
    mask = torch.zeros(3, 3)
    mask[rows, rows] = 1.0
    mask[mask > 0] = 4.0
    return mask.to(device)


@kept
def lower_triangle(x: Tensor, device: str) -> Tensor:
    rows, columns = torch.tril_indices(3, 3).to(device)
    return x[rows, columns]


@kept
def from_numpy(x: Tensor, device: str) -> Tensor:
    return torch.from_numpy(np.arange(4.0) / 3).to(device), torch.tensor(np.ones(2)).to(device)


@kept
def rounded_to_half(x: Tensor, device: str) -> Tensor:
    return torch.arange(4000).to(device, torch.float16), torch.full((3,), -3e38).to(device).half()


@kept
def large_steps(x: Tensor, device: str) -> Tensor:
    """More than 32 bits, in which compiled code may compute indices."""
    return (torch.arange(5) * 2**31).to(device), torch.arange(0, 2**34, 2**32).to(device)


@kept
def not_a_number(x: Tensor, device: str) -> Tensor:
    return torch.full((3,), float("nan")).to(device, torch.float16)


@kept
def complex_numbers(x: Tensor, device: str) -> Tensor:
    return torch.polar(torch.ones(3), torch.arange(3.0)).to(device)


@left("not_constant")
def from_an_input(x: Tensor, device: str) -> Tensor:
    return (x.cpu() + torch.arange(x.shape[-1])).to(device)


@left("random_op")
def drawn(x: Tensor, device: str) -> Tensor:
    return x + torch.randn(x.shape[-1]).to(device)


@left("random_op")
def drawn_in_place(x: Tensor, device: str) -> Tensor:
    return x + torch.empty(x.shape[-1]).uniform_().mul(2).to(device)


@left("random_op")
def a_permutation(x: Tensor, device: str) -> Tensor:
    return x[torch.randperm(3)]


@dynamic("on_device")
def dynamic_steps(x: Tensor, device: str) -> Tensor:
    return x + torch.linspace(0, 1, x.shape[-1]).to(device)


@dynamic("inexact")
def dynamic_angles(x: Tensor, device: str) -> Tensor:
    return x + torch.arange(x.shape[-1]).sin().to(device)


@dynamic("inexact")
def dynamic_halves(x: Tensor, device: str) -> Tensor:
    return torch.arange(x.shape[-1]).to(device, torch.float16)


@dynamic("on_device")
def a_literal_and_a_size(x: Tensor, device: str) -> Tensor:
    return x + (torch.tensor([[2], [3]]) * torch.arange(x.shape[-1])).sum(0).to(device)


@dynamic("not_constant")
@on_device
def sizes_in_a_list(x: Tensor, device: str) -> Tensor:
    return torch.tensor([x.shape[-1], 1], device=device)
