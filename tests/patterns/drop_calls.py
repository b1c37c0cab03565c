"""Programs with guards of masked stores: compared with eager, and what was decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.capture.support.side_by_side import side_by_side

NAN, INF = float("nan"), float("inf")
SOME = torch.linspace(-1, 1, 12).reshape(3, 4)
ODD = torch.tensor([[NAN, INF, -INF, -0.0]]).repeat(3, 1)
CALLS = [SOME, -SOME.abs() - 1, SOME.abs() + 1, ODD, SOME, torch.full((3, 4), NAN)]


def compiled_with_rules(
    program: Callable[..., Any], calls: list[Tensor], *, grad: bool = False
) -> tuple[list[tuple[str, str]], Counter[str]]:
    """Compare each call with eager; returns what was decided and the operations left."""
    outcome = side_by_side(program, *[(x,) for x in calls], grad=grad, zeros=True)
    return outcome.treatments, outcome.ops
