"""Give a branch back if traced code reads an attribute whose value the branch decides."""

from __future__ import annotations

from typing import Any

from fusepass.capture.autograd.identity_outputs import depends_on_arm
from fusepass.capture.frame_state import frame_of
from fusepass.capture.restarts import restart_without
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.stack import node_of


def on_identity_query(translator: Any, tensor: Any, what: str) -> None:
    """Take back the branches that decide what the answer is.

    Args:
        translator: Dynamo's translator.
        tensor: the tracked tensor asked about.
        what: the attribute, ``__class__`` for its type.
    """
    frame = frame_of(translator.output)
    node = node_of(tensor) if frame is not None and frame.sites else None
    if frame is None or node is None:
        return
    text = f"an arm may hand on a tensor unchanged, and the program asks for its {what}"
    chosen = [s for s in frame.sites if s.select is not None]
    sites = [s.branch.site for s in chosen if depends_on_arm(s.select, node, what)]
    restart_without(frame, dict.fromkeys(sites, (Reason.ALIAS, text)))
