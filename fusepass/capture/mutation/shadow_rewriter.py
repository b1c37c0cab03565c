"""Rewrite one arm to read and write copies of memory, and views of those copies."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import fx

from fusepass.capture.nodes.select_node import ARM
from fusepass.capture.refusal import Refusal
from fusepass.graph.dataflow.effects import is_state_change, written_nodes
from fusepass.graph.dataflow.memory import memories, memory_of
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.errors.stop_reasons import error_in_short
from fusepass.torch_private.fx.graphs import call_target, known_equal

SHADOW_OF = "fusepass_shadow_of"  # meta key: the older tensor a node stands in for in its arm


class ShadowRewriter:
    """Rewires one arm to shadows: ``shadow`` for each memory it writes, then ``finish`` once.

    Attributes:
        older: nodes of the arm that are an older tensor itself after a write, to that tensor.
    """

    def __init__(
        self, graph: fx.Graph, nodes: list[fx.Node], arm: tuple[int, bool], fake_mode: Any
    ) -> None:
        self.graph, self.nodes, self.arm, self.fake_mode = graph, nodes, arm, fake_mode
        self.made: list[fx.Node] = []
        self.older: dict[fx.Node, fx.Node] = {}
        self.tracked: dict[int, set[bool]] = {}
        self.getters: dict[int, set[Any]] = {}

    def shadow(self, root: fx.Node, key: int, aliases: set[fx.Node]) -> fx.Node:
        """Copy ``root`` in front of the arm and let the arm use the copy and views of it."""
        twins: dict[fx.Node, fx.Node] = {}
        with self.graph.inserting_before(self.nodes[0]):
            twins[root] = self._describe(self.graph.call_method("clone", (root,)), root)
            for node in self.nodes:
                for operand in node.all_input_nodes:
                    if operand in aliases:
                        self._twin(operand, aliases, twins)
        for node in self.nodes:
            node.args = fx.map_arg(node.args, lambda n: twins.get(n, n))
            node.kwargs = fx.map_arg(node.kwargs, lambda n: twins.get(n, n))
        self.older.update({twin: alias for alias, twin in twins.items()})
        self._note_tracking(key)
        return twins[root]

    def _twin(
        self, alias: fx.Node, aliases: set[fx.Node], twins: dict[fx.Node, fx.Node]
    ) -> fx.Node:
        """The same view of the shadow as ``alias`` is of the root."""
        chain = [alias]
        while chain[-1] not in twins:
            sources = [n for n in chain[-1].all_input_nodes if n in aliases]
            if len(sources) != 1:
                raise Refusal(Reason.ALIAS, "an arm writes memory that is shared in an unusual way")
            chain += sources
        for view, source in reversed(list(itertools.pairwise(chain))):
            twins[view] = self._twin_of(view, source, twins[source])
        return twins[alias]

    def _twin_of(self, alias: fx.Node, source: fx.Node, twin: fx.Node) -> fx.Node:
        """The same view of a twin as ``alias`` is of its source."""
        if written_nodes(alias):  # the result of an earlier in-place call is its operand
            if not _same_geometry(alias, source):
                raise Refusal(Reason.ALIAS, "an arm writes memory that was given another shape")
            return twin
        copied = self.graph.node_copy(alias, lambda n: twin if n is source else n)
        return self._describe(copied, alias)

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
                    self.getters.setdefault(key, set()).add(_data_getter(written))

    def is_tracked(self, key: int) -> bool | None:
        """Whether autograd follows the writes of this arm into a memory; None if it only reads."""
        modes = self.tracked.get(key, set())
        if len(modes) > 1:
            raise Refusal(Reason.SIDE_EFFECT, "an arm writes a tensor with and without autograd")
        return modes.pop() if modes else None

    def data_getter(self, key: int) -> Any:
        """What gives the ``.data`` through which the arm writes a memory; None if it uses none."""
        getters = self.getters.get(key, {None})
        if len(getters) > 1:
            raise Refusal(Reason.SIDE_EFFECT, MIXED)
        return next(iter(getters))

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
            raise Refusal(
                Reason.ALIAS, f"an arm writes an older tensor ({error_in_short(error)})"
            ) from None
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
        return call_target(node.target, args, kwargs)

    def _settle(self, node: fx.Node) -> None:
        """An in-place call returns its operand: where that is an older tensor, so is the result."""
        for written in written_nodes(node):
            source = self.older.get(written)
            if source is not None and _is_itself(node, written):
                self.older[node] = source


MIXED = "the arms write a tensor with and without `.data`"


def _data_getter(node: fx.Node) -> Any:
    """The call that gives the ``.data`` of which a node is a view, or None."""
    seen: fx.Node | None = node
    while seen is not None:
        if op_name(seen) == "_get_data_attr":
            return seen.target
        key = memory_of(seen)
        seen = next((n for n in seen.all_input_nodes if memory_of(n) == key), None)
    return None


def _is_itself(result: fx.Node, operand: fx.Node) -> bool:
    """Whether an in-place call handed its operand back."""
    key = memory_of(result)
    return key is not None and key == memory_of(operand) and _same_geometry(result, operand)


def _same_geometry(a: fx.Node, b: fx.Node) -> bool:
    x, y = tensor_value(a), tensor_value(b)
    if x is None or y is None or x.dim() != y.dim():
        return False
    same_place = known_equal(x.storage_offset(), y.storage_offset())
    return same_place and equal_sizes(x.shape, y.shape) and equal_sizes(x.stride(), y.stride())


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
        and equal_sizes(old.shape, new.shape)
        and equal_sizes(old.stride(), new.stride())
    )


def equal_sizes(left: Any, right: Any) -> bool:
    """Whether two shapes or strides of one length are known to be equal."""
    return all(known_equal(a, b) for a, b in zip(left, right, strict=True))
