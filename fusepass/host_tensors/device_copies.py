"""Where a graph takes a tensor from the CPU to another device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import fx

from fusepass.graph.ops.op_names import argument, op_name, tensor_value

_COPIES = frozenset("to cuda xpu type type_as as_tensor asarray tensor _to_copy".split())
_LITERALS = frozenset("tensor as_tensor asarray new_tensor".split())
_INDEXED = frozenset("getitem __getitem__ setitem __setitem__ index index_put index_put_".split())


@dataclass(frozen=True)
class DeviceCopy:
    """A call that takes CPU tensors to another device.

    Attributes:
        node: the call.
        kind: ``copy`` hands out a copy of its operand, ``literal`` a tensor of numbers in the
            program; ``into`` writes its operand into a tensor, ``index`` reads or writes a tensor
            where its operands say.
        operands: the CPU tensors; none for a literal.
        device: where they go.
        dtype: how they are stored there.
    """

    node: fx.Node
    kind: Literal["copy", "literal", "into", "index"]
    operands: tuple[fx.Node, ...]
    device: torch.device
    dtype: torch.dtype


def device_copy_at(node: fx.Node) -> DeviceCopy | None:
    """The crossing at a node, or None.

    A tensor of no dimensions beside tensors of a device, or as an index, is a number to the
    kernel: nothing is copied. A mask as an index is another matter: it is counted on the host.
    """
    name = op_name(node)
    if name in _COPIES or name in _LITERALS:
        return _copy(node, name or "")
    target = tensor_value(node.args[0]) if node.args else None
    if target is None or target.device.type == "cpu":
        return None
    if name == "copy_":
        return _copy_into(node, argument(node, 1, "src"), target)
    if name not in _INDEXED:
        return None
    indices = node.args[1] if len(node.args) > 1 else None
    parts = indices if isinstance(indices, (tuple, list)) else (indices,)
    tensors = [part for part in parts if tensor_value(part) is not None]
    on_cpu = tuple(dict.fromkeys(part for part in tensors if _is_cpu(part)))
    whole = [tensor_value(part) for part in on_cpu]
    if on_cpu and all(v is not None and v.dtype is torch.int64 and v.dim() for v in whole):
        return DeviceCopy(node, "index", on_cpu, target.device, torch.int64)
    if name in ("setitem", "__setitem__") and not tensors:
        return _copy_into(node, node.args[2], target)
    return None


def _copy(node: fx.Node, name: str) -> DeviceCopy | None:
    result = tensor_value(node)
    if result is None or result.device.type == "cpu":
        return None
    source = node.args[0] if node.args else None
    if name in _COPIES and _is_cpu(source):
        assert isinstance(source, fx.Node)
        return DeviceCopy(node, "copy", (source,), result.device, result.dtype)
    if name not in _LITERALS or (tensor_value(source) is not None and name != "new_tensor"):
        return None
    if result.device.type == "meta":  # no data, and Dynamo's example is a meta tensor itself
        return None
    return DeviceCopy(node, "literal", (), result.device, result.dtype)


def _copy_into(node: fx.Node, source: object, target: torch.Tensor) -> DeviceCopy | None:
    value = tensor_value(source)
    if value is None or not _is_cpu(source) or (op_name(node) != "copy_" and value.dim() == 0):
        return None
    assert isinstance(source, fx.Node)
    return DeviceCopy(node, "into", (source,), target.device, target.dtype)


def _is_cpu(node: object) -> bool:
    value = tensor_value(node)
    return value is not None and value.device.type == "cpu"
