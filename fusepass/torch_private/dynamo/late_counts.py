"""Add to a number behind the graph: ``self.count += 1`` in an arm, without a guard on its value.

Dynamo takes the value of a Python number that the program computes with as a constant of the graph,
and traces the function again when it has changed. A sum of such a number and a constant that only
leaves the frame is computed behind the graph instead. Code that looks at it gets Dynamo's own
value. Run on torch 2.11 to 2.15.
"""

from __future__ import annotations

import dis
import inspect
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import symbolic_convert
from torch._dynamo.bytecode_transformation import create_call_function
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.variables import ConstantVariable, LazyVariableTracker
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.lazy import LazyCache, LazyConstantVariable

from fusepass.torch_private.dynamo.side_effects import is_plain_object
from fusepass.torch_private.dynamo.stack import constant_of, current_translator
from fusepass.torch_private.patches import Patches, Theirs

_FUNCTIONS = {"+": operator.add, "-": operator.sub, "+=": operator.add, "-=": operator.sub}
_NUMBERS = (int, float)


class _SumCache(LazyCache):
    """Makes Dynamo's own value of the sum where code looks at it."""

    def __init__(self, function: Any, number: Any, operand: Any) -> None:
        self.function, self.number, self.operand = function, number, operand
        self.value = function(number.peek_value(), constant_of(operand)[1])
        self.source = self.name_hint = self.source_location = None
        self.vt: Any = None

    def realize(self) -> None:
        translator = current_translator()
        adding = VariableTracker.build(translator, self.function)
        self.vt = adding.call_function(translator, [self.number.realize(), self.operand], {})


class SumVariable(LazyVariableTracker):
    """The sum of a number that the program has not looked at and a constant."""

    _nonvar_fields = {*LazyVariableTracker._nonvar_fields}  # noqa: RUF012

    def python_type(self) -> type:
        """The class of the sum, which the guard on the number's class fixes."""
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

    def reconstruct(self, codegen: Any) -> None:
        """Write the code that computes it."""
        if self.is_realized():
            codegen(self.realize())
            return
        held: Any = self._cache
        codegen.add_push_null(lambda: codegen.load_import_from("operator", held.function.__name__))
        codegen(held.number.source)
        codegen(held.operand)
        codegen.extend_output(create_call_function(2, False))


def hook_counts(patches: Patches, in_arm: Callable[[Any], bool]) -> None:
    """Compute such sums behind the graph where ``in_arm`` says so of the output graph."""

    def add(theirs: Theirs, translator: Any, instruction: Any) -> None:
        made = _sum(translator, instruction) if in_arm(translator.output) else None
        if made is None:
            theirs(translator, instruction)
        else:
            translator.stack[-2:] = [made]

    def store(theirs: Theirs, translator: Any, instruction: Any) -> None:
        value, owner = translator.stack[-2:]
        name = instruction.argval
        if isinstance(value, SumVariable) and _binds_only(owner, name):
            translator.output.side_effects.store_attr(owner.realize(), name, value)
            del translator.stack[-2:]
        else:
            theirs(translator, instruction)

    base = symbolic_convert.InstructionTranslatorBase
    tables = {id(kind.dispatch_table): kind.dispatch_table for kind in (base, *_below(base))}
    for table in tables.values():
        patches.put_into(table, dis.opmap["BINARY_OP"], add)
        patches.put_into(table, dis.opmap["STORE_ATTR"], store)


def _sum(translator: Any, instruction: Any) -> SumVariable | None:
    function = _FUNCTIONS.get(instruction.argrepr or dis._nb_ops[instruction.arg][1])  # type: ignore[attr-defined]
    number, operand = translator.stack[-2:]
    if function is None or type(number) is not LazyConstantVariable or number.is_realized():
        return None
    known, python = constant_of(operand)
    if not known or type(python) not in _NUMBERS or type(number.peek_value()) not in _NUMBERS:
        return None
    source: Any = number.source
    install_guard(source.make_guard(GuardBuilder.TYPE_MATCH))
    return SumVariable(_SumCache(function, number, operand))


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


def _below(kind: type) -> list[Any]:
    direct: list[Any] = kind.__subclasses__()
    return direct + [deeper for sub in direct for deeper in _below(sub)]
