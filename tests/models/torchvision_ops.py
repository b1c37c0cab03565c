"""Operators of torchvision that its wheel brings only for a torch with CUDA, in Python.

The wheel of the package index is linked to CUDA. With a torch for the CPU alone its library does
not load, and then neither does torchvision, and nothing that looks for it.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import torch
from torch import Tensor

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor",
)
_library: Any = None


def provide() -> bool:
    """Make torchvision importable; says whether it is there."""
    global _library
    if importlib.util.find_spec("torchvision") is None:
        return False
    if _library is not None:
        return True
    try:
        importlib.import_module("torchvision")
    except RuntimeError:  # its fake implementations find no operators
        _library = torch.library.Library("torchvision", "DEF")
        for schema in _SCHEMAS:
            _library.define(schema)
        _library.impl("nms", _nms, "CPU")
        _library.impl("roi_align", _roi_align, "CPU")
        importlib.import_module("torchvision")
        importlib.import_module("torchvision.extension")._has_ops = lambda: True
    return True


def _nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    order = scores.argsort(descending=True, stable=True)
    corners = boxes[order]
    low = torch.maximum(corners[:, None, :2], corners[None, :, :2])
    high = torch.minimum(corners[:, None, 2:], corners[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    area = (corners[:, 2:] - corners[:, :2]).prod(-1)
    overlaps = shared / (area[:, None] + area[None] - shared) > threshold
    kept = torch.ones(len(order), dtype=torch.bool)
    for i in range(len(order)):
        if kept[i]:
            kept[i + 1 :] &= ~overlaps[i, i + 1 :]
    return order[kept]


def _roi_align(*given: Any) -> Tensor:
    from torchvision.ops.roi_align import _roi_align as in_python

    return in_python(*given)
