"""Record ``.item()``, ``float()`` and ``bool()`` of a tensor as an unknown number.

Such a call does not break the graph. At a jump the condition is put together again from tensors
(scalar_predicate.py). Other uses are replaced once the graph is complete (deferred_items.py). If a
number turns out to be needed, its call is given back to Dynamo.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fusepass.capture.bytecode.control_flow import region_of
from fusepass.capture.bytecode.instructions import caller_of
from fusepass.capture.bytecode.predicate_only_uses import has_only_predicate_uses
from fusepass.capture.frame_state import Frame, Place, frame_of
from fusepass.capture.nodes.predicate import as_bool_scalar
from fusepass.capture.refusal import Refusal
from fusepass.capture.restarts import is_kept, keep
from fusepass.capture.scalars.arm_scalars import NUMBER
from fusepass.capture.scalars.call_rewriter import SUPPORTED
from fusepass.capture.scalars.call_table import takes_any_number
from fusepass.capture.scalars.deferred_items import FROM_ITEM
from fusepass.capture.scalars.entry_numbers import numbers_of_inputs
from fusepass.capture.scalars.scalar import READ_LATE, kind_of
from fusepass.capture.scalars.scalar_predicate import is_of_unknown_numbers, predicate_of
from fusepass.capture.scalars.unused_checks import keep_raising
from fusepass.capture.source_position import here
from fusepass.graph.dataflow.reached import reached
from fusepass.graph.ops.op_names import tensor_value
from fusepass.graph.safety.totality import UNREAD
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.dynamo.errors.raising import is_nested_graph
from fusepass.torch_private.dynamo.scalars.unbacked_scalars import (
    NumberHandlers,
    tracked_list,
    unknown_number,
)
from fusepass.torch_private.dynamo.scalars.unbacked_sizes import unknown_sizes
from fusepass.torch_private.dynamo.stack import is_generator_frame, node_of, number_node
from fusepass.torch_private.fx.graphs import known_equal
from fusepass.torch_private.fx.tensor_kinds import is_transformed, own_rules_of
from fusepass.torch_private.versions import capture_supported

_OF_CHOICE = "fusepass_of_choice"  # meta key: computed from a number that differs between arms
_MOST_OF_A_LIST = 32  # numbers that ``tolist`` may read


def on_item(translator: Any, tensor: Any, read: Callable[[], Any]) -> Any:
    """Read a number as a symbol; a truth value that is only tested stays the tensor it is."""
    frame = frame_of(translator.output)
    if frame is None or frame.in_message:
        return read()
    held = tensor_value(node_of(tensor))
    if held is None:
        return read()
    if not all(known_equal(n, 1) for n in held.shape):
        text = "a tensor of another number of elements than one is no number, which raises"
        return _read(translator, frame, held, Refusal(Reason.PARTIAL_OP, text), read)
    special = _special(tensor, held)
    if special is not None:
        return _read(translator, frame, held, special, read)
    forbidden = _forbidden(translator, frame, held)
    if forbidden is not None and not _wanted(translator, frame, messages=True):
        return _read(translator, frame, held, forbidden, read)
    if held.dtype is torch.bool and (
        _is_method_call(translator) and _wanted(translator, frame, arithmetic=False)
    ):
        proxy = tensor.as_proxy()
        return stack.wrap_call(translator, "call_method", "reshape", (proxy, ()), {})
    if forbidden is not None and (held.dtype is torch.bool or not is_number(held.dtype)):
        return _read(translator, frame, held, forbidden, read)
    item = here(translator, "item", held.dtype)
    if is_kept(frame, item):
        known = numbers_of_inputs(translator, frame, tensor, held, item, alone=True)
        return read() if known is None else known
    return unread_number(translator, frame, tensor.as_proxy(), item)


def on_list(translator: Any, tensor: Any, read: Callable[[], Any]) -> Any:
    """``tensor.tolist()`` of few elements: a list of numbers, each a symbol."""
    frame = frame_of(translator.output)
    held = tensor_value(node_of(tensor))
    if frame is None or frame.in_message or held is None:
        return read()
    forbidden = _special(tensor, held) or _forbidden(translator, frame, held)
    count = held.numel()
    if forbidden is None and not (type(count) is int and count <= _MOST_OF_A_LIST):
        item = here(translator, "item", held.dtype)
        known = numbers_of_inputs(translator, frame, tensor, held, item)
        if known is not None:
            return known
        text = f"tolist reads more than {_MOST_OF_A_LIST} numbers, or an unknown number of them"
        forbidden = Refusal(Reason.PYTHON_VALUE, text)
    if forbidden is not None:
        return _read(translator, frame, held, forbidden, read)
    item = here(translator, "item", held.dtype)
    if is_kept(frame, item):
        known = numbers_of_inputs(translator, frame, tensor, held, item)
        return read() if known is None else known

    def listed(proxy: fx.Proxy, shape: tuple[int, ...]) -> Any:
        if not shape:
            return unread_number(translator, frame, proxy, item)
        rows = []
        for index in range(shape[0]):
            args = (proxy, 0, index)
            row = stack.wrap_call(translator, "call_method", "select", args, {})
            rows.append(listed(row.as_proxy(), shape[1:]))
        return rows

    found = listed(tensor.as_proxy(), tuple(held.shape))
    return tracked_list(translator, found) if held.dim() else found


def is_number(dtype: torch.dtype) -> bool:
    """Whether ``item`` of a tensor of this dtype is a number that other dtypes hold as well."""
    return dtype in SUPPORTED


def _special(tensor: Any, held: torch.Tensor) -> Refusal | None:
    """Why a number of a tensor is read by the tensor's own rules, or inside a transform only."""
    if is_transformed(held):
        text = "it is read inside torch.vmap or torch.func.functionalize"
        return Refusal(Reason.UNTRACEABLE, text)
    own = own_rules_of(tensor)
    if own is None:
        return None
    return Refusal(Reason.PYTHON_VALUE, f"the tensor that it is read from {own}")


