"""Trace operations that only the text of an exception, print or log call needs.

What such code records is marked, where it must leave the graph; it runs when the message is due.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from fusepass.capture.frame_state import Frame
from fusepass.capture.nodes.raise_node import MESSAGE
from fusepass.capture.refusal import Refusal
from fusepass.graph.dataflow.effects import is_random, written_nodes
from fusepass.graph.ops.op_names import op_name
from fusepass.graph.safety.totality import depends_on_data
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.deferred_values import message_tracing
from fusepass.torch_private.dynamo.errors.stop_reasons import python_error
from fusepass.torch_private.dynamo.stack import new_scope


@contextlib.contextmanager
def message(translator: Any, frame: Frame) -> Iterator[None]:
    """Inside, a message is traced: no partial graph, no handler, nothing from outside is written.

    What is computed from data stays open until the graph has run
    (torch_private/dynamo/deferred_values.py).
    """
    held = {
        n: translator.__dict__.get(n) for n in ("should_compile_partial_graph", "exception_handler")
    }
    translator.should_compile_partial_graph = lambda: False
    translator.exception_handler = _refuse_handling
    translator.current_speculation = None
    frame.in_message = True
    try:
        with new_scope(), message_tracing(translator, depends_on_data):
            yield
    finally:
        frame.in_message = False
        for name, value in held.items():
            if value is None:
                delattr(translator, name)
            else:
                setattr(translator, name, value)


def _refuse_handling(error: Any) -> None:
    raise Refusal(Reason.RAISES, f"an arm raises {python_error(error)}")


def tag_as_message(graph: fx.Graph, last: fx.Node | None, site_id: int) -> list[fx.Node]:
    """Mark what was recorded after ``last`` as not part of the program's main path."""
    nodes: list[fx.Node] = []
    for node in reversed(graph.nodes):
        if node is last:
            break
        if node.op != "placeholder":
            node.meta.setdefault(MESSAGE, site_id)
            nodes.append(node)
    return nodes[::-1]


def check_message(nodes: list[fx.Node], whose: str) -> None:
    """The message runs later, and only when it is needed: it may look, and nothing else.

    Raises:
        Refusal: it draws random numbers or writes.
    """
    for node in nodes:
        if is_random(node):
            text = f"{whose} draws random numbers ({op_name(node)})"
            raise Refusal(Reason.RANDOM_OP, text)
        if written_nodes(node):
            raise Refusal(Reason.SIDE_EFFECT, f"{whose} writes memory ({op_name(node)})")


def autocast_now() -> tuple[tuple[str, bool, Any], ...]:
    """(device type, whether it is on, dtype) of autocast, for each kind of device there is."""
    kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    return tuple((k, torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in kinds)
