"""Compute with a number behind the graph: ``self.count += 1`` in an arm, without a guard on it.

Dynamo takes the value of a Python number that the program computes with as a constant of the graph,
and traces the function again when it has changed. What is computed from such a number and from
constants, and only leaves the frame, is computed behind the graph instead. Code that looks at it
gets Dynamo's own value. Run on torch 2.11 to 2.15.
"""

from __future__ import annotations

import dis
import inspect
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import utils
from torch._dynamo.bytecode_transformation import create_call_function
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.variables import ConstantVariable, LazyVariableTracker
from torch._dynamo.variables.lazy import LazyCache, LazyConstantVariable

from fusepass.torch_private.dynamo.phi import dispatch_tables
from fusepass.torch_private.dynamo.side_effects import is_namespace, is_plain_object
from fusepass.torch_private.dynamo.stack import constant_of, current_translator, traced_operator
from fusepass.torch_private.patches import Patches, Theirs

_FUNCTIONS = {
    **dict.fromkeys(("+", "+="), operator.add),
    **dict.fromkeys(("-", "-="), operator.sub),
    **dict.fromkeys(("*", "*="), operator.mul),
    **dict.fromkeys(("/", "/="), operator.truediv),
}
_NUMBERS = (int, float)


class _ResultCache(LazyCache):
    """Makes Dynamo's own value of the result where code looks at it."""

    def __init__(self, function: Any, operands: tuple[Any, Any]) -> None:
        self.function, self.operands = function, operands
        self.value = function(*map(_python_value, operands))
        self.source = self.name_hint = self.source_location = None
        self.vt: Any = None

    def realize(self) -> None:
        operands = [operand.realize() for operand in self.operands]
        # No call of the function: torch 2.15 would trace into its Python form, and does not do so
        # while it writes the code behind the graph.
        self.vt = traced_operator(current_translator(), self.function, operands)


class LateResultVariable(LazyVariableTracker):
    """What is computed from a number that the program has not looked at and from constants."""

    _nonvar_fields = {*LazyVariableTracker._nonvar_fields}  # noqa: RUF012

    def python_type(self) -> type:
        """The class of the result, which the guard on the number's class fixes."""
        return type(self.peek_value()) if not self.is_realized() else self.realize().python_type()

    def lazy_isinstance(self, cls: type) -> bool:
        """Whether Dynamo's own value would be of a class of Dynamo's."""
        if self.is_realized():
            return type.__instancecheck__(cls, self.realize())
        return issubclass(ConstantVariable, cls)

    def is_tensor(self) -> bool:
        """Never."""
        return False

    def is_python_constant(self) -> bool:
        """Whether code has looked at it, and it is a constant of the graph for that."""
        return self.is_realized() and bool(self.realize().is_python_constant())

    def as_python_constant(self) -> Any:
        """The value, if it is a constant; what asks whether a tuple is one does not look at it."""
        if not self.is_realized():
            raise NotImplementedError("a number that is computed behind the graph is no constant")
        return self.realize().as_python_constant()

    def reconstruct(self, codegen: Any) -> None:
        """Write the code that computes it."""
        if self.is_realized():
            codegen(self.realize())
            return
        held: Any = self._cache
        codegen.add_push_null(lambda: codegen.load_import_from("operator", held.function.__name__))
        for operand in held.operands:
            given = type(operand) is LazyConstantVariable and not operand.is_realized()
            codegen(operand.source if given else operand)
        codegen.extend_output(create_call_function(2, False))


def hook_counts(patches: Patches, in_arm: Callable[[Any], bool]) -> None:
    """Compute such results behind the graph where ``in_arm`` says so of the output graph."""

    def add(theirs: Theirs, translator: Any, instruction: Any) -> None:
        made = _result(translator, instruction) if in_arm(translator.output) else None
        if made is None:
            theirs(translator, instruction)
        else:
            translator.stack[-2:] = [made]

    def store(theirs: Theirs, translator: Any, instruction: Any) -> None:
        value, owner = translator.stack[-2:]
        name = instruction.argval
        if isinstance(value, LateResultVariable) and _binds_only(owner, name):
            translator.output.side_effects.store_attr(owner.realize(), name, value)
            del translator.stack[-2:]
            return
        if isinstance(value, LateResultVariable) and is_namespace(owner.realize()):
            translator.stack[-2] = value.realize()  # Dynamo binds nothing else to a class
        theirs(translator, instruction)

    def specialize(theirs: Theirs, value: Any) -> Any:  # a slice asks for the number itself
        return theirs(value.realize() if isinstance(value, LateResultVariable) else value)

    patches.put(utils, "specialize_symnode", specialize)
    for table in dispatch_tables():
        patches.put_into(table, dis.opmap["BINARY_OP"], add)
        patches.put_into(table, dis.opmap["STORE_ATTR"], store)


def _result(translator: Any, instruction: Any) -> LateResultVariable | None:
    function = _FUNCTIONS.get(instruction.argrepr or dis._nb_ops[instruction.arg][1])  # type: ignore[attr-defined]
    first, second = operands = tuple(translator.stack[-2:])
    late = [operand for operand in operands if _is_late(operand)]
    if function is None or not late or not all(_is_late(one) or _is_known(one) for one in operands):
        return None
    if any(type(_python_value(operand)) not in _NUMBERS for operand in operands):
        return None
    if function is operator.truediv and (_is_late(second) or _python_value(second) == 0):
        return None  # it may raise
    for operand in late:
        if type(operand) is LazyConstantVariable:
            source: Any = operand.source
            install_guard(source.make_guard(GuardBuilder.TYPE_MATCH))
    try:
        return LateResultVariable(_ResultCache(function, (first, second)))
    except ArithmeticError:
        return None


def is_late_number(value: Any) -> bool:
    """Whether a tracked value is a number that no guard depends on so far."""
    return _is_late(value) and type(_python_value(value)) in _NUMBERS


def _is_late(operand: Any) -> bool:
    """Whether a value is a number that the program has not looked at, or computed from such."""
    return type(operand) in (LazyConstantVariable, LateResultVariable) and not operand.is_realized()


def _is_known(operand: Any) -> bool:
    return bool(constant_of(operand)[0])


def _python_value(operand: Any) -> Any:
    return operand.peek_value() if _is_late(operand) else constant_of(operand)[1]


def _binds_only(owner: Any, name: str) -> bool:
    """Whether to bind a number to an attribute of an object runs no code of its class."""
    held = owner.realize()
    real = getattr(held, "value", None)
    if not is_plain_object(held) or name not in getattr(real, "__dict__", {}):
        return False
    binds = inspect.getattr_static(type(real), "__setattr__", None)
    of_class = inspect.getattr_static(type(real), name, None)
    known = (object.__setattr__, torch.nn.Module.__setattr__)
    return binds in known and not hasattr(of_class, "__set__")
