"""Lower ``x[mask] = f(x[mask])`` to ``x.copy_(where(mask, f(x), x))``."""

from __future__ import annotations

import torch
from torch import fx

from fusepass.capture.masks.lowering_state import FullTensor, KeptSelection, MaskLowering
from fusepass.capture.masks.masked_store import mask_of
from fusepass.graph.dataflow.value_numbering import same_value
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.graph.safety.totality import has_internal_overlap
from fusepass.report.decision import Reason
from fusepass.torch_private.fx.graphs import known_equal


def lower_masked_store(low: MaskLowering, node: fx.Node) -> bool:
    """Lower a store of what was selected through the same mask; False for any other call.

    Raises:
        KeptSelection: it is a store through another mask, or one that cannot be lowered.
    """
    if op_name(node) not in ("setitem", "__setitem__") or node.args[2] not in low.whole:
        return False
    target, index, source = node.args
    value, whole = tensor_value(target), low.whole[source]  # type: ignore[index]
    found = mask_of(value, index) if value is not None else None
    if value is None or found is None or target in low.whole:
        raise KeptSelection(Reason.SIZE, "what a mask selected is stored where no such mask is")
    mask, shape, after = found
    dims = len(shape) - after - whole.front
    if dims != mask.meta["example_value"].dim() or after != whole.after:
        raise KeptSelection(Reason.SIZE, "what a mask selected is broadcast where it is stored")
    _check(low, whole, value)
    if has_internal_overlap(target):  # type: ignore[arg-type]
        raise KeptSelection(
            Reason.PARTIAL_OP, "a write to a tensor whose elements share memory raises"
        )
    moment = low.history.moments[node]
    before = whole.selection
    if not same_value(before.mask, mask, low.history, (before.moment, moment)):
        raise KeptSelection(Reason.SIZE, "what one mask selected is stored through another")
    new = whole.node
    if dims > 1:
        new = low.add(node, "reshape_as", new, target)
    trained = value.requires_grad or whole.value.requires_grad
    if trained and torch.is_grad_enabled():
        mask = low.add(node, "clone", mask)  # backward reads it again
    for _ in range(after):
        mask = low.add(node, "unsqueeze", mask, -1)
    chosen = low.add(node, torch.where, mask, new, target)
    sizes = chosen.meta["example_value"].shape
    if len(sizes) != value.dim() or not all(map(known_equal, sizes, value.shape)):
        raise KeptSelection(Reason.SIZE, "what a mask selected is broadcast where it is stored")
    low.add(node, "copy_", target, chosen)
    return True


def _check(low: MaskLowering, whole: FullTensor, target: torch.Tensor) -> None:
    source = whole.value
    if (source.dtype, source.device) != (target.dtype, target.device):
        raise KeptSelection(Reason.SIZE, "what a mask selected is stored in another dtype")
    if low.exact and not whole.exact:
        text = "what a mask selected is stored with other roundings than one by one"
        raise KeptSelection(Reason.INEXACT, text)
