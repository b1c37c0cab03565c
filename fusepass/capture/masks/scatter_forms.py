"""Compute ``x.masked_scatter(mask, source)`` so that it fails for no value.

Dynamo traces these functions as if the program had called them. The last ``row_dims`` dimensions of
the mask have one value each; ``width`` is the number of elements of such a row.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def is_too_few(x: Tensor, mask: Tensor, source: Tensor, row_dims: int, width: int) -> Tensor:
    """Whether the mask has more true elements than there are in the source."""
    return _rows(torch.broadcast_tensors(mask, x)[0], row_dims).sum() * width > source.numel()


def by_reading(x: Tensor, mask: Tensor, source: Tensor, row_dims: int, width: int) -> Tensor:
    """Each row of the result reads its row of the source."""
    mask, x = torch.broadcast_tensors(mask, x)
    table = _table(source, width)
    count = _rows(mask, row_dims).cumsum(0)
    found = table.index_select(0, (count - 1).clamp(0, table.shape[0] - 1))
    return torch.where(mask, found.reshape(mask.shape), x).contiguous()


def by_writing(x: Tensor, mask: Tensor, source: Tensor, row_dims: int, width: int) -> Tensor:
    """Each row of the source is written to its place, rows that are not needed behind the end."""
    mask, x = torch.broadcast_tensors(mask, x)
    table, rows = _table(source, width), _rows(mask, row_dims)
    total, last = rows.shape[0], table.shape[0] - 1
    count = rows.cumsum(0)
    slots = torch.where(rows, count - 1, last).clamp(0, last)
    end = torch.full((last + 1,), total, dtype=torch.int64, device=mask.device)
    places = end.scatter(0, slots, torch.arange(total, device=mask.device))
    target = F.pad(x.reshape(-1, width), (0, 0, 0, 1))
    return target.index_copy(0, places[:last], table[:last])[:total].reshape(mask.shape)


def _rows(mask: Tensor, row_dims: int) -> Tensor:
    for _ in range(row_dims):
        mask = mask.select(-1, 0)
    return mask.reshape(-1)


def _table(source: Tensor, width: int) -> Tensor:
    """The source as rows, the last one filled up, and one row more."""
    lacks = -source.numel() % width
    return F.pad(source.reshape(-1), (0, width + lacks)).reshape(-1, width)
