"""Which operations of torch make the host wait on CUDA, by their name without the overload.

Read off torch's CUDA sources (2.11 to 2.15). An operation waits because its result's size depends
on data, because it looks at values to check its arguments or its success, or because it copies
between the host and the device. What is not listed only launches kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fusepass.report.host_syncs.kinds import Kind

OnDevice = Callable[[Tensor], bool]
Found = list[tuple[Kind, int]]  # kind and how often the host waits

_POSITIONS = ("nonzero", "argwhere", "nonzero_numpy", "masked_select")
_SIZES = {
    "_unique": 1,
    "_unique2": 1,
    "unique_dim": 1,
    "unique_consecutive": 1,
    "unique_dim_consecutive": 1,
    "bincount": 2,
    "nms": 1,  # torchvision's
    "_coalesce": 1,
    "_to_sparse": 1,
    "to_sparse": 1,
    "embedding_renorm_": 1,
}
# Values are looked at inside the operation.
_LOOKS = {
    "equal": 1,
    "allclose": 1,
    "_linalg_check_errors": 1,
    "_linalg_eigh": 1,
    "_linalg_svd": 1,
    "linalg_eig": 2,
    "linalg_lstsq": 1,
    "_validate_sparse_coo_tensor_args": 2,
}
_INDEXED = ("index", "_unsafe_index")
_INDEX_WRITTEN = ("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put")
# Arguments that may come by keyword, in the order of the schemas that have them.
_POSITIONAL = ("self", "src", "indices", "values", "dst")
_READ = ("_local_scalar_dense", "item", "is_nonzero")


def waits_of(
    name: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    out: Any,
    on_device: OnDevice,
) -> Found:
    """The host's waits in one call of an ATen operation; empty for nearly all."""
    args = [*args, *(kwargs[key] for key in _POSITIONAL if key in kwargs)]
    tensors = [value for value in args if isinstance(value, Tensor)]
    if name in _READ:
        return [(Kind.ITEM, 1)] if any(map(on_device, tensors)) else []
    if name in ("copy_", "_copy_from", "_copy_from_and_resize"):
        pair = (args[1], args[0]) if name == "copy_" else (args[0], args[1])
        given = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
        return _copy(*pair, bool(given), on_device)
    if name == "_to_copy" and isinstance(out, Tensor):
        return _copy(args[0], out, bool(kwargs.get("non_blocking")), on_device)
    if name in _INDEXED or name in _INDEX_WRITTEN:
        return _indexed(name, args, kwargs, on_device)
    if not any(map(on_device, tensors)):
        return []
    if name in _POSITIONS:
        return [(Kind.NONZERO, 1)]
    if name in _SIZES:
        return [(Kind.SIZE, _SIZES[name])]
    if name in _LOOKS:
        return [(Kind.OPERATION, _LOOKS[name])]
    if name == "repeat_interleave":
        given = kwargs.get("output_size")
        return [(Kind.SIZE, 1)] if given is None else []
    if name == "normal" and len(args) > 1 and isinstance(args[1], Tensor):
        return [(Kind.OPERATION, 1)]  # the smallest standard deviation must not be negative
    if name == "histc":
        low, high = (args[i] if len(args) > i else 0 for i in (2, 3))
        return [(Kind.OPERATION, 2)] if low == high else []
    return []


def _copy(source: Any, target: Any, asynchronous: bool, on_device: OnDevice) -> Found:
    """A copy between host and device waits unless it is asked not to."""
    if asynchronous or not isinstance(source, Tensor) or target.numel() == 0:
        return []
    ends = on_device(source), on_device(target)
    if ends[0] == ends[1]:
        return []
    return [(Kind.COPY_OUT if ends[0] else Kind.COPY_IN, 1)]


def _indexed(name: str, args: Sequence[Any], kwargs: dict[str, Any], on_device: OnDevice) -> Found:
    """Indexing looks for the true elements of masks, and uploads indices that are on the host."""
    if not on_device(args[0]):
        return []
    indices = [index for index in args[1] if isinstance(index, Tensor)]
    masks = [index for index in indices if index.dtype in (torch.bool, torch.uint8)]
    found: Found = []
    if name in _INDEX_WRITTEN:
        value = args[2]
        on_host = not on_device(value)
        accumulates = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
        if on_host and value.numel() == 1 and masks == indices and not accumulates:
            return []  # becomes masked_fill
        if on_host:
            found.append((Kind.COPY_IN, 1))
    uploaded = sum(not on_device(index) for index in indices if index.numel())
    if uploaded:
        found.append((Kind.COPY_IN, uploaded))
    if masks:
        found.append((Kind.NONZERO, len(masks)))
    return found
