"""Correct what Dynamo makes of some numbers in frames that are compiled for fusepass.

Run on torch 2.11 to 2.15.

Plain Dynamo ends with an internal error where a NaN, or a bool beside an integer that varies, comes
into a frame that it compiled for any number. It traces an f-string of a number as the number, does
not find a key whose text is made of a number, and drops writes to numbers that a graph is given.
"""

from __future__ import annotations

import copy
import functools
import math
import operator
from typing import Any

import sympy
import torch
from torch import fx
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.symbolic_convert import InstructionTranslator, InstructionTranslatorBase
from torch._dynamo.variables import ConstantVariable, TensorVariable, TupleVariable, dicts
from torch._dynamo.variables.lazy import LazySymNodeFormatString
from torch._dynamo.variables.misc import StringFormatVariable
from torch._dynamo.variables.tensor import SymNodeVariable

from fusepass.torch_private.dynamo.stack import break_graph, constant, is_any_tensor, realized
from fusepass.torch_private.patches import IsOurs, Patches, Theirs

_SCALED = {"method_add_": "alpha", "method_addcdiv_": "value", "method_addcmul_": "value"}
_CONVERSION = "fusepass_conversion"  # attribute of a number that is shown: the function, or None
_CONVERSIONS = (None, str, repr, ascii)
_COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


def is_nan(number: Any) -> bool:
    """Whether it is known of a float that it is not a number."""
    if isinstance(number, torch.SymFloat):
        return number.node.expr is sympy.nan
    return isinstance(number, float) and math.isnan(number)


def known_by_nan(node: fx.Node) -> Any:
    """The result of a call if a known NaN among its operands decides it.

    Returns:
        A number, or the node of one; None if that is left to be computed.
    """
    if not any(map(is_nan, node.args)):
        return None
    if node.target in _COMPARISONS:
        return node.target is operator.ne
    if node.target in (torch.sym_max, torch.sym_min) and len(node.args) == 2:
        return node.args[0]  # of ``max`` and ``min`` the first, unless the second compares
    return None


def take_int_for_bool(node: fx.Node) -> bool:
    """Write ``1 + n`` for ``True + n`` with a symbol ``n``; says whether there was such a bool."""
    if getattr(node.target, "__module__", "") != operator.add.__module__:
        return False
    numbers = [n.meta.get("example_value") for n in node.all_input_nodes]
    symbols = any(isinstance(number, (torch.SymInt, torch.SymFloat)) for number in numbers)
    if not symbols or not any(isinstance(arg, bool) for arg in node.args):
        return False
    node.args = tuple(int(arg) if isinstance(arg, bool) else arg for arg in node.args)
    return True


def break_at_power(node: fx.Node) -> None:
    """Break the graph at a power of a float that varies and is negative or NaN this time.

    Symbolic floats refuse it, and Dynamo would end the program with an error of its own.

    Raises:
        Unsupported: of Dynamo, if ``node`` is such a power.
    """
    if node.target not in (operator.pow, operator.ipow, pow) or len(node.args) < 2:
        return
    base = node.args[0]
    number = base.meta.get("example_value") if isinstance(base, fx.Node) else None
    hint = number.node.hint if isinstance(number, torch.SymFloat) else None
    if hint is not None and not hint >= 0:
        why = f"{hint} is negative or NaN, of which symbolic floats have no power."
        hint = "Multiply the number by itself, or take the power of a tensor."
        break_graph("Power of a symbolic float", why, [hint], str(node))


def hook_int(patches: Patches, is_ours: IsOurs) -> None:
    """Break the graph at ``int()`` of a known NaN or infinity, which raises.

    From torch 2.13 on Dynamo itself raises, and ends the program with an error of its own.
    """

    def nb_int_impl(theirs: Theirs, self: Any, tx: Any) -> Any:
        if type(self.value) is float and not math.isfinite(self.value) and is_ours(tx):
            what, value = "Integer of a float that has none", str(self.value)
            break_graph(what, f"int({value}) raises.", context=value)
        return theirs(self, tx)

    if "nb_int_impl" in vars(ConstantVariable):
        patches.put(ConstantVariable, "nb_int_impl", nb_int_impl)


