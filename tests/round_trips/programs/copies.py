"""Copies between host and device of what the program was given, which have to be made."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..inputs import calls, floats, normal
from ..program import Family

FAMILY = Family("copies")


@FAMILY.program(floats(3, 4), grad=True)
def read_back_and_returned(x: Tensor) -> Tensor:
    return (x * 2).cpu(), x.sum()


@FAMILY.program(calls(lambda: [(normal(3, 4),), (normal(3, 4) * 3,)]))
def as_numpy(x: Tensor) -> Any:
    y = x * 2
    return y, float(y.detach().cpu().numpy().sum())


@FAMILY.program(calls(lambda: [(normal(3, 4), normal(4).double())]), hosted=(1,))
def brought_to_the_device(x: Tensor, y: Tensor) -> Tensor:
    to = {"device": x.device, "dtype": torch.float32, "non_blocking": True}
    return x + y.to(**to)  # expect: cuda: host_tensor keep not_constant


@FAMILY.program(floats(3, 4))
def written_copy(x: Tensor) -> Tensor:
    y = torch.empty(3, 4)
    y.copy_(x)
    y[0] = 0
    return y.to(x.device) + x  # expect: cuda: host_tensor keep not_constant


@FAMILY.program(floats(3, 4))
def copied_out_into_an_argument(x: Tensor) -> Tensor:
    host = x.detach().to("cpu", copy=True)
    host.add_(1)
    return host, x * 2


@FAMILY.program(floats(3, 4), grad=True)
def compared_on_the_host(x: Tensor) -> Tensor:
    big = x.detach().cpu().abs().max() > 1
    return torch.where(big.to(x.device), x, x * 2)  # expect: cuda: host_tensor keep not_constant
