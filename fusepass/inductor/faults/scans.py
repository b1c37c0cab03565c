"""``cumsum`` of a constant with another dtype than the constant's: Inductor forgets the dtype.

A pattern of Inductor's makes a range of such a call, in the dtype of the constant. The pattern has
the dimension as its second argument, so it stands by name until the pattern has been looked for.
"""

from __future__ import annotations

import torch
from torch import fx

from fusepass.inductor.faults.fault import Fault, value_of
from fusepass.report.decision import Decision, Station

_aten = torch.ops.aten
_FAULT = Fault("dtype_of_scan", (189518,), "makes a range in the dtype of the constant")


def hide_scans(graph: fx.Graph) -> list[Decision]:
    """Give the dimension by name where the dtype would be lost; what was decided."""
    found = False
    for node in graph.find_nodes(op="call_function", target=_aten.cumsum.default):
        x, made = value_of(node.args[0]), value_of(node)
        if len(node.args) < 2 or x is None or made is None or not _FAULT.is_here:
            continue
        plain = made.dtype is (x.dtype if x.dtype.is_floating_point else torch.int64)
        if node.kwargs.get("dtype") is None or (plain and made.dtype is x.dtype):
            continue
        node.kwargs = {**node.kwargs, "dim": node.args[1]}
        node.args = node.args[:1]
        found = True
    return [_FAULT.decision("kept a sum", Station.AFTER)] if found else []


def show_scans(graph: fx.Graph) -> None:
    """Give the dimension by position again, as Inductor lowers it."""
    for node in graph.find_nodes(op="call_function", target=_aten.cumsum.default):
        if "dim" in node.kwargs:
            node.args = (*node.args, node.kwargs["dim"])
            node.kwargs = {key: value for key, value in node.kwargs.items() if key != "dim"}
