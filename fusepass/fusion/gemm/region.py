"""A GEMM with the pointwise work around it: as it was found, and while it is looked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from fusepass.fusion.aten_to_epilogue import FLOATS
from fusepass.fusion.kernel_ir.epilogue import Epilogue, EpilogueOperand, is_constant
from fusepass.graph.ops.op_names import argument, op_name, tensor_value

# --- Products of matrices in an ATen graph --------------------------------------------------------

_GEMMS = {"mm": 2, "addmm": 2, "bmm": 3, "baddbmm": 3}  # and dimensions of their results


def is_gemm(node: fx.Node) -> bool:
    """Whether a node multiplies two matrices of half precision or TF32, with a bias or without."""
    value, dims = tensor_value(node), _GEMMS.get(op_name(node) or "")
    if node.op != "call_function" or value is None or dims is None:
        return False
    if not str(node.target).endswith(".default"):
        return False  # with a dtype of its own for the result
    numbers = all(is_constant(one) for one in scales_of(node))
    kinds = FLOATS if tf32_allowed() else FLOATS[1:]
    return value.dim() == dims and value.dtype in kinds and numbers


def tf32_allowed() -> bool:
    """Whether the user lets products in single precision be TF32."""
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


def operands_of(gemm: fx.Node) -> tuple[fx.Node | None, fx.Node, fx.Node]:
    """Bias, x and weight of a GEMM, or of another product whose first arguments they are."""
    args: Any = gemm.args
    return args if len(args) == 3 else (None, *args[:2])


def scales_of(gemm: fx.Node) -> tuple[Any, Any]:
    """What a GEMM's product and its bias are multiplied by."""
    return gemm.kwargs.get("alpha", 1), gemm.kwargs.get("beta", 1)


# --- Reductions over all rows (a bias's gradient) or all columns of a region ----------------------
# A kernel that has a tile of the product reduces it where it lies and stores one partial result per
# tile; what is left to do is to reduce those. The value itself needs not be read again.

_BY = {"sum": "sum", "amax": "max"}


@dataclass(frozen=True)
class Reduction:
    """How a value is reduced: see :class:`fusepass.fusion.kernel_ir.epilogue.Output`."""

    over: str
    by: str


def reduction_of(node: fx.Node) -> Reduction | None:
    """How a node reduces its first argument, if it does so over all its rows or all its columns.

    A row is what lies along the last dimension.
    """
    name, value = op_name(node), tensor_value(node)
    source: Any = node.args[0] if node.args else None
    whole = tensor_value(source) if isinstance(source, fx.Node) else None
    if name not in _BY or value is None or whole is None or value.dtype not in FLOATS:
        return None
    if _BY[name] == "max" and value.dtype not in FLOATS[1:]:
        return None  # of what is not rounded yet: no element of the rounded ones may be equal
    given = argument(node, 1, "dim")
    count = whole.dim()
    dims = [given] if isinstance(given, int) else list(given or range(count))
    reduced = {dim % count for dim in dims} if count else set()
    if count >= 2 and reduced == set(range(count - 1)):
        return Reduction("rows", _BY[name])
    if count >= 2 and reduced == {count - 1}:
        return Reduction("columns", _BY[name])
    return None


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
