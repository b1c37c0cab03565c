"""What a user could write instead, one sentence for each kind, or for one operation of a kind."""

from __future__ import annotations

from collections.abc import Iterable

from fusepass.report.host_syncs.kinds import Kind

# By kind and operation, by operation, or by kind; the first of these that there is.
_ADVICE: dict[tuple[Kind | None, str], str] = {
    (Kind.BRANCH, ""): (
        "Compute both values and choose with torch.where(condition, a, b), or test once, after "
        "the loop."
    ),
    (Kind.ITEM, ""): (
        "Keep the value as a 0-d tensor: arithmetic, comparisons, torch.where and clamp take it; "
        "read numbers once, at the end."
    ),
    (Kind.PRINT, ""): (
        "Keep the detached tensor in a list and print it after the step, or only every n-th step."
    ),
    (Kind.COPY_IN, ""): (
        "Make the tensor on the device (torch.arange(n, device=x.device)), make it once and keep "
        "it (register_buffer), or copy from pinned memory with non_blocking=True."
    ),
    (Kind.COPY_OUT, ""): (
        "Go on with the tensor on the device, or copy with non_blocking=True and synchronise once "
        "where the values are needed."
    ),
    (Kind.NONZERO, ""): (
        "Keep the shape: torch.where(mask, a, b), masked_fill, or a product with the mask and a "
        "reduction, in place of picking out the true elements."
    ),
    (Kind.SIZE, ""): "Give the size if it is known, or pad to a fixed size and carry a mask.",
    (Kind.OPERATION, ""): (
        "The operation looks at values on the host; choose one that does not, or call it once "
        "outside of the loop."
    ),
    (Kind.SYNCHRONIZE, ""): (
        "Leave it out: operations on one stream run in order; between streams use "
        "stream.wait_event or wait_stream, which do not stop the host."
    ),
    (Kind.ALLOCATION, ""): (
        "Memory is given back to the driver: reuse buffers, and do not call "
        "torch.cuda.empty_cache in the loop."
    ),
    (Kind.READ_BACK, ""): (
        "Once per call fusepass reads what the code it put behind the graph needs: whether an "
        "exception is due, text to print, which arm's value is returned or stored. Take that out "
        "of the function to save the read."
    ),
    (Kind.UNKNOWN, ""): "Run torch.profiler with with_stack=True to see what calls it.",
    (
        Kind.ITEM,
        "tolist",
    ): "Work on the tensor itself; if a list is needed, make it once, at the end.",
    (None, "index"): (
        "Boolean-mask indexing has a result of unknown size: use torch.where(mask, x, neutral) "
        "with the reduction that follows, or masked_fill."
    ),
    (None, "index_put_"): "Write torch.where(mask, value, x), or x.masked_fill_(mask, value).",
    (None, "nonzero"): (
        "Use the mask itself (torch.where(mask, a, b), mask.sum() for the number), or "
        "torch.nonzero_static(mask, size=n) where n is known."
    ),
    (None, "masked_select"): "Use torch.where(mask, x, neutral) with the reduction that follows.",
    (None, "repeat_interleave"): "Give repeat_interleave its output_size.",
    (None, "one_hot"): "Give one_hot its num_classes.",
    (None, "bincount"): "Use torch.zeros(n).index_add_(0, index, weights), with n known.",
    (
        None,
        "_unique2",
    ): "Sort, and mark the elements that differ from their neighbour: the size stays.",
    (
        None,
        "nms",
    ): "Keep the boxes and a mask of those kept (the matrix form of NMS), or batch the images.",
    (None, "_linalg_check_errors"): (
        "Use the _ex form (torch.linalg.inv_ex, cholesky_ex, solve_ex), whose error code stays "
        "on the device."
    ),
    (None, "equal"): "Write (a == b).all(), which stays a tensor.",
    (None, "allclose"): "Write torch.isclose(a, b).all(), which stays a tensor.",
    (None, "histc"): "Give histc its min and max.",
    (None, "normal"): "Write mean + std * torch.randn_like(mean).",
    (Kind.COPY_IN, "index"): "Index with a tensor kept on the device, or with slices and integers.",
    (Kind.COPY_IN, "copy_"): (
        "Write a Python number with fill_ (x[i].fill_(v)), or keep the source on the device."
    ),
    (Kind.ITEM, "tensor"): "Use torch.stack on the list of tensors in place of torch.tensor.",
}


def advice(kind: Kind, operations: Iterable[str]) -> str:
    """One sentence for a place of a kind where ``operations`` wait."""
    names = [operation.rsplit(".", 1)[-1] for operation in operations]
    keys: list[tuple[Kind | None, str]] = [(kind, name) for name in names]
    if kind in (Kind.NONZERO, Kind.SIZE, Kind.OPERATION):
        keys += [(None, name) for name in names]
    return next(_ADVICE[key] for key in [*keys, (kind, "")] if key in _ADVICE)
