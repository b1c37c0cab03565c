"""Where kernels of ours can run at all, whatever they compute."""

from __future__ import annotations

import torch
from torch import fx

from fusepass import torch_private
from fusepass.options import Options
from fusepass.report.decision import Reason
from fusepass.rewrite.reject import Reject
from fusepass.tune import REFERENCE


def refused(device: torch.device, options: Options, node: fx.Node) -> Reject | None:
    """Why no kernel of ours can stand in a graph; None if one can, or the reference is forced.

    Args:
        device: of what it would compute.
        options: in force.
        node: named by the refusal.
    """
    if options.candidate == REFERENCE:
        return None
    if device.type != "cuda":
        return Reject(Reason.COST, "no kernel of ours is faster there than Inductor's", node)
    if not torch_private.kernel_calls_tested():
        return Reject(Reason.UNSUPPORTED_VERSION, "not tested on a device with this torch", node)
    if options.inductor_value("cpp_wrapper"):
        return Reject(Reason.UNSUPPORTED_VERSION, "our kernels need Inductor's Python code", node)
    return None
