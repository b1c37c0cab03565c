"""A GEMM with the pointwise work around it: as it was found, and while it is looked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from fusepass.fusion.gemm.reductions import Reduction
from fusepass.fusion.kernel_ir.epilogue import Epilogue, EpilogueOperand


@dataclass(frozen=True)
class OperandSlice:
    """What a region reads of a node: all, or some of its columns (of the last dimension).

    Attributes:
        node: the whole.
        start: the first column.
        width: how many; None for all of the node.
        step: from one to the next; 2 where the columns of two weights alternate.
    """

    node: fx.Node
    start: int = 0
    width: int | None = None
    step: int = 1

    @property
    def stop(self) -> int:
        """Behind the last column."""
        return self.start + (self.width or 0) * self.step - self.step + 1

    @property
    def value(self) -> Tensor:
        """The fake tensor of what is read."""
        whole: Tensor = self.node.meta["val"]
        if self.width is None:
            return whole
        return whole[..., self.start : self.stop : self.step]


@dataclass
class GemmRegion:
    """What one kernel could compute.

    Attributes:
        x: the (M, K) operand, or what it is a reshape of.
        weights: (K, N); one, or two of a pair.
        operands: what is read besides, in the epilogue's order.
        shapes: for each operand, what it is to be reshaped to; None if it stays.
        epilogue: of the products.
        outputs: for each of the epilogue's outputs, the nodes that hold it; of one that is reduced,
            the nodes that reduce it.
        nodes: everything the kernel takes the place of, in the order of the graph.
        pulled: what is computed in the kernel besides: read by pointwise calls only, so that no
            other kernel stores it; copies in single precision, whoever reads them; or the scaled x,
            of a region that scales its products.
        scaled: whether it scales its products' rows, first of all, by its first operand.
        moved: nodes that read outputs in front of the last of ``nodes``; they go behind the kernel.
        before: where the kernel goes: in front of this node, which follows the region.
    """

    x: fx.Node
    scaled: bool
    weights: tuple[OperandSlice, ...]
    operands: tuple[OperandSlice, ...]
    shapes: tuple[tuple[Any, ...] | None, ...]
    epilogue: Epilogue
    outputs: tuple[tuple[fx.Node, ...], ...]
    nodes: tuple[fx.Node, ...]
    pulled: tuple[fx.Node, ...]
    moved: tuple[fx.Node, ...]
    before: fx.Node


Value = tuple[str, int]
"""``("product", 0)``, ``("operand", 2)``, ``("step", 3)``."""


@dataclass
class RegionGrowth:
    """A region while it grows.

    Attributes:
        m: rows of the product; of all, if there are batches.
        n: its columns.
        device: where it is.
        dtype: of its operands.
        known: the value that each node of the region holds.
        pulled: likewise, of nodes that are computed again in the region.
        operands: what is read besides, and the shape it is read in.
        steps: operations, with values and numbers as arguments.
        reduced: nodes that reduce a value of the region, and how.
        spared: nodes in front of the products that nobody needs if all that read them are replaced.
        tainted: nodes that depend on the region and are not in it.
        depth: of the call that is being pulled in; 0 for one of the region.
    """

    m: Any
    n: Any
    device: torch.device
    dtype: torch.dtype
    known: dict[fx.Node, Value] = field(default_factory=dict)
    pulled: dict[fx.Node, Value] = field(default_factory=dict)
    operands: list[tuple[OperandSlice, EpilogueOperand, tuple[Any, ...] | None]] = field(
        default_factory=list
    )
    steps: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    reduced: dict[fx.Node, tuple[Value, Reduction]] = field(default_factory=dict)
    spared: tuple[fx.Node, ...] = ()
    tainted: set[fx.Node] = field(default_factory=set)
    depth: int = 0

    def mark(self) -> tuple[int, int, int]:
        """How far it has grown, for :meth:`roll_back`."""
        return len(self.operands), len(self.steps), len(self.pulled)

    def roll_back(self, mark: tuple[int, int, int]) -> None:
        """Take back what came after a mark."""
        del self.operands[mark[0] :], self.steps[mark[1] :]
        for node in list(self.pulled)[mark[2] :]:
            del self.pulled[node]
