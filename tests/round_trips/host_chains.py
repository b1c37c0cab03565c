"""Programs that make tensors on the CPU and take them to a device, with what becomes of each copy.

Each is called as ``program(x, device)`` with ``x`` of shape [n, n], float32, on that device.
``MADE`` are made there, ``KEPT`` become constants of the graph; ``LEFT`` says why a copy stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Program = Callable[[Tensor, str], Any]
MADE: list[Program] = []
KEPT: list[Program] = []
LEFT: dict[Program, str] = {}
ON_DEVICE: list[Program] = []  # literals on the device, which only a build with it can trace
DYNAMIC: dict[Program, str] = {}  # with symbolic sizes: "on_device", or why not


def made(program: Program) -> Program:
    MADE.append(program)
    return program


def kept(program: Program) -> Program:
    KEPT.append(program)
    return program


def left(reason: str) -> Callable[[Program], Program]:
    def note(program: Program) -> Program:
        LEFT[program] = reason
        return program

    return note


def dynamic(reason: str) -> Callable[[Program], Program]:
    def note(program: Program) -> Program:
        DYNAMIC[program] = reason
        return program

    return note


def on_device(program: Program) -> Program:
    ON_DEVICE.append(program)
    return program


@made
@dynamic("on_device")
def causal_mask(x: Tensor, device: str) -> Tensor:
    n = x.shape[-1]
    mask = torch.ones(n, n, dtype=torch.bool).tril().to(device)
    return x.masked_fill(~mask, float("-inf"))


@made
@dynamic("on_device")
def causal_from_positions(x: Tensor, device: str) -> Tensor:
    i = torch.arange(x.shape[-1])
    return torch.where((i[None, :] <= i[:, None]).to(device), x, 0.0)


@made
@dynamic("on_device")
def sliding_window(x: Tensor, device: str) -> Tensor:
    i = torch.arange(x.shape[-1])
    distance = i[:, None] - i[None, :]
    return x * ((distance >= 0) & (distance < 3)).to(device)


@made
@dynamic("on_device")
def additive_mask(x: Tensor, device: str) -> Tensor:
    n = x.shape[-1]
    return x + torch.full((n, n), float("-inf")).triu(1).to(device=device)


@made
@dynamic("on_device")
def as_clip_makes_it(x: Tensor, device: str) -> Tensor:
    mask = torch.empty(x.shape[-1], x.shape[-1])
    mask.fill_(float("-inf"))
    mask.triu_(1)
    return x + mask.to(device)


@made
@dynamic("on_device")
def one_minus_mask(x: Tensor, device: str) -> Tensor:
    keep = torch.ones(x.shape[-1], x.shape[-1]).tril()
    return x + ((1.0 - keep) * -10000.0).to(device)


@made
@dynamic("on_device")
def half_of_small_numbers(x: Tensor, device: str) -> Tensor:
    mask = torch.zeros(x.shape[-1]).masked_fill(torch.arange(x.shape[-1]) > 2, -65504.0)
    return mask.to(device, torch.float16)


@made
@dynamic("on_device")
def positions_as_floats(x: Tensor, device: str) -> Tensor:
    return x + torch.arange(x.shape[-1]).float().to(x.device)


@made
@dynamic("on_device")
def float_positions(x: Tensor, device: str) -> Tensor:
    return x + (torch.arange(x.shape[-1], dtype=torch.float32) + 1).to(x)


@made
@dynamic("on_device")
def of_the_type_of(x: Tensor, device: str) -> Tensor:
    return x + torch.arange(x.shape[-1]).type_as(x)


@made
@dynamic("on_device")
def several_factories(x: Tensor, device: str) -> Tensor:
    n = x.shape[-1]
    both = torch.cat([torch.zeros(n), torch.ones(2)]).view(1, -1)
    return torch.stack([both, both]).expand(2, 3, n + 2).to(device)


@made
def identity(x: Tensor, device: str) -> Tensor:
    return x @ torch.eye(x.shape[-1]).to(device)


@made
@dynamic("on_device")
def written_by_slices(x: Tensor, device: str) -> Tensor:
    mask = torch.zeros(x.shape[-1], x.shape[-1])
    mask[0] = 1.0
    mask[:, 1:3] = -2.0
    mask.fill_diagonal_(5.0)
    mask += 1
    mask[1].mul_(2)
    return x + mask.to(device)


@made
def written_after_the_copy(x: Tensor, device: str) -> Any:
    mask = torch.zeros(x.shape[-1])
    there = mask.to(device)
    mask[0] = 1.0
    return x + there, x + mask.to(device), mask


@made
def copied_twice_and_written(x: Tensor, device: str) -> Any:
    ones = torch.ones(x.shape[-1])
    a, b = ones.to(device), ones.to(device)
    a.mul_(3)
    return a, b, ones


@made
def handed_out_twice(x: Tensor, device: str) -> Any:
    ones = torch.ones(x.shape[-1])
    return ones.to(device), ones.to(device), ones


@made
def views_of_one(x: Tensor, device: str) -> Any:
    i = torch.arange(6)
    a, b = i[:3].to(device), i[3:].to(device)
    a += 1
    return a, b, i.expand(2, 6).to(device), i.view(2, 3).t().to(device)


@made
def in_every_layer(x: Tensor, device: str) -> Tensor:
    for _ in range(3):
        mask = torch.ones(x.shape[-1], x.shape[-1]).tril()
        x = x * mask.to(device) + mask.to(device)
    return x


@made
def needed_on_both(x: Tensor, device: str) -> Any:
    i = torch.arange(x.shape[-1])
    return x + i.to(device), i * 2


@made
def of_a_cpu_tensor(x: Tensor, device: str) -> Tensor:
    row = torch.zeros(x.shape[-1], 2)
    return torch.ones_like(row.t()).to(device), row.new_full((3,), 7).to(device)


@made
@dynamic("on_device")
def like_a_tensor_of_the_device(x: Tensor, device: str) -> Any:
    row = torch.arange(x.shape[-1]).expand_as(x)
    return torch.ones_like(x, device="cpu").to(device), row.to(device)


@made
@dynamic("on_device")
def into_a_buffer(x: Tensor, device: str) -> Tensor:
    x = x.clone()
    x[0].copy_(torch.arange(x.shape[-1]))
    x[1:2, :2] = torch.zeros(2)
    return x


@made
@dynamic("on_device")
def as_an_index(x: Tensor, device: str) -> Any:
    y = x.clone()
    y[torch.arange(2), torch.arange(2)] = 3.0
    return x[torch.arange(3)], y


@made
def indices_of_one(x: Tensor, device: str) -> Any:
    i = torch.arange(4)
    y = x.clone()
    y[i[:2], i[2:]] = 3.0
    return y, x[i.view(2, 2), i[:2]]


@made
def meshgrid_of_positions(x: Tensor, device: str) -> Any:
    rows, columns = torch.meshgrid(torch.arange(3), torch.arange(4), indexing="ij")
    return torch.stack([rows, columns]).flatten(1).to(device), rows.to(device)


@made
@on_device
def one_number(x: Tensor, device: str) -> Any:
    return x * torch.tensor(2.5).to(device) + torch.tensor(3, device=device)


@made
@dynamic("on_device")
@on_device
def a_size(x: Tensor, device: str) -> Tensor:
    return torch.tensor(x.shape[-1], device=device) + torch.full((2,), x.shape[-1]).to(device)


@made
def pinned_and_not_waited_for(x: Tensor, device: str) -> Tensor:
    return torch.zeros(3).to(device, non_blocking=True)


@made
def counted(x: Tensor, device: str) -> Any:
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    return mask.sum(0).to(device), (mask.cumsum(1) - 1).clamp(min=0).to(device, torch.int32)


@made
def integers(x: Tensor, device: str) -> Any:
    i = torch.arange(20)
    return (i // 3).to(device), ((i % 4) * 3 - 7).to(device, torch.int8), (-i).abs().to(device)


@made
def empty_ones(x: Tensor, device: str) -> Any:
    return torch.zeros(0, 3).to(device), torch.arange(0).to(device), torch.ones(0).bool().to(device)


@made
def uninitialised(x: Tensor, device: str) -> Tensor:
    return torch.empty(3, 4).to(device).zero_()
