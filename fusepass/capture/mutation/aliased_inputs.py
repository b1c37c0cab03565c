"""Find inputs of a graph that share memory which the graph writes.

What is captured reads an older tensor where the program does, and writes it once, where the arms
meet; AOTAutograd puts off what is written, too, and replays views of a tensor on another one. Both
are right only if no other input is in the same place. So such a graph is run op by op, and a branch
that writes there is kept. Which inputs share is asked again before each call: Dynamo's own guards
do not look.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusepass.capture.frame_state import Frame
from fusepass.capture.nodes.select_node import BRANCH, WRITTEN
from fusepass.capture.restarts import restart_plain, restart_without
from fusepass.graph.dataflow.effects import REPLACES_MEMORY
from fusepass.graph.dataflow.memory import memories
from fusepass.graph.dataflow.memory_overlap import OverlapCheck, has_no_internal_overlap
from fusepass.graph.dataflow.writes import memory_written, replaced_memory_reason
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.report.decision import Reason
from fusepass.rewrite.apply.graph_rule_driver import innermost_first
from fusepass.torch_private.dynamo.frame_end import Given, tensors_given, written_only_as_data
from fusepass.torch_private.dynamo.guards import GuardOnTensors, guard_on_tensors

# More tensors of modules and optimizers than these are not asked about among themselves in later
# calls where nothing is captured: that takes about 0.2 µs for each of them in each call.
_HELD = 64
_NAMED = 8  # in the reason of a recompilation
_WHOLE_STORAGE = REPLACES_MEMORY | {"as_strided", "as_strided_", "resize_", "resize_as_"}


@dataclass(frozen=True)
class SharedMemory:
    """The memory that inputs share and a graph writes.

    Attributes:
        names: of the inputs, as the program has them.
        keys: the memories, as the graph knows them.
        unseen: whether the graph takes one memory for several.
    """

    names: tuple[str, ...]
    keys: frozenset[int]
    unseen: bool

    @property
    def text(self) -> str:
        """For the report."""
        return f"{' and '.join(self.names)} share memory that it writes"


@dataclass(frozen=True)
class _OverlapQuery:
    """The question which inputs overlap, those that are written first; it holds none of them.

    Attributes:
        written: how many are written.
        whole: whether the graph may reach all of the storage behind an input.
        varies: whether sizes may be others in a later call.
    """

    written: int
    whole: bool
    varies: bool

    def sharing(self, positions: list[int], values: list[torch.Tensor]) -> OverlapCheck:
        written = sum(position < self.written for position in positions)
        return OverlapCheck(values, written, whole=self.whole, varies=self.varies)

    def begin(self, positions: list[int], values: list[torch.Tensor]) -> Callable[..., bool]:
        return self.sharing(positions, values).holds


def _inputs_to_check(gm: fx.GraphModule) -> tuple[list[Given], _OverlapQuery]:
    """The inputs that are asked about, and what."""
    keys = memory_written(gm)
    given = tensors_given(gm.graph) if keys else []
    in_written = [not keys.isdisjoint(memories([one.node])) for one in given]
    written = [one for one, is_in in zip(given, in_written, strict=True) if is_in]
    others = [one for one, is_in in zip(given, in_written, strict=True) if not is_in]
    nodes = [node for part in innermost_first(gm) for node in part.graph.nodes]
    question = _OverlapQuery(
        len(written),
        whole=any(op_name(node) in _WHOLE_STORAGE for node in nodes),
        varies=any(_varies(one.node) for one in (*written, *others)),
    )
    return [*written, *others], question


def _varies(node: fx.Node) -> bool:
    value = tensor_value(node)
    sizes = () if value is None else (*value.shape, *value.stride())
    return not all(isinstance(size, int) for size in sizes)


def _asked_again(given: list[Given], question: _OverlapQuery) -> list[Given]:
    """The inputs that later calls ask about where nothing is captured, and nothing shares."""
    written = given[: question.written]
    if sum(one.held for one in given) <= _HELD or not all(one.held for one in written):
        return given
    return written + [one for one in given[question.written :] if not one.held]


def _shared_inputs(
    given: list[Given], question: _OverlapQuery, output_graph: Any, *, captures: bool
) -> SharedMemory | None:
    """Find inputs that share memory a complete graph writes; later calls are asked the same."""
    if not question.written or len(given) < 2:
        return None
    pairs = question.sharing([*range(len(given))], [one.value for one in given]).pairs
    asked = given if captures or pairs else _asked_again(given, question)
    if len(asked) > 1:
        listed = ", ".join([*(one.name for one in asked[:_NAMED]), "…"][: len(asked)])
        text = f"which of {listed} share memory is as when it was compiled"
        guard = GuardOnTensors([one.source for one in asked], question.begin, text)
        guard_on_tensors(output_graph, "fusepass_sharing", guard)
    if not pairs:
        return None
    keys = [[set(memories([given[at].node])) for at in pair] for pair in pairs]
    names = tuple(given[at].name for at in sorted({at for pair in pairs for at in pair}))
    known = frozenset(key for pair in keys for one in pair for key in one)
    return SharedMemory(names, known, unseen=any(one != other for one, other in keys))


def settle_sharing(gm: fx.GraphModule, frame: Frame, output_graph: Any) -> str | None:
    """Keep what may not be captured where inputs share memory that a complete graph writes.

    Returns:
        Why the graph is to be run as it is written, op by op, or None.
    """
    given, question = _inputs_to_check(gm)
    shared = _shared_inputs(given, question, output_graph, captures=frame.captures)
    if shared is None:
        return _unwritable_reason(given[: question.written]) or replaced_memory_reason(gm.graph)
    if frame.plain:
        return shared.text
    if shared.unseen and frame.decisions:
        restart_plain(frame, Reason.ALIAS, f"the graph cannot hold it: {shared.text}")
    text = f"an arm writes memory that inputs share ({' and '.join(shared.names)})"
    branches = (node for node in gm.graph.nodes if BRANCH in node.meta)
    written = {n.meta[BRANCH].site: memories(written_back(n)) for n in branches}
    sites = [site for site, keys in written.items() if not shared.keys.isdisjoint(keys)]
    restart_without(frame, dict.fromkeys(sites, (Reason.ALIAS, text)))
    return shared.text


def _unwritable_reason(written: list[Given]) -> str | None:
    """Why AOTAutograd, which puts off what is written, may not write an input, or None."""
    for one in written:
        if not has_no_internal_overlap(one.value):
            return f"elements of {one.name}, which it writes, share memory"
        if written_only_as_data(one.value):
            return f"it writes {one.name}, a view that autograd lets be written as data only"
    return None


def written_back(branch: fx.Node) -> list[fx.Node]:
    """The tensors that the results of a branch are written into where its arms meet."""
    if WRITTEN not in branch.meta:  # it stands for a number that the arms leave
        return []
    results = [n for n in branch.users if n.args[1:] and n.args[1] >= branch.meta[WRITTEN]]
    writes = [user for result in results for user in result.users if op_name(user) == "copy_"]
    return [w for node in writes for w in node.args[:1] if isinstance(w, fx.Node)]
