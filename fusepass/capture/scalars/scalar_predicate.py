"""Build a predicate of unknown Python numbers as a tensor that compares as Python would.

``x.item() > 1e-8`` compares a Python float, a double, whatever the dtype of x; ``n.item() > 2.5``
an integer with a float, exactly. What could overflow, or raise, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

from fusepass.capture.masks.selection_count import count, is_count
from fusepass.capture.refusal import Refusal
from fusepass.capture.scalars import python_arithmetic
from fusepass.capture.scalars.lowering import Number, read_now
from fusepass.capture.scalars.scalar import DTYPES, Range, ScalarTensor, Unfit, kind_of
from fusepass.graph.dataflow.node_recorder import NodeRecorder
from fusepass.graph.dataflow.reached import reached
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.stack import proxy_of, wrap_tensor

CANNOT_RAISE = "fusepass_cannot_raise"  # meta key of a number that a predicate was made of


def is_read_back(node: fx.Node) -> bool:
    """Whether a node is ``item()`` of a tensor."""
    return node.op == "call_method" and node.target == "item"


def comes_from_items(node: fx.Node) -> bool:
    """Whether a number is made of ``item()`` calls alone."""
    return _all_made_of(node, is_read_back, _computes)


def is_late_number(node: fx.Node) -> bool:
    """Whether a number is made of ``item()`` calls and of known numbers alone."""
    return _all_made_of(node, lambda step: is_read_back(step) or _is_known(step), _computes)


def _is_known(node: fx.Node) -> bool:
    """A call on known numbers: floats that torch takes as such once the graph has been traced."""
    number = kind_of(node) is not None
    return node.op == "call_function" and number and not node.all_input_nodes


_METHODS = ("__abs__", "__neg__", "__pos__", "__round__", "__floor__", "__ceil__", "__trunc__")


def those_from_items(graph: fx.Graph) -> set[fx.Node]:
    """All nodes for which :func:`comes_from_items` holds, in one walk."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        sources = node.all_input_nodes
        if is_read_back(node) or (_computes(node) and sources and found.issuperset(sources)):
            found.add(node)
    return found


def is_of_unknown_numbers(node: fx.Node) -> bool:
    """Whether a number is made of ``item()`` calls, counts of masks, and sizes beside them."""
    made_of = reached([node], lambda one: () if _is_end(one) else one.all_input_nodes)
    return any(map(_is_unknown, made_of)) and all(
        _is_end(one) or (one.op == "call_function" and bool(one.all_input_nodes)) for one in made_of
    )


def _is_end(node: fx.Node) -> bool:
    return _is_unknown(node) or (node.op == "placeholder" and kind_of(node) == "int")


def _is_unknown(node: fx.Node) -> bool:
    return is_read_back(node) or is_count(node)


def _computes(node: fx.Node) -> bool:
    return node.op == "call_function" or (node.op == "call_method" and node.target in _METHODS)


def _all_made_of(
    node: fx.Node, is_root: Callable[[fx.Node], bool], is_step: Callable[[fx.Node], bool]
) -> bool:
    """Whether every path down from a node goes over steps to a root.

    Numbers used twice in each round of a loop have more paths than could be walked.
    """
    made_of = reached([node], lambda one: () if is_root(one) else one.all_input_nodes)
    return all(is_root(one) or (is_step(one) and bool(one.all_input_nodes)) for one in made_of)


def predicate_of(translator: Any, node: fx.Node) -> Any:
    """Record the tensor that says what a Python condition on read-back numbers would say.

    Raises:
        Refusal: the condition has no exact form on tensors.
    """
    recorder = NodeRecorder(node.graph, translator.fake_mode, at_end=True)
    try:
        number = _held(translator, node, recorder)
        if number.mixed:
            raise Unfit(Reason.PYTHON_VALUE, "it may be an integer or a float")
        made = number.on(number.device, DTYPES[number.kind])
    except Unfit as unfit:
        raise Refusal(Reason.PREDICATE, f"a number read back is tested: {unfit.text}") from None
    value = made.meta.pop("example_value")  # Dynamo puts it there
    return wrap_tensor(translator, proxy_of(translator, made), value)


def number_as_tensor(translator: Any, node: fx.Node, device: torch.device) -> tuple[Any, Range]:
    """Record the tensor that holds a Python number made of read-back numbers, exactly.

    Returns:
        The tracked tensor, and what the number can be.

    Raises:
        Refusal: it has no exact form on tensors.
    """
    recorder = NodeRecorder(node.graph, translator.fake_mode, at_end=True)
    try:
        number = _held(translator, node, recorder)
        if number.mixed:
            raise Unfit(Reason.PYTHON_VALUE, "it may be an integer or a float")
        made = number.on(device, DTYPES[number.kind])
    except Unfit as unfit:
        text = f"a number read back is carried on: {unfit.text}"
        raise Refusal(unfit.code, text) from None
    value = made.meta.pop("example_value")  # Dynamo puts it there
    return wrap_tensor(translator, proxy_of(translator, made), value), number.range


def _held(translator: Any, number: fx.Node, recorder: NodeRecorder) -> ScalarTensor:
    """The tensor that holds a number, computed from those of the numbers it is made of."""
    held: dict[fx.Node, ScalarTensor] = {}
    for node in _in_order(number):
        if is_read_back(node):
            source: Any = node.args[0]
            held[node] = read_now(Number(node, source), recorder)
        elif is_count(node):
            held[node] = read_now(Number(node, *count(translator, node)), recorder)
        else:
            held[node] = python_arithmetic.held(node, held, recorder)
        node.meta[CANNOT_RAISE] = True  # else it would be unfit
    return held[number]


def _in_order(number: fx.Node) -> list[fx.Node]:
    """A number and those it is made of, in the order of the graph."""

    def before(one: fx.Node) -> Iterable[fx.Node]:
        return () if _is_unknown(one) else filter(is_of_unknown_numbers, one.all_input_nodes)

    return sorted(reached([number], before))
