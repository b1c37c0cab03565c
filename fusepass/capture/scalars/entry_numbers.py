"""Read numbers computed from inputs before the graph runs, where Python needs them.

``for t, h, w in grid.tolist()`` asks for values while the frame is traced. If ``grid`` is an input
whose contents the frame has not changed, or is computed from such inputs by a few calls, these
values are known when the frame begins. So they enter like integer arguments: as constants with a
guard, and as symbolic integers once they have changed between two compiles. Truth values stay
constants, up to a limit.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from fusepass.capture.frame_state import Frame, Place
from fusepass.capture.restarts import AT_ENTRY, restart_with_inputs
from fusepass.graph.dataflow.effects import written_nodes
from fusepass.graph.dataflow.memory import memories
from fusepass.graph.dataflow.reached import reached
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.report import log
from fusepass.report.decision import Outcome, Reason
from fusepass.torch_private.dynamo import entry_numbers
from fusepass.torch_private.dynamo.entry_numbers import Call, Position, input_at
from fusepass.torch_private.dynamo.errors.raising import is_nested_graph
from fusepass.torch_private.dynamo.scalars.unbacked_scalars import tracked_list
from fusepass.torch_private.dynamo.stack import node_of
from fusepass.torch_private.fx.graphs import higher_order_name
from fusepass.torch_private.versions import capture_supported

RULE = AT_ENTRY
_MOST_NUMBERS = 64  # that a computation gives
_MOST_ELEMENTS = 1 << 14  # of each input of a computation
_MOST_CALLS = 16
_MOST_FLAGS = 4  # different truth values that are compiled for
_SPARE = 2  # compiles of a function that are left for what is not compiled for its values
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_EXACT = frozenset(
    """
    eq ne lt le gt ge logical_and logical_or logical_not logical_xor bitwise_and bitwise_or
    bitwise_not and or xor invert any all max min amax amin argmax argmin isnan
    detach select getitem flatten reshape view squeeze unsqueeze ravel view_as
    """.split()
)
_EXACT_ON_INTEGERS = frozenset("sum cumsum add sub mul neg abs diff prod".split())


@dataclass
class SeenNumbers:
    """What inputs of a function held when the function was compiled.

    Attributes:
        varies: whether the numbers have changed between two compiles.
        compiled: the numbers that were compiled for, each with their shape.
    """

    varies: bool = False
    compiled: set[tuple[Any, ...]] = field(default_factory=set)


@dataclass
class Computation:
    """A small computation from inputs.

    Attributes:
        inputs: the source and the tensor of each.
        name: of what is computed.
    """

    inputs: list[tuple[Any, torch.Tensor]]
    name: str

    @property
    def sources(self) -> list[Any]:
        """Where the inputs are found."""
        return [source for source, _ in self.inputs]

    def result(self) -> tuple[list[Any], tuple[int, ...]]:
        """The numbers that it gives for the inputs as they are now, and their shape."""
        result = entry_numbers.computed(self.name, *(tensor for _, tensor in self.inputs))
        return entry_numbers.numbers_in(result), tuple(result.shape)


def numbers_of_inputs(
    translator: Any,
    frame: Frame,
    tensor: Any,
    held: torch.Tensor,
    place: Place,
    *,
    alone: bool = False,
) -> Any:
    """The numbers of a tensor, known before the graph runs; None where that is not possible.

    Args:
        translator: Dynamo's.
        frame: of capture.
        tensor: the tracked tensor.
        held: its value while tracing.
        place: where the program reads it.
        alone: whether one number is asked for, else a list if the tensor has dimensions.
    """
    if not _may_read(translator, frame, held):
        return None
    computation = _computation(node_of(tensor))
    if computation is None:
        return None
    try:
        numbers, shape = computation.result()
    except (RuntimeError, IndexError):  # the program meets the error where it computes this
        return None
    if not 0 < len(numbers) <= _MOST_NUMBERS:
        return None
    varies = _varies(frame, computation, (shape, *numbers), held.dtype)
    if varies is None or tuple(int(size) for size in held.shape) != shape:  # guards on its sizes
        return None
    why = Reason.AT_ENTRY, "Python needs values computed from inputs, before the graph runs"
    restart_with_inputs(frame, place, why)
    tracked = [
        entry_numbers.tracked_number(
            translator, computation.sources, computation.name, index, number, varies=varies
        )
        for index, number in enumerate(numbers)
    ]
    decision = place.decided(Outcome.APPLIED, *why, RULE)
    frame.round_trips[place.position] = decision
    return tracked_list(translator, _rows(tracked, shape)) if shape and not alone else tracked[0]


def _rows(numbers: list[Any], shape: Sequence[int]) -> list[Any]:
    """Nested lists as ``tolist`` makes them."""
    if len(shape) == 1:
        return numbers
    inner = len(numbers) // shape[0]
    return [_rows(numbers[i * inner : (i + 1) * inner], shape[1:]) for i in range(shape[0])]


def _may_read(translator: Any, frame: Frame, held: torch.Tensor) -> bool:
    options = frame.options
    on = options.rules.get(RULE, False)  # off by default while it is new
    if options.treatment == "keep" or not on or not capture_supported():
        return False
    if held.dtype not in (*_WHOLE, torch.bool) or frame.arms or frame.in_message:
        return False
    return not is_nested_graph(translator) and entry_numbers.may_have_sources(translator)


def _computation(result: fx.Node | None) -> Computation | None:
    """What a node is computed by, if that is small and nothing in it has been written."""
    if result is None:
        return None
    needed = set(reached([result], lambda node: node.all_input_nodes))
    nodes = [node for node in result.graph.nodes if node in needed]
    found = {node: input_at(node) for node in nodes if node.op == "placeholder"}
    made = [node for node in nodes if node not in found]
    inputs = [given for given in found.values() if given is not None]
    if not inputs or len(inputs) < len(found) or len(made) > _MOST_CALLS:
        return None
    if not all(_is_small_on_host(real) for _, real in inputs):
        return None
    places = {node: Position(at) for at, node in enumerate((*found, *made))}
    calls = [_call(node, places) for node in made]
    if None in calls or _written(result.graph, nodes):
        return None
    return Computation(inputs, entry_numbers.name_of(tuple(calls)))  # type: ignore[arg-type]


def _is_small_on_host(real: torch.Tensor) -> bool:
    plain = real.device.type == "cpu" and real.layout is torch.strided
    return plain and real.numel() <= _MOST_ELEMENTS


def _call(node: fx.Node, places: dict[fx.Node, Position]) -> Call | None:
    """A node as a call that gives the same in eager, whatever context it is in."""
    name = op_name(node)
    operands = [tensor_value(one) for one in node.all_input_nodes]
    whole = all(one is not None and one.dtype in (*_WHOLE, torch.bool) for one in operands)
    if name not in _EXACT and not (whole and name in _EXACT_ON_INTEGERS):
        return None
    is_method = node.op == "call_method"
    if not is_method and not isinstance(node.target, types.BuiltinFunctionType):
        return None
    try:
        args = _constant(node.args, places)
        kwargs = tuple((key, _constant(value, places)) for key, value in node.kwargs.items())
    except TypeError:
        return None
    method = str(node.target) if is_method else None
    return Call(method, None if is_method else node.target, args, kwargs)


def _constant(given: Any, places: dict[fx.Node, Position]) -> Any:
    """An argument with positions in place of nodes.

    Raises:
        TypeError: it is no constant.
    """
    if isinstance(given, fx.Node):
        return places[given]
    if isinstance(given, (tuple, list)):
        return tuple(_constant(one, places) for one in given)
    if type(given) in (int, bool, float, str, type(None), type(...), torch.dtype):
        return given
    if isinstance(given, slice):
        return slice(*(_constant(one, {}) for one in (given.start, given.stop, given.step)))
    raise TypeError(type(given).__name__)


def _written(graph: fx.Graph, nodes: list[fx.Node]) -> bool:
    """Whether the graph so far may have written nodes, or any input: inputs may overlap."""
    held = set(memories([*graph.find_nodes(op="placeholder"), *nodes]))
    for node in graph.nodes:
        if not node.op.startswith("call_"):
            continue
        if higher_order_name(node.target) is not None:
            return True
        may_write = entry_numbers.calls_numpy(node)
        for operand in node.all_input_nodes if may_write else written_nodes(node):
            keys = memories([operand])
            if not keys or not held.isdisjoint(keys):
                return True
    return False


def _varies(
    frame: Frame, computation: Computation, numbers: tuple[Any, ...], dtype: torch.dtype
) -> bool | None:
    """Whether numbers become symbolic integers; None if too many have been compiled for."""
    known = log.log_of(frame.compiler).numbers
    names = tuple(source.name for source in computation.sources)
    seen = known.setdefault((frame.code, names, computation.name, dtype), SeenNumbers())
    seen.varies = seen.varies or bool(seen.compiled - {numbers})
    seen.compiled.add(numbers)
    if dtype is torch.bool:
        return None if len(seen.compiled) > _MOST_FLAGS else False
    if len(seen.compiled) > max(1, entry_numbers.most_compiles() - _SPARE):
        return None
    may, at_once = entry_numbers.may_vary()
    return may and (at_once or seen.varies)
