"""Compare two tensors that a select could choose between."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from fusepass.capture.refusal import Refusal
from fusepass.report.decision import Reason
from fusepass.torch_private.fx.graphs import known_equal, size_hint


def difference(a: torch.Tensor, b: torch.Tensor) -> Refusal | None:
    """Why no select can choose between two tensors, or None."""
    if a.dtype != b.dtype:
        return Refusal(Reason.DTYPE_MISMATCH, f"the arms leave {a.dtype} and {b.dtype}")
    if a.device != b.device:
        return Refusal(
            Reason.DEVICE_MISMATCH, f"the arms leave tensors on {a.device} and {b.device}"
        )
    if not all_equal(a.shape, b.shape):
        return Refusal(
            Reason.SHAPE_MISMATCH,
            f"the arms leave shapes {display_sizes(a.shape)} and {display_sizes(b.shape)}",
        )
    if not all_equal(a.stride(), b.stride()):
        return Refusal(
            Reason.STRIDE_MISMATCH,
            f"the arms leave strides {display_sizes(a.stride())} and {display_sizes(b.stride())}",
        )
    if a.is_conj() != b.is_conj() or a.is_neg() != b.is_neg():
        return Refusal(Reason.STRIDE_MISMATCH, "an arm leaves a lazily conjugated or negated view")
    return None


def display_sizes(sizes: Iterable[Any]) -> str:
    """Sizes as they are in this call, those that only the data know as a question mark."""
    known = [size_hint(size) for size in sizes]
    parts = ["?" if size is None else str(size) for size in known]
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


def all_equal(left: Any, right: Any) -> bool:
    """Whether two lists of sizes are known to be the same."""
    return len(left) == len(right) and all(map(known_equal, left, right))
