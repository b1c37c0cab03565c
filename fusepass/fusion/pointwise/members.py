"""Independent pointwise computations of an ATen graph, as members of programs.

A *member* computes results that something else than a pointwise call reads, from what comes
from outside the graph or from calls that Inductor makes as they are. What several members need is
computed by each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from fusepass.fusion.aten_to_epilogue import FLOATS, NoRegion, calls_of
from fusepass.fusion.extern_calls import LIBRARY_CALLS, VIEWS
from fusepass.fusion.kernel_ir.epilogue import Epilogue, EpilogueOperand, EpilogueStep, Output
from fusepass.fusion.kernel_ir.pointwise_program import PointwiseProgram
from fusepass.graph.ops.op_names import op_name, tensor_value

_MOST_STEPS, _MOST_OPERANDS = 32, 8
_MAX_DEPTH = 2 * _MOST_STEPS


@dataclass(frozen=True)
class Member:
    """Results of one shape and order in memory, and how they are computed.

    Attributes:
        roots: the nodes that compute them.
        body: the computation, with an output for each root.
        operands: nodes, in the body's order.
    """

    roots: tuple[fx.Node, ...]
    body: Epilogue
    operands: tuple[fx.Node, ...]


def program_of(group: Sequence[Member]) -> PointwiseProgram:
    """The program that computes a group, in its order."""
    bodies = list(dict.fromkeys(one.body for one in group))
    return PointwiseProgram(tuple(bodies), tuple(bodies.index(one.body) for one in group))


def dense(node: fx.Node) -> Tensor | None:
    """The fake result of a node, if it has one of known sizes that fills its memory."""
    value = tensor_value(node)
    if value is None or value.dtype not in (*FLOATS, torch.bool):
        return None
    if any(not isinstance(size, int) for size in (*value.shape, *value.stride())):
        return None
    dims = sorted(zip(value.stride(), value.shape, strict=True))
    extent = 1
    for stride, size in dims:
        if size != 1 and stride != extent:
            return None
        extent *= size
    return value if extent else None


def have_same_layout(value: Tensor, whole: Tensor) -> bool:
    """Whether two tensors have one shape and one order in memory."""
    return value.shape == whole.shape and value.stride() == whole.stride()


class _Computation:
    """How results that lie as ``whole`` does are computed, as far as it has been asked for.

    Attributes:
        operands: nodes that it reads.
        kinds: of the operands.
        steps: operations, each with its arguments: numbers, or places of operands and steps.
    """

    def __init__(self, whole: Tensor) -> None:
        self.whole = whole
        self.operands: list[fx.Node] = []
        self.kinds: list[EpilogueOperand] = []
        self.steps: list[tuple[str, tuple[Any, ...]]] = []
        self._known: dict[fx.Node, Any] = {}
        self._under_way = 0  # nodes; Python's own stack has an end

    def value(self, arg: Any) -> Any:
        """Where a step finds an argument: a number, or one of operands and steps."""
        if not isinstance(arg, fx.Node):
            return arg
        if arg not in self._known:
            self._known[arg] = self._compute(arg)
        return self._known[arg]

    def _emit(self, op: str, *args: Any) -> Any:
        given = tuple(map(self.value, args))
        if op == "where" and isinstance(given[0], bool):
            return given[1] if given[0] else given[2]
        if not any(isinstance(one, tuple) for one in given):
            raise NoRegion("a computation with numbers alone")
        self.steps.append((op, given))
        if len(self.steps) > _MOST_STEPS:
            raise NoRegion("it has too many operations")
        return "step", len(self.steps) - 1

    def _compute(self, node: fx.Node) -> Any:
        constant, whole = _constant(node), self.whole
        if constant is not None:
            return constant
        write = calls_of(node)
        own = dense(node)
        if (
            write is not None
            and own is not None
            and (have_same_layout(own, whole) or _small(own, whole))
        ):
            self._under_way += 1
            if self._under_way > _MAX_DEPTH:  # also of what will be no step
                raise NoRegion("it has too many operations")
            made = self.value(write(self._emit, node))
            self._under_way -= 1
            return made
        self.kinds.append(EpilogueOperand(_kind(node, whole), str(node.meta["val"].dtype)[6:]))
        if len(self.kinds) > _MOST_OPERANDS or not _is_not_generated(node):
            raise NoRegion("what it is computed from could be computed in its kernel")
        self.operands.append(node)
        return "operand", len(self.operands) - 1

    def epilogue_argument(self, arg: Any) -> Any:
        """An argument as an epilogue has it: what is counted, operands before steps, by name."""
        if not isinstance(arg, tuple):
            return arg
        return f"%{arg[1] + (len(self.operands) if arg[0] == 'step' else 0)}"


def member_of(roots: Sequence[fx.Node]) -> Member:
    """The member with the results of some nodes, which lie alike.

    Raises:
        NoRegion: there is none.
    """
    done = _Computation(roots[0].meta["val"])
    if any(calls_of(root) is None for root in roots):
        raise NoRegion("not pointwise")
    last = [done.value(root) for root in roots]
    if not all(isinstance(one, tuple) for one in last):
        raise NoRegion("a result is a number")
    if "full" not in {kind.kind for kind in done.kinds}:
        raise NoRegion("nothing of its size is read")
    steps = tuple(
        EpilogueStep(op, tuple(map(done.epilogue_argument, args))) for op, args in done.steps
    )
    outputs = [
        Output(done.epilogue_argument(one), str(root.meta["val"].dtype)[6:])
        for one, root in zip(last, roots, strict=True)
    ]
    body = Epilogue(0, tuple(done.kinds), steps, tuple(outputs))
    return Member(tuple(roots), body, tuple(done.operands))


def _constant(node: fx.Node) -> float | bool | None:
    """The number that a tensor is full of, as its dtype holds it."""
    value = tensor_value(node)
    if op_name(node) != "full" or value is None or value.dtype not in (*FLOATS, torch.bool):
        return None
    number = node.args[1]
    if not isinstance(number, (int, float)):
        return None
    made: float | bool = torch.tensor(number, dtype=value.dtype, device="cpu").item()
    return made


def _small(value: Tensor, whole: Tensor) -> bool:
    """Whether there is one number for each index of the slowest dimension, or one in all."""
    return value.numel() == 1 or _is_column(value, whole)


def _is_column(value: Tensor, whole: Tensor) -> bool:
    slowest = max(range(whole.dim()), key=lambda d: (whole.stride(d), whole.shape[d]), default=None)
    if slowest is None:
        return False
    wanted = [size if d == slowest else 1 for d, size in enumerate(whole.shape)]
    shape = [1] * (whole.dim() - value.dim()) + list(value.shape)
    return shape == wanted and math.prod(wanted) > 1


def _kind(node: fx.Node, whole: Tensor) -> str:
    value = dense(node)
    if value is not None and value.device != whole.device:
        raise NoRegion("an operand is on another device")
    if value is not None and have_same_layout(value, whole):
        return "full"
    if value is not None and value.numel() == 1:
        return "scalar"
    if value is not None and _is_column(value, whole):
        return "column"
    raise NoRegion("an operand lies otherwise than the result")


def without_views(node: fx.Node) -> fx.Node:
    """What a view is of, in the end."""
    while op_name(node) in VIEWS:
        node = node.all_input_nodes[0]
    return node


def _is_not_generated(node: fx.Node) -> bool:
    """Whether nothing that Inductor generates computes a node."""
    node = without_views(node)
    return node.op in ("placeholder", "get_attr") or op_name(node) in LIBRARY_CALLS
