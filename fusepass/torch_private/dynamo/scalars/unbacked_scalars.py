"""Represent Python numbers of which Dynamo knows only the kind. Run on torch 2.11 to 2.15."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dynamo import utils
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.utils import get_fake_value
from torch._dynamo.variables import TorchInGraphFunctionVariable
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.tensor import SymNodeVariable
from torch._subclasses import fake_tensor

from fusepass.torch_private.dynamo.scalars.scalar_quirks import (
    break_at_power,
    hook_formatted,
    hook_int,
    hook_scaled,
    is_nan,
    known_by_nan,
    take_int_for_bool,
)
from fusepass.torch_private.dynamo.stack import (
    constant,
    current_translator,
    number_node,
    realized,
)
from fusepass.torch_private.patches import Patches, Theirs

_KINDS: dict[type, str] = {
    bool: "bool",
    torch.SymBool: "bool",
    float: "float",
    torch.SymFloat: "float",
}
_STAND_INS: dict[str, Any] = {"bool": True, "int": 2, "float": 0.5}
_OF_NUMBERS = (math.isnan, math.isinf, math.isfinite)


@dataclass(frozen=True)
class NumberHandlers:
    """Functions that are called where numbers are tracked.

    Attributes:
        is_unknown: called as ``(translator, node)`` for each number about to be tracked; says
            whether it is computed from one that is unknown.
        is_marked: called with a node; says whether it is an unknown number.
        takes_any: called with a node; says whether its result is a tensor of the same kind
            whatever the numbers among its arguments are.
        read_late: called with the node of a tensor made of a number to be read behind the graph.
        is_ours: called with a translator; says whether capture has a part in its frame.
        before_pruning: called with Dynamo's output graph, before numbers without use leave a
            complete graph; may start the frame again.
    """

    is_unknown: Callable[[Any, fx.Node], bool]
    is_marked: Callable[[fx.Node], bool]
    takes_any: Callable[[fx.Node], bool]
    read_late: Callable[[fx.Node], None]
    is_ours: Callable[[Any], bool]
    before_pruning: Callable[[Any], None]


def unknown_number(translator: Any, proxy: fx.Proxy, kind: str) -> Any:
    """A tracked Python number of which nothing is known but its kind, for the node of a proxy."""
    return SymNodeVariable.create(translator, proxy, _unknown(translator, kind))


def _unknown(translator: Any, kind: str) -> Any:
    shapes = translator.fake_mode.shape_env
    with shapes.ignore_fresh_unbacked_symbols():
        return getattr(shapes, f"create_unbacked_sym{kind}")()


def tracked_list(translator: Any, items: list[Any]) -> Any:
    """A tracked list, new in the program, of tracked values or of such lists."""
    return VariableTracker.build(translator, items)


def hook_numbers(patches: Patches, handlers: NumberHandlers) -> None:
    """Put handlers in front of what Dynamo does with numbers."""

    def as_tensor(theirs: Theirs, self: Any, tx: Any, dtype: Any) -> Any:
        made = theirs(self, tx, dtype)  # Dynamo hands a float out of a graph as a tensor
        handlers.read_late(made.as_proxy().node)
        return made

    def dedup_pass(theirs: Theirs, self: Any) -> Any:
        # Dynamo is about to drop the numbers of a complete graph that nothing uses, where it puts
        # in its checks of sizes; what comes first is the search for equal calls.
        handlers.before_pruning(self)
        return theirs(self)

    for hook in (_hook_tracking, _hook_fakes, _hook_functions, _hook_log):
        hook(patches, handlers)
    for quirk in (hook_scaled, hook_int, hook_formatted):
        quirk(patches, handlers.is_ours)
    patches.put(SymNodeVariable, "as_tensor", as_tensor)
    patches.put(OutputGraph, "dedup_pass", dedup_pass)


def _hook_tracking(patches: Patches, handlers: NumberHandlers) -> None:
    """Make a number that is computed from unknown ones unknown itself.

    Dynamo computes it symbolically, by the algebra of real numbers, in which ``s - s`` is zero and
    ``s + 1e20 - 1e20`` is ``s``: not so for Python's floats.
    """

    def create(theirs: Theirs, tx: Any, proxy: Any, sym_num: Any = None, **options: Any) -> Any:
        if handlers.is_unknown(tx, proxy.node):
            found = get_fake_value(proxy.node, tx) if sym_num is None else sym_num
            proxy.node.meta.pop("example_value", None)
            sym_num = _unknown(tx, _KINDS.get(type(found), "int"))
        elif handlers.is_ours(tx):
            known = known_by_nan(proxy.node)
            if isinstance(known, fx.Node):
                proxy, sym_num = fx.Proxy(known, proxy.tracer), known.meta["example_value"]
            elif known is None and sym_num is None:
                sym_num = get_fake_value(proxy.node, tx)
            known = math.nan if is_nan(sym_num) else known
            if isinstance(known, (bool, int, float)):
                return constant(known)
        return theirs(tx, proxy, sym_num, **options)

    patches.put(SymNodeVariable, "create", create)


def _hook_fakes(patches: Patches, handlers: NumberHandlers) -> None:
    """Compute fake results with a number in place of an unknown one, where it does not matter.

    Some operations ask for its value (``addmm`` whether beta is zero) before they say what their
    result looks like.
    """

    def stand_in(node: fx.Node) -> Any:
        if not handlers.is_marked(node):
            return node
        return _STAND_INS[_KINDS.get(type(node.meta["example_value"]), "int")]

    def values(theirs: Theirs, tx: Any, nodes: Any, *rest: Any, **kwargs: Any) -> Any:
        last = next(iter(reversed(tx.output.graph.nodes)), None)
        call = nodes if isinstance(nodes, tuple) and len(nodes) == 2 else (None, None)
        if last is None or call[0] is not last.args:
            return theirs(tx, nodes, *rest, **kwargs)
        break_at_power(last)
        if handlers.is_ours(tx) and take_int_for_bool(last):
            nodes = (last.args, call[1])
        if handlers.takes_any(last):
            nodes = fx.map_arg(nodes, stand_in)
        return theirs(tx, nodes, *rest, **kwargs)

    patches.put(utils, "get_fake_values_from_nodes", values)


def _hook_log(patches: Patches, handlers: NumberHandlers) -> None:
    """Log no error where an operation asks for the value of a number: the number is given back."""

    def is_news(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if "data-dependent" not in str(error):  # by now a RuntimeError like any other
            return True
        translator = current_translator()
        return translator is None or not handlers.is_ours(translator)

    fake_tensor.log.addFilter(is_news)
    patches.callback(fake_tensor.log.removeFilter, is_news)


def _hook_functions(patches: Patches, handlers: NumberHandlers) -> None:
    """``math.isnan`` and its like of an unknown number give an unknown truth value.

    ``torch.as_tensor`` of one is ``torch.tensor`` of it.
    """

    def call_function(theirs: Theirs, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        asks = self.value in _OF_NUMBERS and len(args) == 1 and not kwargs
        if not asks and not (self.value is torch.as_tensor and args):
            return theirs(self, tx, args, kwargs)
        number = realized(args[0])
        node = number_node(number)
        if node is None or not handlers.is_marked(node):
            return theirs(self, tx, args, kwargs)
        if not asks:  # both make a new tensor
            self = TorchInGraphFunctionVariable(torch._refs.tensor)  # as Dynamo has it
            return theirs(self, tx, args, kwargs)
        proxy = tx.output.create_proxy("call_function", self.value, (number.as_proxy(),), {})
        handlers.is_unknown(tx, proxy.node)
        return unknown_number(tx, proxy, "bool")

    patches.put(TorchInGraphFunctionVariable, "call_function", call_function)
