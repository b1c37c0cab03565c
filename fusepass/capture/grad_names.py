"""The ``grad_fn`` that the text of a tensor shows, read off the fake tensor Dynamo traced.

Fake tensors run through the same autograd as real ones, so their ``grad_fn`` has eager's name, but
where tracing takes an operation apart that eager has whole (dropout, batch norm, some products), or
records a call that eager does not make. The table holds operations for which the names were
compared (tests/capture/test_grad_names.py); of others it is not known.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import fx

from fusepass.capture.shown import Look, look_of
from fusepass.graph.canonical import op_name, tensor_value
from fusepass.graph.totality import POINTWISE

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
    cosine_embedding_loss cosine_similarity cross_entropy cumsum detach diagonal double einsum
    embedding expand expand_as flatten float gather getattr getitem group_norm half
    hinge_embedding_loss hstack huber_loss index_add instance_norm kl_div l1_loss layer_norm
    linalg_det linalg_inv linalg_norm linear log_softmax logsumexp matmul max max_pool1d mean median
    min mm movedim mse_loss nanmean nll_loss norm normalize numpy_T outer pad permute prod
    repeat reshape rms_norm roll scatter_add select smooth_l1_loss softmax sort split squeeze stack
    std sum t to topk transpose tril triplet_margin_loss triu type_as unbind unfold unsqueeze var
    view view_as
    """.split()
)


def look_of_node(node: fx.Node, written: bool) -> Look | None:
    """What the text of a tensor in the graph shows besides its contents, now.

    Args:
        node: of the tensor.
        written: whether its memory was written in place before.

    Returns:
        None where eager's ``grad_fn`` is not known.
    """
    value = tensor_value(node)
    if value is None:
        return None
    look = look_of(value)
    if not look.requires_grad:
        return look
    if node.op in ("placeholder", "get_attr"):
        return None
    if look.grad_fn is None:  # a leaf made in the graph
        return look
    name = _eagers(node, value, look.grad_fn, written)
    return None if name is None else dataclasses.replace(look, grad_fn=name)


def _eagers(node: fx.Node, value: torch.Tensor, name: str, written: bool) -> str | None:
    if written and value._is_view():
        return None
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
