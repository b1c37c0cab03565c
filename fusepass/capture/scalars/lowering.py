"""Replace every use of an unknown Python number by a use of its 0-d tensor.

``s = x.norm().item(); y = x / s`` is ``y = x / x.norm().detach()`` if promotion, rounding and
errors are those of a Python number. The number is exact, so it is kept as the tensor it was read
from and cast straight to the dtype eager would use; arithmetic of numbers alone is done in float64
and int64, like Python's (python_arithmetic.py). What the calls that take numbers do with tensors in
their place is in call_table.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from fusepass.capture.scalars import call_table, python_arithmetic
from fusepass.capture.scalars.scalar import (
    ANY_FLOAT,
    Range,
    ScalarTensor,
    Unfit,
    exactly,
    kind_of,
    read_from,
)
from fusepass.graph.dataflow.memory import memories, memory_of
from fusepass.graph.dataflow.node_recorder import NodeRecorder
from fusepass.graph.dataflow.reached import reached
from fusepass.graph.dataflow.write_history import WriteHistory
from fusepass.graph.ops.op_names import tensor_value
from fusepass.report.decision import Reason
from fusepass.torch_private.fx.graphs import never_recompute

READ_FOR = "fusepass_read_for"  # meta key of a tensor read later than the number it stands for
_COPIES = ("clone", "cpu", "cuda", "detach", "to")


@dataclass(frozen=True)
class Number:
    """A Python number of a graph and the tensor it equals.

    Attributes:
        node: the number, a SymInt, SymFloat or SymBool while tracing.
        source: a tensor of one element that holds it, where ``node`` stands.
        range: bounds, if more is known than the tensor's dtype and operation tell.
    """

    node: fx.Node
    source: fx.Node
    range: Range | None = None


@dataclass(frozen=True)
class KeptScalar:
    """Why a number cannot stay on the device.

    Attributes:
        code, text: the reason.
        user: the node that needs the number; None if that is not one node.
    """

    code: Reason
    text: str
    user: fx.Node | None = None


def replace_numbers(
    graph: fx.Graph,
    numbers: Iterable[Number],
    fake_mode: Any,
    ignored: Callable[[fx.Node], bool] = lambda _: False,
    late: list[int] | None = None,
) -> dict[fx.Node, KeptScalar]:
    """Replace every use of some numbers by tensor work, and erase those that are left without use.

    Where that cannot be done for a use, it stays, and so does the number.

    Args:
        graph: the complete graph of a frame, still as Dynamo recorded it.
        numbers: those to replace.
        fake_mode: the mode the fake tensors of the graph compute under.
        ignored: users that shall be left alone.
        late: takes the positions of outputs that were such numbers and are now 0-d tensors, to be
            read with ``item``. Without it the graph may not give a number out.

    Returns:
        The numbers that are still used by others than ``ignored``, with the first reason.
    """
    known = [number for number in numbers if number.node.users]
    if not known:
        return {}
    return _Replacing(graph, known, fake_mode, ignored, late).run()


@dataclass
class _Replacing:
    graph: fx.Graph
    numbers: list[Number]
    fake_mode: Any
    ignored: Callable[[fx.Node], bool]
    late: list[int] | None
    held: dict[fx.Node, ScalarTensor] = field(default_factory=dict)
    kept: dict[fx.Node, KeptScalar] = field(default_factory=dict)
    given: set[fx.Node] = field(default_factory=set)  # numbers that are read from no tensor

    def run(self) -> dict[fx.Node, KeptScalar]:
        nodes = list(self.graph.nodes)
        history = WriteHistory(self.graph, nodes[-1])
        recorder = NodeRecorder(self.graph, self.fake_mode)
        seen = _seen_outside(self.graph)
        for number in self.numbers:
            self.held[number.node] = _read(number, history, recorder, seen)
        for node in nodes:
            used = [self.held[n] for n in node.all_input_nodes if n in self.held]
            if not used or self.ignored(node):
                continue
            try:
                if node.op == "output":
                    self._give_out(node)
                elif kind_of(node) is not None:
                    if node.users:
                        known = {**self._given_beside(node, recorder), **self.held}
                        self.held[node] = python_arithmetic.held(node, known, recorder)
                else:
                    call_table.replace(node, self.held, recorder)
            except Unfit as unfit:
                why = KeptScalar(unfit.code, unfit.text, node)
                self._keep(used, _as_size(node) or why)
        for node in reversed([n for n in nodes if n in self.held or n in self.given]):
            if not node.users:
                self.graph.erase_node(node)
        return self.kept

    def _given_beside(self, node: fx.Node, recorder: NodeRecorder) -> dict[fx.Node, ScalarTensor]:
        """The operands of a call that are floats which the graph is given, or made of such alone.

        Nothing is read for them: Dynamo hands such a float over in a tensor.
        """
        operands = [n for n in node.all_input_nodes if kind_of(n) == "float" and n not in self.held]
        ends = lambda one: () if is_given_float(one) else one.all_input_nodes  # noqa: E731
        made_of = sorted(reached(operands, ends))
        self.given |= {*made_of}
        given: dict[fx.Node, ScalarTensor] = {}
        for one in made_of:
            if not one.all_input_nodes:  # torch has taken its operands for known since the trace
                value = float(one.meta["example_value"])
                home = functools.partial(_known, recorder, one, value)
                number = held_number(one, exactly(value), one, home, recorder)
                given[one] = replace(number, roots=())
            elif is_given_float(one):
                home = functools.partial(_placed, recorder, one)
                number = held_number(one, ANY_FLOAT, one.all_input_nodes[0], home, recorder)
                given[one] = replace(number, roots=())
            elif kind_of(one) is not None and one.op == "call_function":
                given[one] = python_arithmetic.held(one, given, recorder)
        return given

    def _give_out(self, output: fx.Node) -> None:
        """Give numbers out as tensors, where somebody is going to read them."""
        given: Any = output.args[0]
        inside = [n for n in given if n in self.held] if isinstance(given, (tuple, list)) else []
        if self.late is None or set(inside) != self.held.keys() & set(output.all_input_nodes):
            raise Unfit(Reason.PYTHON_VALUE, "the program needs it behind the graph")
        tensors = {node: self.held[node].out() for node in inside}
        self.late += [i for i, node in enumerate(given) if node in tensors]
        output.args = (type(given)(tensors.get(n, n) for n in given),)

    def _keep(self, used: list[ScalarTensor], why: KeptScalar) -> None:
        for root in {root: None for held in used for root in held.roots}:
            self.kept.setdefault(root, why)


def _placed(recorder: NodeRecorder, number: fx.Node, device: torch.device) -> fx.Node:
    """A tensor of a float that the graph is given.

    It is made by an operation that torch takes a float's tensor for: else torch would compile the
    graph again for each value.
    """
    one = recorder.after(number, torch.ones, (), dtype=torch.float64, device=device)
    return recorder.after(one, torch.mul, one, number)


def _known(recorder: NodeRecorder, node: fx.Node, value: float, device: torch.device) -> fx.Node:
    return recorder.before(node, torch.full, (), value, dtype=torch.float64, device=device)


def is_given_float(node: fx.Node) -> bool:
    """Whether a node is a float that the graph is given: Dynamo hands it over in a tensor."""
    if node.op != "call_method" or node.target != "item" or kind_of(node) != "float":
        return False
    return node.all_input_nodes[0].op == "placeholder"


def _as_size(number: fx.Node) -> KeptScalar | None:
    """Why a number made of others cannot stay, where a call takes it as a size in the end.

    That no tensor can hold it is then beside the point.
    """
    for one in reached([number], _users_of_number):
        for user in _users_of_number(one):
            unfit = call_table.as_size(user, one)
            if unfit is not None:
                return KeptScalar(unfit.code, unfit.text, user)
    return None


def _users_of_number(node: fx.Node) -> list[fx.Node]:
    """The users of a node if it is a number; else none."""
    return [*node.users] if kind_of(node) is not None else []


def _seen_outside(graph: fx.Graph) -> frozenset[int]:
    """In training, memory that others can write between the graph and its backward."""
    nodes = list(graph.nodes)
    values = [value for value in map(tensor_value, nodes) if value is not None]
    if not any(value.requires_grad for value in values):
        return frozenset()
    inputs = [node for node in nodes if node.op in ("placeholder", "get_attr")]
    return frozenset(memories(inputs + list(nodes[-1].all_input_nodes)))


def _read(
    number: Number, history: WriteHistory, recorder: NodeRecorder, seen: frozenset[int]
) -> ScalarTensor:
    """A number as the tensor it was read from, at the moment it was read."""
    node, source = number.node, number.source
    moment = history.moments[node]
    known = number.range or read_from(source, lambda n: history.holds_value(n, moment))
    last = _last_use(node, history) + 1

    def home(device: torch.device) -> fx.Node | None:
        found = _on_device(number, device, history)
        if found is None:
            return None
        tensor, place = found
        made = tensor
        if node.prev is not tensor:  # else nothing can happen in between
            made = recorder.before(place, "detach", tensor)
        if tensor_value(tensor).dim():  # type: ignore[union-attr]
            made = recorder.before(place, "reshape", made, ())
        written = history.is_written(tensor, history.moments[place], last)
        if not seen.isdisjoint(memories([tensor])):
            # Inductor takes a copy away again, or makes it anew in the backward, from memory that
            # others may have written by then.
            made = recorder.before(place, torch.amax, made)
            never_recompute(made)
        elif written:
            made = recorder.before(place, "clone", made)
        return made

    return held_number(node, known, source, home, recorder)


def held_number(
    node: fx.Node,
    known: Range,
    source: fx.Node,
    home: Callable[[torch.device], fx.Node | None],
    recorder: NodeRecorder,
) -> ScalarTensor:
    """A number that is computed from no other, on the device of ``source`` if that is a tensor."""
    kind, value = kind_of(node), tensor_value(source)
    assert kind is not None
    device = torch.device("cpu") if value is None else value.device
    return ScalarTensor(node, kind, known, (node,), device, home, recorder)


def read_now(number: Number, recorder: NodeRecorder) -> ScalarTensor:
    """A number as the tensor it was read from holds it now, at the end of a graph."""
    node, source = number.node, number.source
    value = tensor_value(source)
    assert value is not None

    def home(_: torch.device) -> fx.Node:
        made = recorder.before(node, "detach", source)
        made.meta[READ_FOR] = source
        return recorder.before(node, "reshape", made, ()) if value.dim() else made

    known = number.range or read_from(source, lambda _: False)
    return held_number(node, known, source, home, recorder)


def read_in_time(graph: fx.Graph, fake_mode: Any) -> None:
    """Copy what :func:`read_now` read where the number was read, if it was written in between."""
    nodes = list(graph.nodes)
    late = [node for node in nodes if READ_FOR in node.meta]
    if not late:
        return
    history, recorder = WriteHistory(graph, nodes[-1]), NodeRecorder(graph, fake_mode)
    for node in late:
        source: fx.Node = node.meta[READ_FOR]
        start, end = history.moments[source], history.moments[node]
        if node.args[0] is not source or history.is_written(source, start, end):
            node.args = (recorder.after(source, "clone", source),)


def _on_device(
    number: Number, device: torch.device, history: WriteHistory
) -> tuple[fx.Node, fx.Node] | None:
    """A tensor on a device that holds a number, and where it is read; None if there is none.

    That is the tensor it was read from, or one that that is a copy of.
    """
    node, place = number.source, number.node
    while True:
        value = tensor_value(node)
        if value is None or value.dtype != tensor_value(number.source).dtype:  # type: ignore[union-attr]
            return None
        if value.device == device:
            return node, place
        if node.op != "call_method" or node.target not in _COPIES:
            return None
        source: Any = node.args[0]
        if memory_of(source) != memory_of(node):
            if not history.holds_value(node, history.moments[place]):
                return None
            place = node
        node = source


def _last_use(node: fx.Node, history: WriteHistory) -> int:
    """The last moment at which a number, or one computed from it, is used."""
    behind = reached(node.users, _users_of_number)
    return max(history.moments.get(one, 0) for one in (node, *behind))
