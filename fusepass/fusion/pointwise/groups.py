"""Which pointwise computations of an ATen graph are worth computing together.

A member is worth it if Inductor would spend a launch on it, and nothing it could have been fused
with is left behind: its results are read by calls that Inductor makes as they are, leave the graph
or are what an input of it is overwritten with, and every pointwise call that reads them is
computed by members alone.

Members whose results are read are put together if no one of them is computed from another: those
of one *level*, the longest way from the graph's inputs, counted in members. Members that overwrite
inputs come last, all at once. One of them may read what it overwrites itself, and nothing that
another one does: members that do become one, which reads everything before it writes.

Members that read one tensor, each the same of its elements, are one kernel of Inductor's already
(for each 64 of them), which reads it once: they count as one, and where each of them would read
much again they are left to it.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from networkx.utils import UnionFind
from torch import Tensor, fx

from fusepass.fusion import extern_calls
from fusepass.fusion.aten_to_epilogue import FLOATS, NoRegion, calls_of
from fusepass.fusion.extern_calls import LIBRARY_CALLS, VIEWS, feeds_generated_code
from fusepass.fusion.kernel_ir.epilogue import Epilogue, EpilogueOperand, EpilogueStep, Output
from fusepass.fusion.kernel_ir.pointwise_program import PointwiseProgram
from fusepass.graph.dataflow.effects import written_nodes
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.torch_private.fx.graphs import size_hint

# --- Independent pointwise computations of an ATen graph, as members of programs ------------------
# A *member* computes results that something else than a pointwise call reads, from what comes
# from outside the graph or from calls that Inductor makes as they are. What several members need is
# computed by each.

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
            and (have_same_layout(own, whole) or own.numel() == 1 or _is_column(own, whole))
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


without_views = functools.partial(extern_calls.without_views, views=VIEWS)


def _is_not_generated(node: fx.Node) -> bool:
    """Whether nothing that Inductor generates computes a node."""
    node = without_views(node)
    return node.op in ("placeholder", "get_attr") or op_name(node) in LIBRARY_CALLS


MIN_MEMBERS = 8  # members that are worth a kernel of their own
_MOST_ELEMENTS = 1 << 23  # of one; a launch is nothing beside the time of a larger one
_MOST_READ_AGAIN = 4 << 20  # bytes, mostly from L2, in about the time of a launch that is saved

Copies = Mapping[fx.Node, fx.Node]
"""By the node of a result the ``copy_`` that overwrites an input with it."""


@dataclass(frozen=True)
class MemberGroups:
    """What can be computed together.

    Attributes:
        read: groups of members whose results are read.
        overwriting: members that overwrite inputs.
        copies: what does that so far.
    """

    read: list[list[Member]]
    overwriting: list[Member]
    copies: Copies

    def where(self, wanted: Callable[[list[Member]], bool]) -> MemberGroups:
        """Those of the groups that are wanted."""
        read = [group for group in self.read if wanted(group)]
        last = self.overwriting
        return replace(self, read=read, overwriting=last if last and wanted(last) else [])

    @property
    def all(self) -> list[list[Member]]:
        """Every group."""
        return [*self.read, *([self.overwriting] if self.overwriting else [])]


def groups_of(graph: fx.Graph, most_bytes: float = math.inf) -> MemberGroups:
    """Members that can be computed at once, at least :data:`MIN_MEMBERS` of them in each group.

    A group holds at most ``most_bytes`` longer than they would be held otherwise: its results from
    the beginning, its operands to its end.
    """
    copies = _copies(graph)
    found = _candidates(graph, copies)
    while True:
        members = _without_fusible_neighbours(graph, found, copies)
        read = _by_level(graph, members, copies, most_bytes)
        last = [one for root, one in members.items() if root in copies]
        taken = {root for group in [*read, last] for one in group for root in one.roots}
        gone = _dead_calls(graph, taken)
        impossible = {
            root
            for one in last
            for root in one.roots
            if not _reads_happen_before(copy_target(copies[root]), gone, copies)
        }
        overwriting = _join_overwriting(last, copies)
        if isinstance(overwriting, set):
            impossible |= overwriting
        elif not impossible:
            break
        found = {root: one for root, one in found.items() if root not in impossible}
    devices = {one.roots[0].meta["val"].device for one in overwriting}
    enough = len(_group_by_fusion(overwriting)) >= MIN_MEMBERS and len(devices) == 1
    return MemberGroups(read, overwriting if enough else [], copies)


def _by_level(
    graph: fx.Graph, members: Mapping[fx.Node, Member], copies: Copies, most_bytes: float
) -> list[list[Member]]:
    """Groups of members whose results are read."""
    grouped: dict[Any, list[Member]] = defaultdict(list)
    levels = _levels(graph, members)
    for root, one in members.items():
        if root not in copies:
            grouped[levels[root], root.meta["val"].device].append(one)
    apart = [
        [
            one
            for some in _group_by_fusion(group)
            if _read_again(some) <= _MOST_READ_AGAIN
            for one in some
        ]
        for group in grouped.values()
    ]
    bounded = [_drop_largest(group, most_bytes) for group in apart]
    return [group for group in bounded if len(_group_by_fusion(group)) >= MIN_MEMBERS]


def _group_by_fusion(group: Sequence[Member]) -> list[list[Member]]:
    """Members apart, those together that Inductor computes in one kernel for what they read."""
    readers: dict[Any, int] = {}
    pairs = [(readers.setdefault(key, i), i) for i, one in enumerate(group) for key in _reads(one)]
    return [[group[i] for i in part] for part in _components(len(group), pairs)]


def _reads(one: Member) -> dict[tuple[fx.Node, int, int], int]:
    """Bytes that a member reads of tensors, by what it would share with others that read them."""
    found = {}
    for node, operand in zip(one.operands, one.body.operands, strict=True):
        value = node.meta["val"]
        if operand.kind != "scalar":
            both = value.numel(), one.roots[0].meta["val"].numel()
            read, made = (size_hint(each) or 0 for each in both)
            found[without_views(node), read, made] = read * value.dtype.itemsize
    return found


def _read_again(sharing: Sequence[Member]) -> int:
    """Bytes that members read of tensors which others of them have read."""
    every = [_reads(one) for one in sharing]
    once = {key: size for one in every for key, size in one.items()}
    return sum(size for one in every for size in one.values()) - sum(once.values())


def _components(count: int, pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The numbers up to a count, those together that pairs join, directly or not."""
    parts = UnionFind(range(count))
    for pair in pairs:
        parts.union(*pair)
    made: dict[int, list[int]] = defaultdict(list)
    for i in range(count):
        made[parts[i]].append(i)
    return list(made.values())


