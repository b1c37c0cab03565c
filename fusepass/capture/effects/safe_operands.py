"""Give an operation after a raise operands with which it cannot fail.

Behind a sink everything still runs. An index out of the table must not reach the device (on CUDA a
device assert would end the process's context), an integer must not be divided by zero. Where the
exception is due, such operands are replaced by ones the operation accepts whatever the others are:
index 0, divisor 1, the identity matrix. Nobody sees what comes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusepass.graph.dataflow.memory import is_nonempty
from fusepass.graph.ops.op_names import argument, op_name, tensor_value
from fusepass.torch_private.fx.tensor_kinds import is_plain_fake, is_transformed

IDENTITY = "identity"


@dataclass(frozen=True)
class Guard:
    """One argument of a call to be made safe.

    Attributes:
        position: among the positional arguments.
        name: as a keyword.
        fill: the number that is always accepted, or :data:`IDENTITY`.
    """

    position: int
    name: str
    fill: float | str

    def operands(self, node: fx.Node) -> list[fx.Node]:
        """The tensors of the argument, those inside a tuple of indices included."""
        found: list[fx.Node] = []
        fx.map_arg(argument(node, self.position, self.name), found.append)
        return [n for n in found if tensor_value(n) is not None]


def guard_for(node: fx.Node) -> Guard | None:
    """What makes a partial call total, or None when nothing known does."""
    name = (op_name(node) or "").rstrip("_")
    name = {"__getitem": "getitem", "__setitem": "setitem"}.get(name, name)
    make = _GUARDS.get(name)
    guard = None if make is None else make(node)
    if guard is None:
        return None
    operands = guard.operands(node)
    return guard if operands and all(_replaceable(n, guard.fill) for n in operands) else None


def _replaceable(node: fx.Node, fill: float | str) -> bool:
    value = tensor_value(node)
    if value is None or value.is_inference():
        return False
    if not is_plain_fake(value) and not (fill == 0 and is_transformed(value)):
        return False
    if fill == IDENTITY:
        return value.dim() >= 2 and value.dtype.is_floating_point
    if isinstance(fill, float):
        return value.dtype.is_floating_point
    return not (value.dtype.is_floating_point or value.dtype.is_complex)


def _index(position: int, name: str = "index") -> Callable[[fx.Node], Guard | None]:
    """An index into the first argument."""

    def make(node: fx.Node) -> Guard | None:
        return Guard(position, name, 0) if is_nonempty(argument(node, 0, "input")) else None

    return make


def _items(node: fx.Node) -> Guard | None:
    """``x[…]`` and ``x[…] = …``: index tensors of integers only."""
    index = argument(node, 1, "indices")
    parts = index if isinstance(index, (tuple, list)) else (index,)
    if any(isinstance(part, (tuple, list)) for part in parts):
        return None  # a list of numbers: out of range for every input, or for none
    held = [value for value in map(tensor_value, parts) if value is not None]
    if any(value.dtype in (torch.bool, torch.uint8) for value in held):
        return None  # a mask: the size of the result depends on it
    return _index(1, "indices")(node)


def _embedding(node: fx.Node) -> Guard | None:
    functional = node.target is torch.nn.functional.embedding
    table = argument(node, 1 if functional else 0, "weight")
    limited = functional and argument(node, 3, "max_norm") is not None  # writes the table
    if limited or not is_nonempty(table):
        return None
    return Guard(0, "input", 0) if functional else Guard(1, "indices", 0)


def _one_hot(node: fx.Node) -> Guard | None:
    classes = argument(node, 1, "num_classes", -1)
    return Guard(0, "self", 0) if isinstance(classes, int) and classes > 0 else None


def _square(position: int = 0, name: str = "A") -> Callable[[fx.Node], Guard | None]:
    """A matrix that must be regular, positive definite or let an iteration converge."""

    def make(node: fx.Node) -> Guard | None:
        value = tensor_value(argument(node, position, name))
        if value is None or value.dim() < 2:
            return None
        size: Any = value.shape[-1]
        square = isinstance(size, int) and size == value.shape[-2]
        return Guard(position, name, IDENTITY) if square else None

    return make


def _always(guard: Guard) -> Callable[[fx.Node], Guard | None]:
    return lambda node: guard


_GUARDS: dict[str, Callable[[fx.Node], Guard | None]] = {
    name: make
    for names, make in (
        ("embedding", _embedding),
        ("gather index_select scatter scatter_add scatter_reduce", _index(2)),
        ("index_add index_copy index_fill", _index(2)),
        ("take", _index(1)),
        ("take_along_dim", _index(1, "indices")),
        ("index index_put getitem setitem", _items),
        ("one_hot", _one_hot),
        # Class numbers of a loss; probabilities cannot be out of range.
        ("cross_entropy nll_loss", _index(1, "target")),
        ("floor_divide remainder fmod div", _always(Guard(1, "other", 1))),
        ("cholesky inverse", _square(0, "input")),
        ("linalg_cholesky linalg_eigh linalg_inv linalg_solve", _square()),
        ("binary_cross_entropy", _always(Guard(0, "input", 0.5))),
    )
    for name in names.split()
}
