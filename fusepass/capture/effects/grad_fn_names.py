"""Find the ``grad_fn`` that the text of a tensor shows, from Dynamo's fake tensor.

Fake tensors run through the same autograd as real ones, so their ``grad_fn`` has eager's name, but
where tracing takes an operation apart that eager has whole (dropout, batch norm, some products), or
records a call that eager does not make. The table holds operations for which the names were
compared (tests/capture/effects/test_gradient_functions_in_text.py); of others it is not known.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fusepass.capture.nodes.select_node import ARM, select
from fusepass.capture.nodes.tensor_repr import Look, LookChoice, look_of
from fusepass.capture.nodes.value_recipe import CONTENTS
from fusepass.graph.dataflow.effects import written_nodes
from fusepass.graph.dataflow.memory import memories
from fusepass.graph.dataflow.write_history import WriteHistory
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.graph.safety.totality import POINTWISE
from fusepass.torch_private.dynamo.containers import ROW

_APART = frozenset("hardshrink softshrink".split())
# What tracing has, and what eager has, on the CPU.
_ON_CPU = {
    "batch_norm": ("NativeBatchNormLegitBackward", "NativeBatchNormBackward0"),
    "dropout": ("NativeDropoutBackward", "MulBackward0"),
}
_COMPARED = (POINTWISE - _APART) | frozenset(
    """
    adaptive_avg_pool1d amax amin as_strided avg_pool1d baddbmm bilinear
    binary_cross_entropy_with_logits bmm cat cdist chunk clone contiguous conv1d conv2d
    cosine_embedding_loss cosine_similarity cross_entropy cumsum detach diagonal div double einsum
    embedding expand expand_as flatten float gather getattr getitem group_norm half
    hinge_embedding_loss hstack huber_loss index_add instance_norm kl_div l1_loss layer_norm
    linalg_det linalg_inv linalg_norm linear log_softmax logsumexp matmul max max_pool1d mean median
    min mm movedim mse_loss nanmean nll_loss norm normalize numpy_T outer pad permute prod
    repeat reshape rms_norm roll scatter_add select smooth_l1_loss softmax sort split squeeze stack
    std sum t to topk transpose tril triplet_margin_loss triu type_as unbind unfold unsqueeze var
    view view_as
    """.split()
)

_MOST_JOINS = 64  # behind one another; every text would have a look for each way through them


def look_at_end(
    graph: fx.Graph,
    node: fx.Node,
    position: Callable[[fx.Node, str], int],
    left: list[int] | None = None,
) -> Look | LookChoice | None:
    """Find what the text of a tensor shows besides its contents, now; None if that is not known.

    ``position`` says where a node is among the operands of the text, and adds it. ``left`` counts
    the places where arms meet that may still be looked through.
    """
    left = [_MOST_JOINS] if left is None else left
    value = tensor_value(node)
    if value is None:
        return None
    join = node.args[0] if op_name(node) == "getitem" and node.args else None
    own = set(memories([node]))
    writes = [n for n in graph.nodes if not own.isdisjoint(memories(written_nodes(n)))]
    if value.requires_grad and any(map(_is_of_arms, writes)):
        return None  # by one arm, perhaps, and the fake tensor was written by both
    if not (isinstance(join, fx.Node) and join.target is select and value.requires_grad):
        return _look_of_node(node, value, value._is_view() and bool(writes))
    test: Any = join.args[0]
    left[0] -= 1
    if left[0] < 0 or writes or WriteHistory(graph).is_written(test, 0, sys.maxsize):
        return None
    index: Any = node.args[1]
    arms: Any = join.args[1:]
    taken, other = (look_at_end(graph, arm[index], position, left) for arm in arms)
    if taken is None or other is None or taken == other:
        return taken if taken == other else None
    if ARM in test.meta:
        return None  # a torch.cond would have it inside
    return LookChoice(position(test, CONTENTS), taken, other)


def _is_of_arms(write: fx.Node) -> bool:
    """Whether a write copies back what the arms of a branch left in memory older than them."""
    source = write.args[1] if op_name(write) == "copy_" and len(write.args) > 1 else None
    made = source.args[0] if isinstance(source, fx.Node) and source.args else None
    return isinstance(made, fx.Node) and made.target is select


def _look_of_node(node: fx.Node, value: torch.Tensor, written_view: bool) -> Look | None:
    """What the text of a tensor in the graph shows; None where its ``grad_fn`` is not known."""
    look = look_of(value)
    if not look.requires_grad:
        return look
    if node.op in ("placeholder", "get_attr"):
        return None
    if look.grad_fn is None:  # a leaf made in the graph
        return look
    name = None if written_view else _eagers(node, value, look.grad_fn)
    return None if name is None else dataclasses.replace(look, grad_fn=name)


def _eagers(node: fx.Node, value: torch.Tensor, name: str) -> str | None:
    """Eager's name for the ``grad_fn`` that has a name while tracing; None if it is not known."""
    if ROW in node.meta:
        return "UnbindBackward0"
    operation = op_name(node)
    parent = node.args[0] if node.args else None
    if operation == "getitem" and isinstance(parent, fx.Node) and tensor_value(parent) is None:
        operation = op_name(parent)  # one of several results
    if operation is None:
        return None
    if operation == "matmul" and name == "ViewBackward0":
        return "UnsafeViewBackward0"
    if value.device.type == "cpu" and operation in _ON_CPU:
        traced, own = _ON_CPU[operation]
        return own if name.startswith(traced) else None
    return name if operation.rstrip("_") in _COMPARED else None
