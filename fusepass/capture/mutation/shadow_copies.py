"""Redirect in-place writes of an arm to copies, so that a select can choose the contents.

    if p: x.add_(1)      ->      s = x.clone(); s.add_(1); x.copy_(where(p, s, x))

Each arm that writes older memory gets a *shadow*, a copy that it reads and writes instead. Every
older view of that memory which the arm uses is made again as a view of the shadow, so the arm is
pure. At the join the contents are selected and written back once, into the memory itself, so all
aliases see the result. (This is functionalization, as AOTAutograd does it for whole graphs, for one
arm; AOTAutograd removes the copies again.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from fusepass.capture.mutation.saved_by_arms import sites_that_save
from fusepass.capture.mutation.shadow_rewriter import MIXED, ShadowRewriter, equal_sizes
from fusepass.capture.refusal import Refusal
from fusepass.graph.dataflow.effects import reshapes_its_operand, written_nodes
from fusepass.graph.dataflow.memory import memories
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.graph.safety.saved_for_backward import values_saved_for_backward
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.stack import proxy_of, record_grad_mode, wrap_call


@dataclass
class Shadows:
    """The results of redirecting the writes of two arms.

    Attributes:
        finals: for each memory written, by its first node: what each arm left in it.
        older: nodes of an arm that are an older tensor itself after a write, to that tensor.
        tracked: roots whose writes autograd follows; the others are written back without it.
        getters: for roots that are written through their ``.data``: what gives it.
    """

    finals: dict[fx.Node, dict[bool, fx.Node]] = field(default_factory=dict)
    older: dict[fx.Node, fx.Node] = field(default_factory=dict)
    tracked: dict[fx.Node, bool] = field(default_factory=dict)
    getters: dict[fx.Node, Any] = field(default_factory=dict)

    def settled(self, node: fx.Node) -> fx.Node:
        """The older tensor a node of an arm *is* (``y = x.add_(1)`` binds y to x), or the node."""
        return self.older.get(node, node)


def shadow_arms(
    graph: fx.Graph, arms: dict[bool, list[fx.Node]], site: int, fake_mode: Any
) -> Shadows:
    """Give each arm shadows of the older memory it writes; ``arms`` gains the nodes made.

    Raises:
        Refusal: a write that cannot be turned into a value to select.
    """
    shadows = Shadows()
    written = {arm: _older_memory_written(nodes) for arm, nodes in arms.items()}
    if not any(written.values()):
        return shadows
    for arm, keys in written.items():  # the write-back must not touch what the other one saves
        others = [key for key in written[not arm] if key not in keys]
        keys += [key for key in others if any(_keeps(node, key) for node in arms[arm])]
    inside = {node for nodes in arms.values() for node in nodes}
    aliases = _aliases(graph, inside, set().union(*written.values()))
    for arm, keys in written.items():
        made = ShadowRewriter(graph, arms[arm], (site, arm), fake_mode)
        for key in keys:
            root = _root(aliases[key], fake_mode)
            _check_earlier_uses(aliases[key], key, inside)
            final = made.shadow(root, key, set(aliases[key]))
            shadows.finals.setdefault(root, {True: root, False: root})[arm] = final
            tracked = made.is_tracked(key)
            if tracked is None:
                continue
            getter = made.data_getter(key)
            if shadows.getters.setdefault(root, getter) is not getter:
                raise Refusal(Reason.SIDE_EFFECT, MIXED)
            _check_own_uses(arms[arm], key)
            if shadows.tracked.setdefault(root, tracked) is not tracked:
                raise Refusal(
                    Reason.SIDE_EFFECT, "the arms write a tensor with and without autograd"
                )
        arms[arm][:] = made.finish(keys)
        shadows.older.update(made.older)
    return shadows


def _older_memory_written(nodes: list[fx.Node]) -> list[int]:
    """Memory, older than the arm, that its nodes write; in the order of the first writes."""
    inside = set(nodes)
    older = {key for node in nodes for key in memories(set(node.all_input_nodes) - inside)}
    found: dict[int, None] = {}
    for node in nodes:
        for written in written_nodes(node):
            keys = memories([written])
            if not keys and written not in inside:
                raise Refusal(
                    Reason.SIDE_EFFECT, f"{op_name(node)} writes memory that existed before the arm"
                )
            if older.isdisjoint(keys):
                continue
            if reshapes_its_operand(node):
                raise Refusal(
                    Reason.SIDE_EFFECT, f"{op_name(node)} changes the shape of an older tensor"
                )
            found.update((key, None) for key in keys if key in older)
    return list(found)


def _aliases(graph: fx.Graph, inside: set[fx.Node], wanted: set[int]) -> dict[int, list[fx.Node]]:
    """The nodes older than the arms that share each memory, in program order."""
    found: dict[int, list[fx.Node]] = {key: [] for key in wanted}
    for node in graph.nodes:
        if node not in inside:
            for key in wanted.intersection(memories([node])):
                found[key].append(node)
    return found


def _root(aliases: list[fx.Node], fake_mode: Any) -> fx.Node:
    """The tensor the others are views of: what a shadow copies and the write-back writes."""
    owners = [n for n in aliases if n.op in ("placeholder", "get_attr")]
    if len(owners) > 1:
        raise Refusal(Reason.ALIAS, "an arm writes memory that two inputs share")
    if not aliases:  # a node of one arm stands for it in the other
        raise Refusal(Reason.ALIAS, "an arm writes memory that the other arm made")
    root = aliases[0]
    value = tensor_value(root)
    if value is None:
        raise Refusal(Reason.SIDE_EFFECT, "an arm writes one of several results of a call")
    if value.is_inference() and not torch.is_inference_mode_enabled():
        raise Refusal(Reason.SIDE_EFFECT, "an arm writes an inference tensor")
    with fake_mode, torch.no_grad():
        copy = value.clone()
    if copy.stride() != value.stride() and not equal_sizes(copy.stride(), value.stride()):
        raise Refusal(
            Reason.STRIDE_MISMATCH, "an arm writes a tensor whose copy would have other strides"
        )
    return root


def _check_earlier_uses(aliases: list[fx.Node], key: int, inside: set[fx.Node]) -> None:
    """Refuse to write what was saved for backward where eager would not have written it."""
    uses = dict.fromkeys(n for alias in aliases for n in (alias, *alias.users))
    keeping = [node for node in uses if node not in inside and _keeps(node, key)]
    if keeping:
        text = _SAVED.format(op_name(keeping[0]))
        raise Refusal(Reason.SIDE_EFFECT, text, sites_that_save(keeping))


def _check_own_uses(nodes: list[fx.Node], key: int) -> None:
    """The same for what an arm saves and then writes: eager fails if it takes that arm."""
    last = max(i for i, node in enumerate(nodes) if key in memories(written_nodes(node)))
    for node in nodes[:last]:
        if _keeps(node, key):
            raise Refusal(Reason.SIDE_EFFECT, _SAVED.format(op_name(node)))


_SAVED = "an arm writes a tensor that {} may have saved for its backward"


def _keeps(node: fx.Node, key: int) -> bool:
    return any(key in memories([kept]) for kept in values_saved_for_backward(node))


def write_back(translator: Any, shadows: Shadows, contents: Iterable[Any]) -> None:
    """Record ``root.copy_(content)`` for each memory the arms wrote.

    Autograd follows the write where it followed those of the arms: a parameter that an arm updates
    under ``no_grad`` must not become part of the graph.

    Args:
        translator: Dynamo's translator, at the join.
        shadows: what the arms wrote.
        contents: the selected contents, as tracked tensors, in the order of ``shadows.finals``.
    """
    for root, content in zip(shadows.finals, contents, strict=True):
        value = tensor_value(root)
        wanted = shadows.tracked[root]
        switch = value is not None and _differs(value, content, wanted)
        if switch:
            record_grad_mode(translator, wanted)
        _copy(translator, root, content, shadows.getters[root])
        if switch:
            record_grad_mode(translator, not wanted)


def _differs(root: torch.Tensor, content: Any, wanted: bool) -> bool:
    grads = root.requires_grad or content.as_proxy().node.meta["example_value"].requires_grad
    return grads and torch.is_grad_enabled() is not wanted


def _copy(translator: Any, root: fx.Node, content: Any, getter: Any) -> None:
    """Record the write; ``getter`` gives the ``.data`` that the arms wrote through, if they did.

    Autograd's count of writes does not change then.
    """
    target = proxy_of(translator, root)
    if getter is not None:
        target = wrap_call(translator, "call_function", getter, (target,), {}).as_proxy()
    node = translator.output.create_proxy("call_method", "copy_", (target, content.as_proxy()), {})
    node.node.meta["example_value"] = target.node.meta["example_value"]
