"""Which computations treat rows apart: every dimension but the last could be one long one.

An activation after a linear layer does, whether its input has two dimensions or four; so such a
computation matches whatever its number of leading dimensions is, and through reshapes that only
merge or split them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from fusepass.graph.ops.normal_call import call_names

_LAST = (-1,)
_WITHOUT_A_TAG = frozenset({"floor_divide", "rfloor_divide"})  # pointwise, ATen does not say so
_OVER_LAST = frozenset("softmax log_softmax _softmax _log_softmax".split())
_REDUCTIONS = frozenset("sum mean amax amin logsumexp var std all any prod".split())


@functools.lru_cache(maxsize=1024)
def is_pointwise(op: str) -> bool:
    """Whether a canonical operation works on each element by itself, by torch's own tag."""
    if op == "cast":
        return True
    return any(map(_is_tagged, call_names(op)))  # ATen has no rdiv


def _is_tagged(op: str) -> bool:
    packet = getattr(torch.ops.aten, op, None)
    if packet is None:
        return False
    return any(torch.Tag.pointwise in getattr(packet, name).tags for name in packet.overloads())


def is_rowwise(roots: Sequence[Any]) -> bool:
    """Whether the computation of ``roots`` (operations of a pattern) treats rows apart."""
    seen: set[int] = set()

    def check(part: Any) -> bool:
        if isinstance(part, tuple):
            return all(map(check, part))
        if not hasattr(part, "args") or id(part) in seen:
            return True
        seen.add(id(part))
        given = dict(part.args)
        if part.op == "matmul":
            return check(given["self"]) and _is_matrix(given["other"])
        if not _keeps_rows(part.op, given):
            return False
        return all(check(value) for value in given.values())

    return all(map(check, roots))


def _keeps_rows(op: str, args: dict[str, Any]) -> bool:
    if op in _OVER_LAST:
        return args.get("dim") == -1
    if op in _REDUCTIONS:
        return args.get("dim") in (_LAST, -1) and args.get("keepdim") is True
    if op in ("layer_norm", "rms_norm"):
        return len(args.get("normalized_shape", ())) == 1
    return op in _WITHOUT_A_TAG or is_pointwise(op)


def _is_matrix(part: Any) -> bool:
    """A two-dimensional variable, as it is or transposed."""
    if getattr(part, "op", None) == "permute":
        part = dict(part.args)["self"]
    return hasattr(part, "shape") and len(part.shape) == 2
