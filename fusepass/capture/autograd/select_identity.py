"""Keep a branch if code could see that what is selected is another tensor than the arm left.

``w = self.weight if p else self.weight * 2``: in eager w may be the parameter itself, a leaf that
requires grad even where autograd is off; what is selected is neither. Whether w is such an object
is a question a program rarely asks; where it does, or could, the branch stays.

``if c: x = f(x)`` hands on *x itself* when ``c`` is false; a select hands on a fresh tensor.
Nobody can tell unless the two are both visible outside the graph, or one of them is written
afterwards. Storages that may be one in eager are put in one class; a class with a selected tensor
and a second visible storage, or with a later write, takes its branches back.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import networkx as nx
import torch
from torch import fx

from fusepass.capture.autograd.grad_in_one_arm import (
    ONE_ARM,
    choices_above,
    grad_choices,
)
from fusepass.capture.frame_state import frame_of
from fusepass.capture.mutation.shadow_rewriter import SHADOW_OF
from fusepass.capture.nodes.select_node import (
    BRANCH,
    HIDES_GRAD,
    WRITTEN,
    Branch,
    arm_of,
    branches_of,
    select,
    selects_of,
)
from fusepass.capture.restarts import Why, restart_without
from fusepass.graph.dataflow.effects import is_state_change, written_nodes
from fusepass.graph.dataflow.memory import memories
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.stack import node_of
from fusepass.torch_private.fx.graphs import storage_key

_MARKS = frozenset("requires_grad_ retain_grad register_hook backward is_inference".split())


def on_identity_query(translator: Any, tensor: Any, what: str) -> None:
    """Take back the branches that decide an attribute of a tracked tensor that the program reads.

    ``what`` is the attribute, ``__class__`` for the type.
    """
    frame = frame_of(translator.output)
    node = node_of(tensor) if frame is not None and frame.sites else None
    if frame is None or node is None:
        return
    text = f"an arm may hand on a tensor unchanged, and the program asks for its {what}"
    chosen = [s for s in frame.sites if s.select is not None]
    above = choices_above(node) if what != "__class__" else []
    graded = f"{ONE_ARM}, and the program asks for its {what} (allow_zero_grad permits it)"
    why = (Reason.NONE_GRAD, graded)
    restart_without(frame, {one.meta[BRANCH].site: why for one in above})
    sites = [s.branch.site for s in chosen if _depends_on_arm(s.select, node, what)]
    restart_without(frame, dict.fromkeys(sites, (Reason.ALIAS, text)))


def _depends_on_arm(chosen: fx.Node, node: fx.Node, what: str) -> bool:
    """Whether an attribute of a tensor depends on which arm of a select was taken."""
    keys = memories([node])
    arms: Any = chosen.args[1:]
    for position, key in _results(chosen):
        pair = [arm[position] for arm in arms]
        special = what != "requires_grad" and any(map(_is_special, pair))
        if key in keys and (special or _hides(chosen, position)):
            return True
    return False


def is_another_object(node: fx.Node) -> bool:
    """Whether the text of a selected tensor may differ from that of what the arm taken left."""
    return any(_depends_on_arm(each, node, "__class__") for each in selects_of(node.graph))


def hidden_grad_escapes(graph: fx.Graph) -> dict[int, Why]:
    """Sites whose result requires grad in eager for one outcome, where that could be seen.

    Without autograd a result of an operation never requires grad, but a parameter handed on does.
    It can be seen where it leaves the graph or autograd is switched on again.
    """
    lost: dict[int, Why] = {}
    with_autograd = grad_choices(graph)
    for node in graph.nodes:
        if HIDES_GRAD in node.meta and node not in with_autograd:
            keys = {key for position, key in _results(node) if _hides(node, position)}
            if _escapes(node, keys):
                text = (
                    "a result requires grad in one arm only, and leaves the code without autograd"
                )
                lost[node.meta[BRANCH].site] = (Reason.NONE_GRAD, text)
    return lost


def _escapes(chosen: fx.Node, keys: set[int]) -> bool:
    """Whether what lives in this memory goes anywhere but into operations without autograd."""
    after, enabled = False, False
    for node in chosen.graph.nodes:
        if node is chosen:
            after = True
            continue
        if after and is_state_change(node):
            enabled = op_name(node) != "_set_grad_enabled" or bool(node.args[0])
        if not after or keys.isdisjoint(memories(node.all_input_nodes)):
            continue
        if node.target is select or op_name(node) is None or op_name(node) in _MARKS or enabled:
            return True
    return False


def _results(chosen: fx.Node | None) -> Iterator[tuple[int, int]]:
    """Position and memory of each result of a select."""
    if chosen is not None:
        for position, value in enumerate(chosen.meta["example_value"]):
            yield position, storage_key(value)


def _hides(chosen: fx.Node, position: int) -> bool:
    return position in chosen.meta.get(HIDES_GRAD, ())


def _is_special(node: fx.Node) -> bool:
    """Whether a value of an arm may be a leaf of autograd, or a parameter."""
    value = tensor_value(node)
    if value is None or isinstance(value, torch.nn.Parameter):
        return True
    handed_on = node.op in ("placeholder", "get_attr") or node.target is select
    return value.requires_grad and (handed_on or value.is_leaf)


@dataclass(frozen=True)
class Aliases:
    """What shares memory in eager with a selected tensor of a complete graph.

    Attributes:
        visible: results that are, or are views of, a selected tensor, where what an arm handed on
            is visible outside under another name; each with the site.
        written: sites that must be taken back, because such memory is written later, and why.
    """

    visible: dict[fx.Node, int]
    written: dict[int, str]


def aliases_of_selected(graph: fx.Graph, allow_fresh_output: bool) -> Aliases:
    """Find what a selected tensor shares memory with in eager.

    ``allow_fresh_output``: an output may be fresh where eager's aliases another value.
    """
    selects = selects_of(graph)
    if not selects:
        return Aliases({}, {})
    branches = branches_of(selects)
    owners: dict[int, set[fx.Node]] = {}
    for node in graph.nodes:
        for key in memories([node]):
            owners.setdefault(key, set()).add(node)
    shared = nx.Graph()  # storages that may be one in eager are connected
    selected: dict[int, int] = {}  # storage of a selected tensor -> site
    shadows = _shadows(graph)
    for node in selects:
        _join_aliases(node, branches, owners, shared, selected, shadows)
    classes = {key: found for found in nx.connected_components(shared) for key in found}
    inputs = set(memories(n for n in graph.nodes if n.op in ("placeholder", "get_attr")))
    results = graph.output_node().all_input_nodes
    outputs = set(memories(results))
    visible: dict[fx.Node, int] = {}
    for result in results if not allow_fresh_output else ():
        for key in memories([result]):
            others = (classes.get(key, {key}) & (inputs | outputs)) - {key}
            if key in selected and others:
                visible[result] = selected[key]
    return Aliases(visible, _later_writes(graph, selects, classes, selected))


VISIBLE = (
    "a tensor handed on unchanged by an arm is visible outside under another name "
    "(allow_fresh_output permits a fresh tensor)"
)


def _join_aliases(
    node: fx.Node,
    branches: dict[int, Branch],
    owners: dict[int, set[fx.Node]],
    shared: nx.Graph,
    selected: dict[int, int],
    shadows: dict[int, int],
) -> None:
    """Connect the storages that the results of a select share in eager."""
    site = node.meta[BRANCH].site
    results = node.meta["example_value"][: node.meta.get(WRITTEN)]
    keys = [storage_key(value) for value in results]
    for key in keys:
        selected[key] = site
    for arm, values in ((True, node.args[1]), (False, node.args[2])):
        first: dict[int, int] = {}
        for key, value in zip(keys, values, strict=False):  # type: ignore[arg-type]
            for held in memories([value]):
                source = shadows.get(held, held)  # in eager it is the older memory itself
                if source in first:
                    shared.add_edge(key, first[source])  # two results that are views of one tensor
                first[source] = key
                outside = any(arm_of(o, site, branches) is not arm for o in owners[source])
                if outside or source in selected:  # an inner branch may hand on what is outside
                    shared.add_edge(key, source)


def _shadows(graph: fx.Graph) -> dict[int, int]:
    """Memory of each shadow to the memory it stands in for, through the shadows of outer arms."""
    direct: dict[int, int] = {}
    for node in graph.nodes:
        older = node.meta.get(SHADOW_OF)
        if older is not None:
            direct.update(zip(memories([node]), memories([older]), strict=False))
    resolved = {}
    for shadow, older in direct.items():
        while older in direct:
            older = direct[older]  # noqa: PLW2901  # follow the chain to its end
        resolved[shadow] = older
    return resolved


def puts_back(node: fx.Node) -> bool:
    """Whether a selected tensor is copied into the very tensor that it may be: ``x.copy_(y)``.

    Where y is x that changes neither, so a fresh tensor in place of y stays what y is in eager.
    """
    if op_name(node) != "copy_" or node.kwargs or len(node.args) < 2:
        return False
    target, source = node.args[:2]
    if not (isinstance(target, fx.Node) and isinstance(source, fx.Node)):
        return False
    value = tensor_value(source)
    return value is not None and not value.requires_grad and _is_or_shares_nothing(source, target)


def _is_or_shares_nothing(source: fx.Node, target: fx.Node) -> bool:
    """Whether a selected value, where it shares memory with a tensor, is that tensor."""
    todo, seen = [source], {source}
    while todo:
        node = todo.pop()
        args: Any = node.args
        if node.target is operator.getitem and getattr(args[0], "target", None) is select:
            sides = [arm[args[1]] for arm in args[0].args[1:]]
            todo += [side for side in sides if side not in seen]
            seen.update(sides)
        elif node is not target and not set(memories([node])).isdisjoint(memories([target])):
            return False
    return True


def _later_writes(
    graph: fx.Graph, selects: list[fx.Node], classes: dict[int, set[int]], selected: dict[int, int]
) -> dict[int, str]:
    """Sites whose results, or predicates, share memory that is written after them."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    at = {n.meta[BRANCH].site: order[n] for n in selects}
    tested = {key: n.meta[BRANCH].site for n in selects for key in memories([n.args[0]])}
    lost: dict[int, str] = {}
    for node in graph.nodes:
        own = set(memories([node.args[1]])) if puts_back(node) else set()
        for key in memories(written_nodes(node)):
            for member, site in selected.items():
                same = classes.get(member, set())
                if order[node] > at[site] and len(same) > 1 and key in same and member not in own:
                    lost[site] = "a tensor handed on unchanged by an arm is written afterwards"
            if key in tested and order[node] > at[tested[key]]:
                lost[tested[key]] = "the tensor tested is written afterwards"
    return lost
