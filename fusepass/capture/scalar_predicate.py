"""A predicate of Python numbers read from tensors, as a tensor that compares as Python would.

``x.item() > 1e-8`` compares a Python float, a double, whatever the dtype of x; ``n.item() > 2.5``
an integer with a float, exactly. What could overflow, or raise, is refused.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from fusepass import torch_private
from fusepass.capture.counts import count, is_count
from fusepass.capture.refusal import Refusal
from fusepass.graph import number_arithmetic
from fusepass.graph.device_numbers import Number, read_now
from fusepass.graph.number import DTYPES, Held, Unfit
from fusepass.graph.recording import Recorder
from fusepass.report.decision import Reason


def is_read_back(node: fx.Node) -> bool:
    """Whether a node is ``item()`` of a tensor."""
    return node.op == "call_method" and node.target == "item"


def comes_from_items(node: fx.Node) -> bool:
    """Whether a number is made of ``item()`` calls alone."""
    if is_read_back(node):
        return True
    sources = node.all_input_nodes
    call = node.op == "call_function" or (node.op == "call_method" and node.target in _METHODS)
    return call and bool(sources) and all(map(comes_from_items, sources))


_METHODS = ("__abs__", "__neg__", "__pos__", "__round__", "__floor__", "__ceil__", "__trunc__")


def is_of_unknown_numbers(node: fx.Node) -> bool:
    """Whether a number is made of ``item()`` calls and counts of masks alone."""
    if is_read_back(node) or is_count(node):
        return True
    sources = node.all_input_nodes
    known = node.op == "call_function" and bool(sources)
    return known and all(map(is_of_unknown_numbers, sources))


def predicate_of(translator: Any, node: fx.Node) -> Any:
    """Record the tensor that says what a Python condition on read-back numbers would say.

    Raises:
        Refusal: the condition has no exact form on tensors.
    """
    recorder = Recorder(node.graph, translator.fake_mode, at_end=True)
    held: dict[fx.Node, Held] = {}
    try:
        number = _held(translator, node, held, recorder)
        if number.mixed:
            raise Unfit(Reason.PYTHON_VALUE, "it may be an integer or a float")
        made = number.on(number.device, DTYPES[number.kind])
    except Unfit as unfit:
        raise Refusal(Reason.PREDICATE, f"a number read back is tested: {unfit.text}") from None
    value = made.meta.pop("example_value")  # Dynamo puts it there
    return torch_private.wrap_tensor(translator, torch_private.proxy_of(translator, made), value)


def _held(translator: Any, node: fx.Node, held: dict[fx.Node, Held], recorder: Recorder) -> Held:
    if node in held:
        return held[node]
    if is_read_back(node):
        source: Any = node.args[0]
        held[node] = read_now(Number(node, source), recorder)
        return held[node]
    if is_count(node):
        held[node] = read_now(Number(node, *count(translator, node)), recorder)
        return held[node]
    for source in node.all_input_nodes:
        if is_of_unknown_numbers(source):
            _held(translator, source, held, recorder)
    held[node] = number_arithmetic.held(node, held, recorder)
    return held[node]