def hook_scaled(patches: Patches, is_ours: IsOurs) -> None:
    """Record ``x.add_(y, alpha=2.5)`` and its like as they are.

    Dynamo makes a product and a sum of them, which rounds otherwise, and takes a number that eager
    finds too large for the dtype. ``is_ours`` is called with a translator.
    """

    def scaled(name: str, theirs: Theirs, self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        number = kwargs.get(name)
        if number is None or is_any_tensor(realized(number)) or not is_ours(tx):
            return theirs(self, tx, *args, **kwargs)
        return None  # then it is a call like any other

    for method, name in _SCALED.items():
        patches.put(TensorVariable, method, functools.partial(scaled, name))


def hook_formatted(patches: Patches, is_ours: IsOurs) -> None:
    """Trace a varying number in an f-string as text. ``is_ours`` is called with a translator.

    Up to torch 2.13 ``text = f"{n}"`` with an argument ``n`` stays that argument: ``text + text``
    adds two numbers, and what returns ``text`` returns a number. Up to torch 2.15 a format is
    applied to the number's text, which is aligned otherwise (``f"{n:8}"``) or has no such format
    (``f"{n:.2f}"``).
    """

    def format_value(theirs: Theirs, self: Any, spec: Any, flags: int) -> Any:
        number = realized(self.stack[-1])
        if isinstance(number, SymNodeVariable) and is_ours(self):
            shown: Any = copy.copy(number)
            shown.source = None
            setattr(shown, _CONVERSION, _CONVERSIONS[flags & 3])
            self.stack[-1] = shown
        return theirs(self, spec, flags)

    def text(theirs: Theirs, self: Any) -> Any:
        number = self.sym_node_var
        if not hasattr(number, _CONVERSION):
            return theirs(self)
        value, convert = number.evaluate_expr(), getattr(number, _CONVERSION)
        return self.fmt_var.as_python_constant().format(convert(value) if convert else value)

    patches.put(InstructionTranslatorBase, "_format_value", format_value)
    patches.put(LazySymNodeFormatString, "__repr__", text)


def hook_keys(patches: Patches, is_ours: IsOurs) -> None:
    """Know the text of a key, or break the graph where it is looked up.

    Up to torch 2.15 a text that is formatted behind the graph is a key by itself:
    ``table.get(f"{n}")`` does not find ``"6"`` in ``table`` for an ``n`` of 6, nor does
    ``"6" in {f"{n}"}``.
    """

    def init(theirs: Theirs, self: Any, value: Any) -> None:
        if _varies(value):
            translator = InstructionTranslator.current_tx()
            if is_ours(translator.output):
                value = _as_known(translator, value)
        theirs(self, value)

    patches.put(_key_class(), "__init__", init)


def _key_class() -> Any:
    """Dynamo's class around keys of dicts and members of sets."""
    try:
        from torch._dynamo.variables.hashable import HashableTracker
    except ImportError:  # up to torch 2.12
        dict_class: Any = dicts.ConstDictVariable
        return dict_class._HashableTracker
    return HashableTracker


def _varies(value: Any) -> bool:
    """Whether a key is, or holds, a text that is formatted behind the graph."""
    held = value.items if isinstance(value, TupleVariable) else ()
    return isinstance(value, StringFormatVariable) or any(map(_varies, held))


def _as_known(translator: Any, value: Any) -> Any:
    """A key with its texts as constants; what they show is asked for, as where Python tests it."""
    if isinstance(value, TupleVariable):
        return value.clone(items=[_as_known(translator, one) for one in value.items])
    if isinstance(value, SymNodeVariable):
        return constant(value.evaluate_expr(translator.output))
    if not isinstance(value, StringFormatVariable):
        return value
    positional = [_as_known(translator, realized(one)) for one in value.sym_args]
    named = {name: _as_known(translator, realized(v)) for name, v in value.sym_kwargs.items()}
    if not all(one.is_python_constant() for one in (*positional, *named.values())):
        break_graph("Text of a tensor as a key", "the text of a tensor is a key", (), repr(value))
    shown = {name: one.as_python_constant() for name, one in named.items()}
    text = value.format_string.format(*(one.as_python_constant() for one in positional), **shown)
    return constant(text)


def hook_tensorified(patches: Patches, is_ours: IsOurs) -> None:
    """Keep writes to numbers that Dynamo passes to a graph as 0-d float64 inputs.

    Where Dynamo traces a frame a second time, with a number as a constant that was read from one,
    it takes the input's node out if nothing but ``item`` reads it. Up to torch 2.13 it looks at all
    nodes in that way: a write (``self.steps.add_(1)``) carries the number of what it writes, has no
    reader, and is gone.
    """

    def of_inputs(theirs: Theirs, self: Any) -> Any:
        if not is_ours(self):
            return theirs(self)
        hidden = [
            (node, node.meta.pop("example_value"))
            for node in self.graph.nodes
            if node.op != "placeholder" and "example_value" in node.meta
        ]
        try:
            return theirs(self)
        finally:
            for node, value in hidden:
                node.meta["example_value"] = value

    patches.put(OutputGraph, "remove_tensorify_specialized_graphargs", of_inputs)