def _forbidden(translator: Any, frame: Frame, held: torch.Tensor) -> Refusal | None:
    """Why numbers stay on the device only where they are no more than tested, or None."""
    options = frame.options
    if options.treatment == "keep":
        return Refusal(Reason.FORCED, "options ask to keep host round trips")
    if not options.rule_on("item"):
        return Refusal(Reason.RULE_OFF, 'the options switch the rule "item" off')
    if not capture_supported() or is_nested_graph(translator):
        return Refusal(Reason.UNTRACEABLE, "it is read inside a higher-order operator")
    if not is_number(held.dtype):
        return Refusal(Reason.PYTHON_VALUE, f"a number of {held.dtype} has no form on the device")
    return None


def _read(
    translator: Any, frame: Frame, held: torch.Tensor, why: Refusal, read: Callable[[], Any]
) -> Any:
    """Leave a number to Dynamo, with the reason on record if that breaks the graph."""
    if capture_supported():
        keep(frame, here(translator, "item", held.dtype), why.code, why.text)
    return read()


def unread_number(
    translator: Any, frame: Frame, tensor: fx.Proxy, item: Place, kind: str | None = None
) -> Any:
    """The number that a tensor of one element holds, unknown.

    Its kind is that of the dtype that the program reads at ``item``, if it is not given.
    """
    held = stack.wrap_call(translator, "call_method", "detach", (tensor,), {}).as_proxy()
    proxy = translator.output.create_proxy("call_method", "item", (held,), {})
    if kind is None:
        kind = "float" if item.dtype and item.dtype.is_floating_point else "int"
        kind = "bool" if item.dtype is torch.bool else kind
    frame.items[proxy.node] = item
    proxy.node.meta |= {UNREAD: True, FROM_ITEM: True}
    return unknown_number(translator, proxy, kind)


def _is_unknown(translator: Any, node: fx.Node) -> bool:
    """Whether a number is computed from one that was not read, or that differs between arms."""
    frame = frame_of(translator.output)
    if frame is None or node in frame.items:
        return False
    sources = node.all_input_nodes
    differs = any(NUMBER in one.meta or _OF_CHOICE in one.meta for one in sources)
    if differs:  # else its expression grows twofold with each `s * s - s`
        node.meta[_OF_CHOICE] = True
    read = bool(frame.items) and any(map(_is_marked, sources))
    if read:
        node.meta[FROM_ITEM] = True
    return differs or read


