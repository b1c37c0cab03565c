"""Graphs deeper than Python's stack: every walk over their nodes ends, and nothing is given up."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from .support.side_by_side import side_by_side, signed

DEPTH = sys.getrecursionlimit() + 100
TURNS = signed(1.0, -0.5, 2.0, 0.25)


def pass_on(x: Tensor, times: int = DEPTH) -> Tensor:
    for _ in range(times):
        x = x.neg()
    return x


def behind(x: Tensor) -> Tensor:
    h = pass_on(x)
    bad = h.isnan()
    if bad.any():
        h = h.masked_fill(bad, 0.0)
    return h


def in_an_arm(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0:
        h = pass_on(h)
    return h


def and_in_front(x: Tensor) -> Tensor:
    h = x * 2
    return pass_on(h) if x.sum() > 0 and x.amax() < 3 else h + 1


def masks_joined(x: Tensor) -> Tensor:
    h = x * 2
    mask = h.isnan()
    for _ in range(DEPTH):
        mask = mask | h.isinf()
    if mask.any():
        h = h.masked_fill(mask, 0.0)
    return h


def views_of_what_is_written(x: Tensor) -> tuple[Tensor, Tensor]:
    h = x * 2
    view = h
    for _ in range(DEPTH):
        view = view.view(4)
    if x.sum() > 0:
        view.add_(1)
    return h, view


def written_before(x: Tensor) -> Tensor:
    h = x * 2
    for _ in range(DEPTH):
        h.add_(0.5)
    if x.sum() > 0:
        h.add_(1)
    return h


def index_made_step_by_step(x: Tensor) -> Tensor:
    h = torch.stack([x, x * 2])
    index = h.argmax(0)
    for _ in range(DEPTH):
        index = index.contiguous()
    return h.gather(0, index[None]) if x.sum() > 0 else h[:1] + 1


def number_of_an_arm(x: Tensor) -> Tensor:
    s = 2.0 if x.sum() > 0 else 1.0
    for _ in range(DEPTH):
        s = s * 1.0
    return x * s


def number_read(x: Tensor) -> Tensor:
    s = x.sum().item()
    for _ in range(DEPTH):
        s = s + 0.5
    return x * s


def in_front_of_an_exception(x: Tensor) -> Tensor:
    h = pass_on(x)
    if h.isinf().any():
        raise ValueError(f"infinite: {h.amax().item()}")
    return h * 2


def constant_mask(x: Tensor) -> Tensor:
    mask = torch.ones(4, 4, dtype=torch.bool)
    for _ in range(DEPTH):
        mask = mask.logical_not()
    h = x * torch.ones(4, 1)
    if x.sum() > 0:
        h = h + 1
    return F.scaled_dot_product_attention(h[None], h[None], h[None], attn_mask=mask)


PROGRAMS: dict[Callable[..., Any], str] = {
    behind: "drop",
    in_an_arm: "where",
    and_in_front: "where",
    masks_joined: "drop",
    views_of_what_is_written: "where",
    written_before: "where",
    index_made_step_by_step: "where",
    number_of_an_arm: "where",
    number_read: "device",
    in_front_of_an_exception: "sink",
    constant_mask: "where",
}
# One of its kind is enough in training.
TRIED = [(program, False) for program in PROGRAMS]
TRIED += [(program, True) for program in (behind, in_an_arm, written_before)]


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("error::fusepass.errors.CaptureFault")
@pytest.mark.parametrize(("program", "grad"), TRIED)
def test_a_graph_deeper_than_the_stack(program: Callable[..., Any], grad: bool) -> None:
    outcome = side_by_side(program, *TURNS, grad=grad)
    assert {treatment for treatment, _ in outcome.treatments} == {PROGRAMS[program]}
    assert not outcome.breaks
