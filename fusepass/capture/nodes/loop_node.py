"""Define the node of a captured loop: it runs rounds while a flag among its values holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fusepass.torch_private.fx.graphs import while_loop_operator

KEYED = "fusepass_keyed"  # meta key of ``x[key]`` in a round, where Python would read the key
LOOP = "fusepass_loop"  # meta key on a loop node: its LoopFacts


@dataclass(frozen=True)
class LoopFacts:
    """What checks of the complete graph need to know about a captured loop.

    Attributes:
        site: number of the site.
        shares: ``(i, kind, j)`` where the i-th result may be, in eager, the same tensor as the j-th
            ``result``, the j-th value that the loop begins with (``first``), or the j-th
            ``operand``.
    """

    site: int
    shares: frozenset[tuple[int, str, int]]


def run_loop(
    body: Callable[..., tuple[torch.Tensor, ...]],
    carried: tuple[torch.Tensor, ...],
    operands: tuple[Any, ...],
) -> tuple[torch.Tensor, ...]:
    """Run ``body(*carried, *operands)``, which gives the next ``carried``, while the first holds.

    The first of ``carried`` is a 0-d bool. Rules make a ``torch.while_loop`` of it for Inductor.
    """
    if type(carried[0]) is not torch.Tensor:  # being traced, there is nothing to read
        result: tuple[torch.Tensor, ...] = while_loop_operator()(_goes_on, body, carried, operands)
        return result
    while bool(carried[0]):
        carried = tuple(body(*carried, *operands))
    return carried


def _goes_on(flag: torch.Tensor, *_: Any) -> torch.Tensor:
    return flag.clone()


run_loop.fusepass_pure = True  # type: ignore[attr-defined]
