"""``.item()``, ``float()``, ``bool()`` of a tensor whose number is only tested: kept on the device.

Such a call is recorded as an unknown number instead of breaking the graph. At the jump the
condition is put together again from tensors (scalar_predicate.py), and the number is not read. If
any of them turns out to be read after all, its call is given back to Dynamo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch
from torch import fx

from fusepass import torch_private
from fusepass.capture.caller import caller_of
from fusepass.capture.frame import Frame, frame_of
from fusepass.capture.only_tested import only_tested
from fusepass.capture.predicate import as_bool_scalar
from fusepass.capture.refusal import Refusal
from fusepass.capture.region import region_of
from fusepass.capture.scalar_predicate import comes_from_items, predicate_of
from fusepass.capture.sink_message import only_in_messages
from fusepass.graph.canonical import tensor_value
from fusepass.graph.totality import UNREAD
from fusepass.report.decision import Reason

_GIVEN_BACK = "fusepass_given_back"  # places whose numbers are read after all


def on_item(translator: Any, tensor: Any, read: Callable[[], Any]) -> Any:
    """Read a number, as a symbol where it is only tested; a truth value stays the tensor it is."""
    frame = frame_of(translator.output)
    if frame is None or frame.in_message or not _wanted(translator, frame, messages=True):
        return read()
    held = tensor_value(torch_private.node_of(tensor))
    if held is None or not all(torch_private.known_equal(n, 1) for n in held.shape):
        return read()
    if held.dtype is torch.bool:
        if not _is_method_call(translator) or not _wanted(translator, frame, arithmetic=False):
            return read()
        proxy = tensor.as_proxy()
        return torch_private.wrap_call(translator, "call_method", "reshape", (proxy, ()), {})
    place = (translator.f_code, translator.instruction_pointer)
    if place in torch_private.kept_between_restarts(translator.output, _GIVEN_BACK, set):
        return read()
    with torch_private.items_as_symbols(translator):
        number = read()
    node = torch_private.number_node(number)
    if node is not None:
        frame.items[node] = place
        node.meta[UNREAD] = True
    return number


def on_truth(translator: Any, tensor: Any) -> Any:
    """The tensor that stands for ``bool(tensor)`` where that is only tested, or None."""
    frame = frame_of(translator.output)
    if frame is None or frame.in_message or not _wanted(translator, frame, arithmetic=False):
        return None
    try:
        return as_bool_scalar(translator, tensor)
    except Refusal:  # several elements, or none: eager's error is Dynamo's business
        return None


def is_only_tested(translator: Any, frame: Frame) -> bool:
    """Whether the truth value that the call being traced gives goes into jumps and nowhere else."""
    return _wanted(translator, frame, arithmetic=False)


def _wanted(
    translator: Any, frame: Frame, *, arithmetic: bool = True, messages: bool = False
) -> bool:
    """Whether the value about to be pushed is only tested, in ``messages`` or else only named."""
    if frame.options.treatment == "keep" or not frame.options.rule_on("branch"):
        return False
    if torch_private.is_generator_frame(translator) or not torch_private.capture_supported():
        return False
    index = translator.instruction_pointer - 1
    raises = region_of(translator.f_code, translator.instructions).only_raises
    ignored = raises if messages and frame.options.rule_on("sink") else _nothing
    return _only_tested(translator, index, arithmetic, ignored)


def _only_tested(
    translator: Any, index: int, arithmetic: bool, ignored: Callable[[int], bool]
) -> bool:
    def returned() -> bool:
        caller = caller_of(translator)
        return caller is not None and _only_tested(*caller, arithmetic, _nothing)

    return only_tested(
        translator.instructions, index, arithmetic=arithmetic, ignored=ignored, returned=returned
    )


def _nothing(_: int) -> bool:
    return False


def _is_method_call(translator: Any) -> bool:
    """Whether the instruction is ``tensor.item()`` itself, not ``bool(tensor)``."""
    index = translator.instruction_pointer - 2
    while index >= 0 and translator.instructions[index].opname in ("PRECALL", "CACHE", "PUSH_NULL"):
        index -= 1
    return index >= 0 and bool(translator.instructions[index].argval == "item")


def tests_a_number(translator: Any, frame: Frame) -> bool:
    """Whether the value on top of the stack is a condition on numbers that were not read."""
    node = torch_private.number_on_top(translator)
    return bool(frame.items) and node is not None and comes_from_items(node)


def put_predicate(translator: Any) -> None:
    """Put the condition on top of the stack there as a tensor.

    Raises:
        Refusal: it has no exact form on tensors.
    """
    node = torch_private.number_on_top(translator)
    if node is None:
        raise Refusal(Reason.PREDICATE, "no number is tested")
    translator.stack[-1] = predicate_of(translator, node)


def items_tested(translator: Any, frame: Frame) -> tuple[fx.Node, ...]:
    """The numbers that the condition on top of the stack is made of; none for a tensor."""
    found: dict[fx.Node, None] = {}
    todo = [torch_private.number_on_top(translator)]
    while todo:
        node = todo.pop()
        if node is None:
            continue
        if node in frame.items:
            found[node] = None
        else:
            todo.extend(node.all_input_nodes)
    return tuple(found)


def give_back(output_graph: Any, frame: Frame, items: Iterable[fx.Node]) -> NoReturn:
    """Start the frame again, these numbers read where the program reads them."""
    places = torch_private.kept_between_restarts(output_graph, _GIVEN_BACK, set)
    places.update(frame.items[node] for node in items)
    torch_private.restart_frame("fusepass: a number read from a tensor is needed")


def remove_unread(graph: fx.Graph, frame: Frame, output_graph: Any) -> None:
    """Erase numbers nobody reads from a complete graph; give back the calls of those that are."""
    if not frame.items:
        return
    for node in reversed(graph.nodes):
        value = node.meta.get("example_value")
        number = isinstance(value, (torch.SymBool, torch.SymInt, torch.SymFloat))
        if number and not node.users and comes_from_items(node):
            graph.erase_node(node)
    names = {node.name for node in graph.nodes if node.op == "call_method"}
    read = [node for node in frame.items if node.name in names and not only_in_messages(node)]
    if read:
        give_back(output_graph, frame, read)
