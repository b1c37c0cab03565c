"""Independent element-wise computations of an ATen graph, as members of few programs.

A *member* is a result that something else than an element-wise call reads, with all that it is
computed from element by element; what several results are computed from is computed for each. Its
operands come from outside the graph or from calls that Inductor makes as they are, and it goes to
such calls or out of the graph: so Inductor would spend a launch on it, and nothing it could have
been fused with is left behind.

Members no one of which is computed from another are put together: those of one *stage*, the
longest way from the graph's inputs, counted in members.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from fusepass.graph.canonical import op_name, tensor_value
from fusepass.graph.effects import written_nodes
from fusepass.graph.epilogue import Epilogue, Operand, Output, Step
from fusepass.graph.epilogue_of_aten import FLOATS, NoRegion, calls_of
from fusepass.graph.generated_code import feeds_generated_code
from fusepass.graph.horizontal import Program
from fusepass.graph.library_calls import LIBRARY_CALLS, VIEWS

FEWEST = 8  # members that are worth a kernel of their own
_MOST_ELEMENTS = 1 << 23  # of one; a launch is nothing beside the time of a larger one
_MOST_STEPS, _MOST_OPERANDS = 32, 8


@dataclass(frozen=True)
class Member:
    """A result and how it is computed.

    Attributes:
        root: the node that computes it.
        body: the computation.
        operands: nodes, in the body's order.
    """

    root: fx.Node
    body: Epilogue
    operands: tuple[fx.Node, ...]


def groups_of(graph: fx.Graph, most_bytes: float = math.inf) -> list[list[Member]]:
    """Members that can be computed at once, at least :data:`FEWEST` of them in each group.

    Args:
        graph: of ATen calls.
        most_bytes: what a group may hold longer than it would be held otherwise. Its results are
            there from the beginning, also those that are read last, and its operands to its end.
    """
    members = {one.root: one for one in _members(graph)}
    if len(members) < FEWEST:
        return []
    stages: dict[fx.Node, int] = {}
    grouped: dict[Any, list[Member]] = defaultdict(list)
    for node in graph.nodes:
        before = max((stages[one] for one in node.all_input_nodes), default=0)
        stages[node] = before + (node in members)
        if node in members:
            grouped[stages[node], node.meta["val"].device].append(members[node])
    bounded = [_bounded(group, most_bytes) for group in grouped.values()]
    return [group for group in bounded if len(group) >= FEWEST]


def _bounded(group: list[Member], most_bytes: float) -> list[Member]:
    """Without the members that hold most, if all of them hold too much."""
    held = {one.root: _held_longer(one) for one in group}
    left = set()
    for root in sorted(held, key=held.__getitem__, reverse=True):
        if sum(held.values()) <= most_bytes:
            break
        del held[root]
        left.add(root)
    return [one for one in group if one.root not in left]


def _held_longer(one: Member) -> int:
    """Bytes that are there for longer if a member is computed with others.

    Its result, unless it leaves the graph, and what calls of the graph have made for it.
    """
    kept = [] if any(user.op == "output" for user in one.root.users) else [one.root]
    kept += [node for node in one.operands if _through_views(node).op == "call_function"]
    return sum(node.meta["val"].nbytes for node in kept)


def _through_views(node: fx.Node) -> fx.Node:
    while op_name(node) in VIEWS:
        node = node.all_input_nodes[0]
    return node


def program_of(group: list[Member]) -> Program:
    """The program that computes a group, in its order."""
    bodies = list(dict.fromkeys(one.body for one in group))
    return Program(tuple(bodies), tuple(bodies.index(one.body) for one in group))


def _members(graph: fx.Graph) -> Iterator[Member]:
    for node in graph.nodes:
        if written_nodes(node):
            return  # what follows may read something else than before
        value = _dense(node)
        if value is None or calls_of(node) is None or value.numel() > _MOST_ELEMENTS:
            continue
        outside = [user for user in node.users if calls_of(user) is None]
        if not outside or feeds_generated_code(node) or any(map(_writes, outside)):
            continue
        try:
            yield _member(node)
        except NoRegion:
            continue


def _writes(user: fx.Node) -> bool:
    """Whether a result goes into a write, which Inductor makes part of the kernel."""
    return (op_name(user) or "").endswith("_")


def _dense(node: fx.Node) -> Tensor | None:
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


def _member(root: fx.Node) -> Member:
    """The member with that result.

    Raises:
        NoRegion: it is none.
    """
    whole = root.meta["val"]
    operands: list[fx.Node] = []
    kinds: list[Operand] = []
    steps: list[tuple[str, tuple[Any, ...]]] = []
    known: dict[fx.Node, Any] = {}

    def value(arg: Any) -> Any:
        """Where a step finds an argument: a number, or one of operands and steps."""
        if not isinstance(arg, fx.Node):
            return arg
        if arg not in known:
            known[arg] = computed(arg)
        return known[arg]

    def emit(op: str, *args: Any) -> tuple[str, int]:
        steps.append((op, tuple(map(value, args))))
        if len(steps) > _MOST_STEPS:
            raise NoRegion("it has too many operations")
        return "step", len(steps) - 1

    def computed(node: fx.Node) -> Any:
        write = calls_of(node)
        own = _dense(node)
        if write is not None and own is not None and (_lies_as(own, whole) or _small(own, whole)):
            return value_of(write(emit, node))
        kinds.append(Operand(_kind(node, whole), str(node.meta["val"].dtype)[6:]))
        if len(kinds) > _MOST_OPERANDS or not _comes_from_outside(node):
            raise NoRegion("what it is computed from could be computed in its kernel")
        operands.append(node)
        return "operand", len(operands) - 1

    def value_of(made: Any) -> Any:
        return value(made) if isinstance(made, fx.Node) else made

    write = calls_of(root)
    if write is None:
        raise NoRegion("not element-wise")
    last = value_of(write(emit, root))
    if not isinstance(last, tuple) or "full" not in {kind.kind for kind in kinds}:
        raise NoRegion("nothing of its size is read")

    def named(arg: Any) -> Any:
        if not isinstance(arg, tuple):
            return arg
        return f"%{arg[1] + (len(operands) if arg[0] == 'step' else 0)}"

    written = tuple(Step(op, tuple(map(named, args))) for op, args in steps)
    output = Output(named(last), str(whole.dtype)[6:])
    return Member(root, Epilogue(0, tuple(kinds), written, (output,)), tuple(operands))


def _lies_as(value: Tensor, whole: Tensor) -> bool:
    return value.shape == whole.shape and value.stride() == whole.stride()


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
    value = _dense(node)
    if value is not None and value.device != whole.device:
        raise NoRegion("an operand is on another device")
    if value is not None and _lies_as(value, whole):
        return "full"
    if value is not None and value.numel() == 1:
        return "scalar"
    if value is not None and _is_column(value, whole):
        return "column"
    raise NoRegion("an operand lies otherwise than the result")


def _comes_from_outside(node: fx.Node) -> bool:
    """Whether nothing that Inductor generates computes a node."""
    node = _through_views(node)
    return node.op in ("placeholder", "get_attr") or op_name(node) in LIBRARY_CALLS
