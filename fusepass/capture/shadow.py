"""In-place writes of an arm into memory that existed before it, made into values to select between.

    if p: x.add_(1)      ->      s = x.clone(); s.add_(1); x.copy_(where(p, s, x))

Each arm that writes older memory gets a *shadow*, a copy it reads and writes instead; every older
view of that memory which the arm uses is made again as a view of the shadow. The arm is pure then,
and where the arms meet the contents they left are selected between and written back once, into the
memory itself: aliases, also those nobody has in sight here, see what they would have seen.
(Functionalization, as AOTAutograd does for whole graphs, for one arm; it removes the copies again.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from fusepass import torch_private
from fusepass.capture.refusal import Refusal
from fusepass.capture.select import ARM
from fusepass.graph.canonical import op_name, tensor_value
from fusepass.graph.effects import is_state_change, reshapes_its_operand, written_nodes
from fusepass.graph.memory import memories, memory_of
from fusepass.graph.saved import kept_for_backward
from fusepass.report.decision import Reason

SHADOW_OF = "fusepass_shadow_of"  # meta key: the older tensor a node stands in for in its arm


@dataclass
class Shadows:
    """What became of the writes of two arms.

    Attributes:
        finals: for each memory written, by its first node: what each arm left in it.
        older: nodes of an arm that are an older tensor itself after a write, to that tensor.
        tracked: roots whose writes autograd follows; the others are written back without it.
    """

    finals: dict[fx.Node, dict[bool, fx.Node]] = field(default_factory=dict)
    older: dict[fx.Node, fx.Node] = field(default_factory=dict)
    tracked: dict[fx.Node, bool] = field(default_factory=dict)

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
        made = _Shadowing(graph, arms[arm], (site, arm), fake_mode)
        for key in keys:
            root = _root(aliases[key], fake_mode)
            _check_earlier_uses(aliases[key], key, inside)
            final = made.shadow(root, key, set(aliases[key]))
            shadows.finals.setdefault(root, {True: root, False: root})[arm] = final
            tracked = made.is_tracked(key)
            if tracked is None:
                continue
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
    root = aliases[0]
    value = tensor_value(root)
    if value is None:
        raise Refusal(Reason.SIDE_EFFECT, "an arm writes one of several results of a call")
    if value.is_inference() and not torch.is_inference_mode_enabled():
        raise Refusal(Reason.SIDE_EFFECT, "an arm writes an inference tensor")
    with fake_mode, torch.no_grad():
        copy = value.clone()
    if copy.stride() != value.stride() and not _equal(copy.stride(), value.stride()):
        raise Refusal(
            Reason.STRIDE_MISMATCH, "an arm writes a tensor whose copy would have other strides"
        )
    return root


def _equal(left: Any, right: Any) -> bool:
    return all(torch_private.known_equal(a, b) for a, b in zip(left, right, strict=True))


def _check_earlier_uses(aliases: list[fx.Node], key: int, inside: set[fx.Node]) -> None:
    """What was saved for backward must not be written where eager would not have written it."""
    for node in dict.fromkeys(n for alias in aliases for n in (alias, *alias.users)):
        if node not in inside and _keeps(node, key):
            raise Refusal(Reason.SIDE_EFFECT, _SAVED.format(op_name(node)))


def _check_own_uses(nodes: list[fx.Node], key: int) -> None:
    """The same for what an arm saves and then writes: eager fails if it takes that arm."""
    last = max(i for i, node in enumerate(nodes) if key in memories(written_nodes(node)))
    for node in nodes[:last]:
        if _keeps(node, key):
            raise Refusal(Reason.SIDE_EFFECT, _SAVED.format(op_name(node)))


_SAVED = "an arm writes a tensor that {} may have saved for its backward"


def _keeps(node: fx.Node, key: int) -> bool:
    return any(key in memories([kept]) for kept in kept_for_backward(node))


class _Shadowing:
    """Rewires one arm to shadows."""

    def __init__(
        self, graph: fx.Graph, nodes: list[fx.Node], arm: tuple[int, bool], fake_mode: Any
    ) -> None:
        self.graph, self.nodes, self.arm, self.fake_mode = graph, nodes, arm, fake_mode
        self.made: list[fx.Node] = []
        self.older: dict[fx.Node, fx.Node] = {}
        self.tracked: dict[int, set[bool]] = {}

    def shadow(self, root: fx.Node, key: int, aliases: set[fx.Node]) -> fx.Node:
        """Copy ``root`` in front of the arm and let the arm use the copy and views of it."""
        twins: dict[fx.Node, fx.Node] = {}
        with self.graph.inserting_before(self.nodes[0]):
            twins[root] = self._describe(self.graph.call_method("clone", (root,)), root)
            for node in self.nodes:
                for operand in node.all_input_nodes:
                    if operand in aliases:
                        self._twin(operand, root, aliases, twins)
        for node in self.nodes:
            node.args = fx.map_arg(node.args, lambda n: twins.get(n, n))
            node.kwargs = fx.map_arg(node.kwargs, lambda n: twins.get(n, n))
        self.older.update({twin: alias for alias, twin in twins.items()})
        self._note_tracking(key)
        return twins[root]

    def _twin(
        self,
        alias: fx.Node,
        root: fx.Node,
        aliases: set[fx.Node],
        twins: dict[fx.Node, fx.Node],
    ) -> fx.Node:
        """The same view of the shadow as ``alias`` is of the root."""
        if alias in twins:
            return twins[alias]
        sources = [n for n in alias.all_input_nodes if n in aliases]
        if len(sources) != 1:
            raise Refusal(Reason.ALIAS, "an arm writes memory that is shared in an unusual way")
        source = self._twin(sources[0], root, aliases, twins)
        if written_nodes(alias):  # the result of an earlier in-place call is its operand
            if not _same_geometry(alias, sources[0]):
                raise Refusal(Reason.ALIAS, "an arm writes memory that was given another shape")
            twins[alias] = source
            return source
        copied = self.graph.node_copy(alias, lambda n: source if n is sources[0] else n)
        twins[alias] = self._describe(copied, alias)
        return copied

    def _describe(self, node: fx.Node, like: fx.Node) -> fx.Node:
        node.meta = {k: v for k, v in like.meta.items() if k in ("stack_trace", "nn_module_stack")}
        node.meta["example_value"] = like.meta["example_value"]
        node.meta[ARM] = self.arm
        node.meta[SHADOW_OF] = like
        self.made.append(node)
        return node

    def _note_tracking(self, key: int) -> None:
        enabled = torch.is_grad_enabled()
        for node in self.nodes:
            if getattr(node.target, "__name__", "") == "_set_grad_enabled":
                enabled = bool(node.args[0])
            for written in written_nodes(node):
                value = tensor_value(written)
                if key in memories([written]) and value is not None:
                    self.tracked.setdefault(key, set()).add(enabled and value.requires_grad)

    def is_tracked(self, key: int) -> bool | None:
        """Whether autograd follows the writes of this arm into a memory; None if it only reads."""
        modes = self.tracked.get(key, set())
        if len(modes) > 1:
            raise Refusal(Reason.SIDE_EFFECT, "an arm writes a tensor with and without autograd")
        return modes.pop() if modes else None

    def finish(self, keys: list[int]) -> list[fx.Node]:
        """Compute the fake values that now belong to the shadows; returns the nodes of the arm."""
        nodes = [*self.made, *self.nodes]
        env: dict[fx.Node, Any] = {}
        grad = torch.is_grad_enabled()
        try:
            with self.fake_mode:
                for node in nodes:
                    if is_state_change(node):
                        if getattr(node.target, "__name__", "") == "_set_grad_enabled":
                            torch.set_grad_enabled(bool(node.args[0]))
                        continue
                    affected = any(n in env for n in node.all_input_nodes)
                    if node in self.made or (
                        affected and not set(keys).isdisjoint(memories([node]))
                    ):
                        env[node] = self._again(node, env)
                    elif affected and written_nodes(node):
                        self._again(node, env)
        except (RuntimeError, TypeError, ValueError) as error:
            raise Refusal(Reason.ALIAS, f"an arm writes an older tensor ({error})") from None
        finally:
            torch.set_grad_enabled(grad)
        for node, value in env.items():
            if not _like(node.meta["example_value"], value):
                text = (
                    "a copy of what an arm writes has other strides, or follows autograd otherwise"
                )
                raise Refusal(Reason.STRIDE_MISMATCH, text)
        for node, value in env.items():
            node.meta["example_value"] = value
        for node in self.nodes:
            self._settle(node)
        return nodes

    def _again(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        def value(n: fx.Node) -> Any:
            return env[n] if n in env else n.meta.get("example_value")

        args, kwargs = fx.map_arg(node.args, value), fx.map_arg(node.kwargs, value)
        if callable(node.target):
            return node.target(*args, **kwargs)
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)

    def _settle(self, node: fx.Node) -> None:
        """An in-place call returns its operand: where that is an older tensor, so is the result."""
        for written in written_nodes(node):
            source = self.older.get(written)
            if source is not None and _is_itself(node, written):
                self.older[node] = source


def _is_itself(result: fx.Node, operand: fx.Node) -> bool:
    """Whether an in-place call handed its operand back."""
    key = memory_of(result)
    return key is not None and key == memory_of(operand) and _same_geometry(result, operand)


def _same_geometry(a: fx.Node, b: fx.Node) -> bool:
    x, y = tensor_value(a), tensor_value(b)
    if x is None or y is None or x.dim() != y.dim():
        return False
    same_place = torch_private.known_equal(x.storage_offset(), y.storage_offset())
    return same_place and _equal(x.shape, y.shape) and _equal(x.stride(), y.stride())


def _like(old: Any, new: Any) -> bool:
    """Whether a value computed on shadows has the metadata traced on the tensor itself.

    Without autograd a copy of a parameter does not require grad.
    """
    if isinstance(old, (tuple, list)):
        return len(old) == len(new) and all(map(_like, old, new))
    if not isinstance(old, torch.Tensor):
        return type(old) is type(new)
    return (
        old.dtype == new.dtype
        and old.dim() == new.dim()
        and (old.requires_grad == new.requires_grad or not torch.is_grad_enabled())
        and _equal(old.shape, new.shape)
        and _equal(old.stride(), new.stride())
    )
