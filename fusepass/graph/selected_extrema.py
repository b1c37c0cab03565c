"""The largest and the smallest of what a mask selected: of all elements, the others out of reach.

Where nothing is selected eager raises, and what stands here would be an infinity. So only a call
is replaced that capture has put the raise in front of (capture/empty_selection.py).

Of zeros of both signs either may be the largest, as in eager on tensors of another size.

The gradient is shared by all elements that hold the extremum. An element that is not selected
holds it too where everything selected is the infinity put in its place; there the mean, which is
that infinity, has eager's gradient.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from fusepass.graph.calls import call_of
from fusepass.graph.selected import Lowering, filled
from fusepass.graph.selected_reductions import total

NEVER_EMPTY = "fusepass_never_empty"  # meta key of a call behind which something is selected
EXTREMA = ("max", "min")


def extremum(low: Lowering, node: fx.Node) -> fx.Node | None:
    """The largest or smallest of all that was selected; None for another call."""
    call = call_of(node) if NEVER_EMPTY in node.meta else None
    if call is None or call.op not in EXTREMA or [name for name, _ in call.args] != ["self"]:
        return None
    whole = low.whole.get(dict(call.args)["self"])
    if whole is None or whole.value.dtype.is_complex:
        return None
    out = _out_of_reach(whole.value.dtype, low=call.op.endswith("max"))
    made = low.add(node, node.target, filled(low, node, whole, out))
    if not (whole.value.requires_grad and torch.is_grad_enabled()):
        return made
    dims = list(range(whole.value.dim()))
    even = total(low, node, whole, dims, keepdim=False, mean=True)
    alone = low.add(node, operator.eq, made, out)
    return low.add(node, torch.where, alone, even, made)


def _out_of_reach(dtype: torch.dtype, *, low: bool) -> bool | int | float:
    if dtype is torch.bool:
        return not low
    if dtype.is_floating_point:
        return float("-inf") if low else float("inf")
    limits = torch.iinfo(dtype)
    return limits.min if low else limits.max