def _copies(graph: fx.Graph) -> Copies:
    """Copies of results into inputs, if the graph writes nothing else, and these at its end."""
    made: dict[fx.Node, fx.Node] = {}
    begun, seen = False, set()
    for node in graph.nodes:
        if node.op == "output":
            break
        into = node.args[0] if node.args else None
        if op_name(node) != "copy_" or not isinstance(into, fx.Node) or into.op != "placeholder":
            if begun or written_nodes(node):
                return {}
            continue
        root = node.args[1] if len(node.args) == 2 else None  # else it may not wait
        if into in seen or any(user.op != "output" for user in node.users):
            return {}
        begun = True
        seen.add(into)
        if isinstance(root, fx.Node) and root not in made and _fits(root, into):
            made[root] = node
    return made


def _reads_happen_before(node: fx.Node, gone: Collection[fx.Node], copies: Copies) -> bool:
    """Whether what reads an input, or a view of it, is computed by members or called by then.

    What Inductor computes element by element happens where its result is needed, and what is read
    by a copy into another input, or leaves the graph, is read at the end.
    """
    todo, seen = [node], {node}
    while todo:
        read = todo.pop()
        for user in read.users:
            overwrites = op_name(user) == "copy_" and user.args[0] is read
            if user in gone or (overwrites and user.args[1] in copies):
                continue
            if not _may_be_view(user):
                if op_name(user) not in LIBRARY_CALLS:
                    return False
            elif user not in seen:
                seen.add(user)
                todo.append(user)
    return True


