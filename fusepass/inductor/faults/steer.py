"""Graphs are steered round Inductor's faults: which means acts where."""

from __future__ import annotations

import dataclasses

from torch import fx

from fusepass.inductor.faults.aten_kernels import use_eager_kernels
from fusepass.inductor.faults.copies import (
    copy_before_overlapping_store,
    copy_permuted_pool_inputs,
    keep_lost_copies,
)
from fusepass.inductor.faults.op_by_op import op_by_op_reason
from fusepass.inductor.faults.rewrites import rewrite_faulty_calls
from fusepass.inductor.faults.roundings import keep_casts
from fusepass.inductor.faults.scans import hide_scans, show_scans
from fusepass.inductor.faults.value_checks import add_checks
from fusepass.options import Options
from fusepass.report.decision import Decision


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


def before_lowering(graph: fx.Graph) -> list[Decision]:
    """On a forward or backward ATen graph, behind Inductor's passes that match patterns."""
    show_scans(graph)
    return [*copy_permuted_pool_inputs(graph), *use_eager_kernels(graph)]
