"""Graphs are steered round Inductor's faults: which means acts where."""

from __future__ import annotations

import dataclasses

from torch import fx

from fusepass.inductor.faults.aten_kernels import use_own_kernels
from fusepass.inductor.faults.copies import copy_swapped, keep_copies, spread_out
from fusepass.inductor.faults.op_by_op import op_by_op_for
from fusepass.inductor.faults.rewrites import write_out
from fusepass.inductor.faults.roundings import keep_roundings
from fusepass.inductor.faults.scans import hide_scans, show_scans
from fusepass.inductor.faults.value_checks import add_checks
from fusepass.options import Options
from fusepass.report.decision import Decision


def before_hand_off(gm: fx.GraphModule, options: Options) -> tuple[list[Decision], Options]:
    """On a graph of Dynamo's, at the end of station 2: what was decided, and what is in force."""
    if options.codegen != "inductor":
        return [], options
    found = op_by_op_for(gm)
    if found:
        return found, dataclasses.replace(options, codegen="eager")
    return add_checks(gm), options


def before_inductor(graph: fx.Graph) -> list[Decision]:
    """On a joint or forward ATen graph, in front of Inductor's passes."""
    return [
        *write_out(graph),
        *keep_roundings(graph),
        *hide_scans(graph),
        *keep_copies(graph),
        *spread_out(graph),
    ]


def before_lowering(graph: fx.Graph) -> list[Decision]:
    """On a forward or backward ATen graph, behind Inductor's passes that match patterns."""
    show_scans(graph)
    return [*copy_swapped(graph), *use_own_kernels(graph)]
