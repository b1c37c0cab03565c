"""Find values among the outputs of a compiled graph, and compute messages from them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusepass.capture.nodes.select_node import select
from fusepass.torch_private.fx.graphs import call_target

NEAR = ["cpu", "meta"]  # kinds of devices whose tensors need not be copied to be shown


@dataclass(frozen=True)
class Values:
    """What a call of the compiled graph took and gave."""

    inputs: Sequence[Any]
    outputs: Sequence[Any]


@dataclass(frozen=True)
class OutputSlot:
    """Where a value is once the graph has run.

    Attributes:
        kind: ``input``, ``output`` or ``held``.
        position: of the input or output.
        index: of a number among those an output holds, or None for the output itself.
        value: of what the graph holds itself.
    """

    kind: str
    position: int = 0
    index: int | None = None
    value: Any = None

    def find(self, values: Values) -> Any:
        """The value."""
        if self.kind == "held":
            return self.value
        found = (values.inputs if self.kind == "input" else values.outputs)[self.position]
        return found if self.index is None else found[self.index]


@dataclass(frozen=True)
class Message:
    """What a message is made of.

    Attributes:
        graph: computes the operands of its recipe from ``sources``.
        sources: where the inputs of ``graph`` are.
        grad_enabled: grad mode in the program where the message stands.
        autocast: (device type, whether it is on, dtype) of autocast there.
    """

    graph: fx.Graph
    sources: tuple[OutputSlot, ...]
    grad_enabled: bool
    autocast: tuple[tuple[str, bool, Any], ...]

    def operands(self, values: Values) -> Any:
        """The operands, computed as eager would have."""
        return self._compute([source.find(values) for source in self.sources])

    @functools.cached_property
    def computes(self) -> bool:
        """Whether operands are computed by more than reading numbers."""
        calls = [node for node in self.graph.nodes if node.op not in ("placeholder", "output")]
        return any((node.op, node.target) != ("call_method", "item") for node in calls)

    @functools.cached_property
    def _compute(self) -> Callable[[Sequence[Any]], Any]:
        """Gives the operands of the sources; made when first needed, which many never are."""
        inputs = self.graph.find_nodes(op="placeholder")
        operands: Any = self.graph.output_node().args[0]
        if all(node in inputs for node in operands):
            positions = [inputs.index(node) for node in operands]
            return lambda found: [found[position] for position in positions]
        if any(node.target is select for node in self.graph.nodes):
            return functools.partial(_run, self.graph)
        calls = fx.GraphModule({}, self.graph)
        return lambda found: calls.forward(*found)

    @contextlib.contextmanager
    def modes(self) -> Iterator[None]:
        """Grad mode and autocast as where the message stands."""
        with contextlib.ExitStack() as modes:
            modes.enter_context(torch.set_grad_enabled(self.grad_enabled))
            for kind, on, dtype in self.autocast:
                if on or torch.is_autocast_enabled(kind):
                    modes.enter_context(torch.autocast(kind, dtype=dtype, enabled=on))
            yield


def _run(graph: fx.Graph, values: Sequence[Any]) -> Any:
    """Run a graph of plain calls as eager would have: of two arms, only the one that is taken."""
    known: dict[fx.Node, Any] = dict(zip(graph.find_nodes(op="placeholder"), values, strict=True))
    (output,) = graph.find_nodes(op="output")
    todo = [output]
    while todo:
        node = todo[-1]
        needed = _needed(node, known)
        missing = [n for n in needed if n not in known]
        if missing:
            todo += reversed(missing)
        elif todo.pop() not in known:
            known[node] = _value(node, known)
    return known[output]


def _needed(node: fx.Node, known: dict[fx.Node, Any]) -> list[fx.Node]:
    if node in known:
        return []
    if node.target is not select:
        return node.all_input_nodes
    predicate: Any = node.args[0]
    arm = _arm(node, known) if predicate in known else ()
    return [predicate, *(n for n in arm if isinstance(n, fx.Node))]


def _arm(node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    predicate, taken, other = node.args
    return taken if known[predicate] else other  # type: ignore[index]


def _value(node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    if node.target is select:
        return fx.map_arg(_arm(node, known), known.__getitem__)
    args, kwargs = fx.map_arg((node.args, node.kwargs), known.__getitem__)
    if node.op == "output":
        return args[0]
    return call_target(node.target, args, kwargs)