def _is_marked(node: fx.Node) -> bool:
    return FROM_ITEM in node.meta


def _read_late(node: fx.Node) -> None:
    """Mark a tensor that Dynamo makes of a number, or of a size, to hand it out."""
    values = (source.meta.get("example_value") for source in node.all_input_nodes)
    if any(map(_is_marked, node.all_input_nodes)) or any(map(unknown_sizes, values)):
        node.meta[READ_LATE] = True


def _is_ours(translator: Any) -> bool:
    return frame_of(translator.output) is not None


NUMBERS = NumberHandlers(
    _is_unknown, _is_marked, takes_any_number, _read_late, _is_ours, keep_raising
)


def on_not(translator: Any, number: Any) -> Any:
    """``not`` of a number that was not read; None for anything else."""
    node = number_node(number)
    frame = frame_of(translator.output)
    if frame is None or node is None or not _is_marked(node):
        return None
    proxy = translator.output.create_proxy("call_function", torch.sym_not, (number.as_proxy(),), {})
    proxy.node.meta[FROM_ITEM] = True
    return unknown_number(translator, proxy, "bool")


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
    if is_generator_frame(translator) or not capture_supported():
        return False
    index = translator.instruction_pointer - 1
    raises = region_of(translator.f_code, translator.instructions).only_raises
    ignored = raises if messages and frame.options.rule_on("sink") else _nothing
    return _only_tested(translator, index, arithmetic, ignored)


def _only_tested(
    translator: Any,
    index: int,
    arithmetic: bool,
    ignored: Callable[[int], bool],
    compared: bool = True,
) -> bool:
    def returned() -> bool:
        caller = caller_of(translator)
        return caller is not None and _only_tested(*caller, arithmetic, _nothing, compared)

    return has_only_predicate_uses(
        translator.instructions,
        index,
        arithmetic=arithmetic,
        compared=compared,
        ignored=ignored,
        returned=returned,
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
    node = stack.number_on_top(translator)
    unknown = frame.items or frame.selections
    return bool(unknown) and node is not None and is_of_unknown_numbers(node)


def put_predicate(translator: Any) -> Any:
    """Put the condition on top of the stack there as a tensor; gives the tracked number it was.

    Raises:
        Refusal: it has no exact form on tensors.
    """
    node = stack.number_on_top(translator)
    if node is None:
        raise Refusal(Reason.PREDICATE, "no number is tested")
    number = translator.stack[-1]
    translator.stack[-1] = predicate_of(translator, node)
    return number


def put_number_of_inputs(translator: Any, frame: Frame, place: Place) -> None:
    """Put a number in place of the tensor that a branch left to Dynamo tests, if it is known."""
    tested = stack.tensor_on_top(translator)
    held = None if tested is None else tensor_value(node_of(tested))
    if held is None or not frame.options.rule_on("branch"):
        return
    if _special(tested, held) is None and all(known_equal(n, 1) for n in held.shape):
        known = numbers_of_inputs(translator, frame, tested, held, place, alone=True)
        if known is not None:
            translator.stack[-1] = known


def tested_from(translator: Any, index: int, number: Any) -> bool:
    """Whether a number on top of the stack at an instruction is only asked for its truth.

    A truth value may be compared as well: as a tensor it compares as it does in Python.
    """
    truth = kind_of(number_node(number)) == "bool"
    return _only_tested(translator, index - 1, False, _nothing, compared=truth)


def items_tested(translator: Any, frame: Frame) -> tuple[fx.Node, ...]:
    """The numbers that the condition on top of the stack is made of; none for a tensor."""
    top = stack.number_on_top(translator)
    tested = [] if top is None else [top]
    made_of = reached(tested, lambda node: () if node in frame.items else node.all_input_nodes)
    return tuple(node for node in made_of if node in frame.items)