def _may_be_view(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return False
    aliases = any(one.alias_info is not None for one in schema.returns)
    return aliases or op_name(node) in ("reshape", "_unsafe_view", "contiguous", "expand", "to")


def copy_target(copy: fx.Node) -> fx.Node:
    """What a ``copy_`` overwrites."""
    into = copy.args[0]
    assert isinstance(into, fx.Node)
    return into


def _fits(root: fx.Node, into: fx.Node) -> bool:
    """Whether a result can be written where an input lies, as it is."""
    one, other = dense(root), dense(into)
    if one is None or other is None:
        return False
    return have_same_layout(one, other) and one.dtype == other.dtype and one.device == other.device


def _candidates(graph: fx.Graph, copies: Copies) -> dict[fx.Node, Member]:
    """By its result what may be a member, if all around it is computed by members, too."""
    found: dict[fx.Node, Member] = {}
    for node in graph.nodes:
        if written_nodes(node):
            break  # what follows may read something else than before
        value = dense(node)
        if value is None or calls_of(node) is None or value.numel() > _MOST_ELEMENTS:
            continue
        outside = [user for user in node.users if calls_of(user) is None]
        written = [user for user in outside if (op_name(user) or "").endswith("_")]
        if not outside or (written and (node not in copies or len(outside) > 1)):
            continue  # a write that Inductor makes part of its kernel
        try:
            found[node] = member_of([node])
        except NoRegion:
            continue
    return found


def _without_fusible_neighbours(
    graph: fx.Graph, found: Mapping[fx.Node, Member], copies: Copies
) -> dict[fx.Node, Member]:
    """Those of the candidates that leave nothing behind which they could have been fused with."""
    left = dict(found)
    while True:
        gone = _dead_calls(graph, left)
        besides = gone | set(copies.values())
        kept = {
            root: one
            for root, one in left.items()
            if all(user in gone for user in root.users if calls_of(user) is not None)
            and not feeds_generated_code(root, besides)
        }
        if len(kept) == len(left):
            return kept
        left = kept


def _dead_calls(graph: fx.Graph, members: Collection[fx.Node]) -> set[fx.Node]:
    """The pointwise calls that nothing needs any more once members compute their results."""
    gone: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if calls_of(node) is not None and node.users:
            needed = (user for user in node.users if user not in gone)
            if all(calls_of(user) is None and node in members for user in needed):
                gone.add(node)
    return gone


def _levels(graph: fx.Graph, members: Collection[fx.Node]) -> dict[fx.Node, int]:
    """For each node on how many members, one after the other, its operands depend."""
    levels: dict[fx.Node, int] = {}
    for node in graph.nodes:
        reads = calls_of(node) is None  # and does not compute it once more
        before = (levels[one] + (reads and one in members) for one in node.all_input_nodes)
        levels[node] = max(before, default=0)
    return levels


def _join_overwriting(overwriting: list[Member], copies: Copies) -> list[Member] | set[fx.Node]:
    """Members that overwrite inputs, joined where one reads what another overwrites.

    Returns:
        They, or results that cannot be computed so.
    """
    owner: dict[Any, int] = {
        copy_target(copies[one.roots[0]]): i for i, one in enumerate(overwriting)
    }
    pairs = [
        (i, owner[without_views(node)])
        for i, one in enumerate(overwriting)
        for node in one.operands
        if without_views(node) in owner
    ]
    joined, impossible = [], set()
    for part in _components(len(overwriting), pairs):
        roots = [root for i in part for root in overwriting[i].roots]
        try:
            whole = roots[0].meta["val"]
            if not all(have_same_layout(root.meta["val"], whole) for root in roots):
                raise NoRegion("they lie differently")
            one = member_of(roots)
            kinds = zip(one.operands, one.body.operands, strict=True)
            if any(
                without_views(node) in owner and (node not in owner or operand.kind != "full")
                for node, operand in kinds
            ):
                raise NoRegion("what is overwritten is read otherwise than element by element")
            joined.append(one)
        except NoRegion:
            impossible |= set(roots)
    return impossible or joined


def _drop_largest(group: list[Member], most_bytes: float) -> list[Member]:
    """Without the members that hold most, if all of them hold too much."""
    held = {one.roots[0]: _bytes_held_longer(one) for one in group}
    left = set()
    for root in sorted(held, key=held.__getitem__, reverse=True):
        if sum(held.values()) <= most_bytes:
            break
        del held[root]
        left.add(root)
    return [one for one in group if one.roots[0] not in left]


def _bytes_held_longer(one: Member) -> int:
    """Bytes that are there for longer if a member is computed with others.

    Its results, unless they leave the graph, and what calls of the graph have made for it.
    """
    kept = [root for root in one.roots if all(user.op != "output" for user in root.users)]
    kept += [node for node in one.operands if without_views(node).op == "call_function"]
    return sum(node.meta["val"].nbytes for node in kept)
