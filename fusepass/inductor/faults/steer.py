"""Graphs are steered round Inductor's faults: which means acts where."""

from __future__ import annotations

import dataclasses

import torch
from torch import fx

from fusepass.graph.ops.op_names import tensor_value
from fusepass.inductor.faults.aten_kernels import use_eager_kernels
from fusepass.inductor.faults.copies import (
    copy_before_overlapping_store,
    copy_permuted_pool_inputs,
    keep_lost_copies,
)
from fusepass.inductor.faults.fault import Fault
from fusepass.inductor.faults.op_by_op import op_by_op_reason
from fusepass.inductor.faults.recomputed_writes import save_what_is_written
from fusepass.inductor.faults.rewrites import rewrite_faulty_calls
from fusepass.inductor.faults.roundings import keep_casts
from fusepass.inductor.faults.value_checks import add_checks
from fusepass.options import Options
from fusepass.report.decision import Decision, Station

# --- ``cumsum`` of a constant in another dtype, which Inductor forgets ----------------------------
# A pattern of Inductor's makes a range of such a call, in the dtype of the constant. The pattern
# has the dimension as its second argument, so it stands by name until the pattern has been looked
# for.

_aten = torch.ops.aten
_FAULT = Fault("dtype_of_scan", (189518,), "makes a range in the dtype of the constant")


def hide_scans(graph: fx.Graph) -> list[Decision]:
    """Give the dimension by name where the dtype would be lost; what was decided."""
    found = False
    for node in graph.find_nodes(op="call_function", target=_aten.cumsum.default):
        x, made = tensor_value(node.args[0]), tensor_value(node)
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


def before_hand_off(gm: fx.GraphModule, options: Options) -> tuple[list[Decision], Options]:
    """On a graph of Dynamo's, at the end of station 2: what was decided, and what is in force."""
    if options.codegen != "inductor":
        return [], options
    found = op_by_op_reason(gm)
    if found:
        return found, dataclasses.replace(options, codegen="eager")
    return add_checks(gm), options


def before_inductor(graph: fx.Graph) -> list[Decision]:
    """On a joint or forward ATen graph, in front of Inductor's passes."""
    return [
        *rewrite_faulty_calls(graph),
        *keep_casts(graph),
        *hide_scans(graph),
        *keep_lost_copies(graph),
        *copy_before_overlapping_store(graph),
    ]


def before_partition(graph: fx.Graph) -> list[Decision]:
    """On a joint ATen graph, behind Inductor's passes on it, whose new calls have no marks."""
    return save_what_is_written(graph)


def before_lowering(graph: fx.Graph) -> list[Decision]:
    """On a forward or backward ATen graph, behind Inductor's passes that match patterns."""
    show_scans(graph)
    return [*copy_permuted_pool_inputs(graph), *use_eager_kernels(graph)]
