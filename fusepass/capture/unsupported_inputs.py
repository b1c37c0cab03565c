"""Start a frame again without capture if an input's fake tensor differs from the real one.

Dynamo's fake tensor of a tensor in oneDNN's layout is strided: no decision made for it holds.
"""

from __future__ import annotations

from torch import fx

from fusepass.capture.frame_state import Frame
from fusepass.capture.restarts import restart_plain
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.report.decision import Reason
from fusepass.torch_private.fx.graphs import real_input


def leave_unseen(frame: Frame, gm: fx.GraphModule) -> None:
    """Start the frame again without capture, if it captured anything and has such a tensor."""
    if not frame.captures:
        return
    layouts = (_real_layout(node) for node in gm.graph.nodes)
    for layout in filter(None, layouts):
        text = f"a tensor has the layout {layout}, of which tracing does not know"
        restart_plain(frame, Reason.UNTRACEABLE, text)


def _real_layout(node: fx.Node) -> str | None:
    """The layout that a tensor has, if tracing takes it for another one."""
    if op_name(node) == "to_mkldnn":
        return "torch._mkldnn"
    fake = tensor_value(node)
    if node.op not in ("placeholder", "get_attr") or fake is None:
        return None
    real = getattr(real_input(node), "layout", fake.layout)
    return None if real is fake.layout else str(real)
