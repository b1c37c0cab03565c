"""What the schema of an operator says of a call: its arguments by name, and what it may return.

Arguments that equal their default are left out.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import fx

# --- What an argument of a recorded call is: tensor, number or size; and when two are one value ---

_NUMBERS = (int, float, complex, bool, torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True)
class SymbolicSize:
    """A symbolic number as an argument of a recorded call (FX holds no raw ``SymInt``)."""

    size: torch.SymInt | torch.SymFloat


def as_hashable(value: Any) -> Any:
    """FX's immutable lists and dicts as tuples, so that values compare and hash."""
    if isinstance(value, slice):
        return ("slice", *map(as_hashable, (value.start, value.stop, value.step)))
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return tuple(map(as_hashable, value))
    return tuple(value) if isinstance(value, torch.Size) else value


def is_number(value: Any) -> bool:
    """Whether an argument is a number, symbolic ones and nodes that hold one included."""
    if isinstance(value, fx.Node):
        value = value.meta.get("example_value", value.meta.get("val"))
    return isinstance(value, (*_NUMBERS, SymbolicSize))


def is_tensor(value: Any) -> bool:
    """Whether an argument is a tensor, or a node that may hold one."""
    if isinstance(value, fx.Node):
        held = value.meta.get("example_value", value.meta.get("val"))
        return held is None or isinstance(held, torch.Tensor)
    return isinstance(value, torch.Tensor)


def is_default(value: Any, default: Any) -> bool:
    """Whether an argument is what it would be if it were not given."""
    if isinstance(value, tuple) and isinstance(default, tuple):
        return len(value) == len(default) and all(map(is_default, value, default))
    return value is default or (
        type(value) is type(default) and isinstance(value, (int, float, str)) and value == default
    )


REQUIRED = object()  # stands for the default of a parameter that has none
RECEIVER = "self"
_COMMON_NAMES = {"input": RECEIVER, "training": "train", "axis": "dim", "keepdims": "keepdim"}

Arguments = tuple[tuple[str, Any], ...]


class Parameter(NamedTuple):
    """One argument of a schema."""

    name: str
    kind: str  # tensor, tensor?, tensors, number, bool, ints, other
    default: Any
    by_keyword: bool
    length: int  # of a list of fixed length, else 0


def common_argument_name(name: str) -> str:
    """One name for what ATen and ``torch.nn.functional`` name differently."""
    return _COMMON_NAMES.get(name, name)


@functools.lru_cache(maxsize=2048)
def schemas_of_op(op: str) -> tuple[Any, ...]:
    """Schemas of the functional overloads of an ATen operation that take tensors."""
    for namespace in (torch.ops.aten, torch.ops.prims):
        packet = getattr(namespace, op, None)
        if packet is not None:
            return _usable(packet)
    return ()


def schemas_of_target(target: Any) -> tuple[Any, ...]:
    """Schemas of a registered operator, whichever its library."""
    schema = getattr(target, "_schema", None)
    return (schema,) if schema is not None else _usable(getattr(target, "_opoverload", target))


def _usable(packet: Any) -> tuple[Any, ...]:
    if hasattr(packet, "_schema"):
        return (packet._schema,)
    found = []
    for name in packet.overloads():
        schema = getattr(packet, name)._schema
        types = [str(argument.type) for argument in schema.arguments]
        named = any(
            "str" in t and "dim" in a.name for t, a in zip(types, schema.arguments, strict=True)
        )
        if any("Tensor" in t for t in types) and "out" not in name and not named:
            found.append(schema)
    return tuple(found)


def parameters_of(schema: Any) -> list[Parameter]:
    """The arguments of a schema; read once."""
    held = _PARAMETERS.get(id(schema))
    if held is None or held[0] is not schema:
        held = _PARAMETERS[id(schema)] = (schema, [*map(_parameter, schema.arguments)])
    return held[1]


_PARAMETERS: dict[int, tuple[Any, list[Parameter]]] = {}


def _parameter(argument: Any) -> Parameter:
    default = argument.default_value if argument.has_default_value() else REQUIRED
    if isinstance(default, list):
        default = tuple(default)
    length = argument.N if isinstance(argument.N, int) else 0
    kind = _kind(str(argument.type))
    if kind == "ints" and length and isinstance(default, int):
        default = (default,)
    if kind == "ints" and length and isinstance(default, tuple) and len(default) == 1:
        default = default * length
    return Parameter(
        common_argument_name(argument.name), kind, default, argument.kwarg_only, length
    )


def _kind(text: str) -> str:
    if "List[" in text:
        if "Tensor" in text:
            return "tensors"
        return "ints" if "int" in text else "other"
    if "Tensor" in text:
        return "tensor?" if "Optional" in text else "tensor"
    if text == "bool":  # takes no other number: x.var(0) is over a dimension
        return "bool"
    return "number" if text in ("number", "int", "float") else "other"


def bind_arguments(
    schemas: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any], *, method: bool = False
) -> Arguments | None:
    """Arguments by name under the first schema that takes them; None if none does.

    The first argument of a ``method`` is ``self``, wherever the schema has it: ``m.where(c, x)`` is
    ``where(c, m, x)``.
    """
    for schema in schemas:
        found = _bind_to(parameters_of(schema), args, kwargs, method)
        if found is not None:
            return found
    return None


def _bind_to(
    parameters: list[Parameter], args: tuple[Any, ...], kwargs: dict[str, Any], method: bool
) -> Arguments | None:
    positional = [p for p in parameters if not p.by_keyword]
    if method:
        positional.sort(key=lambda p: p.name != RECEIVER)
        if not positional or positional[0].name != RECEIVER:
            return None
    values = _with_sizes_joined(positional, args)
    if len(values) > len(positional):
        return None
    given = {p.name: v for p, v in zip(positional, values, strict=False)}
    names = {p.name for p in parameters}
    for name, value in kwargs.items():
        key = name if name in names else common_argument_name(name)
        if key not in names or key in given:
            return None
        given[key] = value
    found = []
    for name, kind, default, _, length in parameters:
        if name not in given:
            if default is REQUIRED:
                return None
            continue
        value = given[name]
        if kind == "ints" and not isinstance(value, tuple) and value is not None:
            value = (value,)
        if kind == "ints" and length and value is not None and len(value) == 1:
            value = value * length  # one number for all dimensions
        if not _fits(kind, value):
            return None
        if value is None and kind == "ints" and given.keys() == {RECEIVER, name}:
            continue  # over all dimensions, as without
        if not is_default(value, default):
            found.append((name, value))
    return tuple(found)


def _with_sizes_joined(positional: list[Parameter], args: tuple[Any, ...]) -> list[Any]:
    """Sizes given one by one (``x.view(2, 3)``) as the list the schema has."""
    values = list(args)
    place = next((i for i, p in enumerate(positional) if p.kind == "ints"), len(values))
    rest = values[place:]
    too_many = rest and len(values) > len(positional) and not isinstance(rest[0], tuple)
    if too_many and all(is_number(v) or not isinstance(v, fx.Node) for v in rest):
        values[place:] = [tuple(rest)]
    return values


def _fits(kind: str, value: Any) -> bool:
    if kind == "tensor":
        return is_tensor(value)
    if kind == "tensor?":
        return value is None or is_tensor(value)
    if kind == "number":
        return is_number(value) or (isinstance(value, fx.Node) and not is_tensor(value))
    if kind == "bool":
        if isinstance(value, fx.Node):
            value = value.meta.get("example_value", value.meta.get("val"))
        return isinstance(value, (bool, torch.SymBool))
    if kind == "ints":
        return value is None or isinstance(value, tuple)
    return not (kind == "tensors" and not isinstance(value, (tuple, fx.Node)))


# --- Which operations may return an operand, or a view of one -------------------------------------

# Those that torch's schemas say nothing about.
_MAY = frozenset(
    """bfloat16 bool byte char cpu cuda double float half int long numpy short type type_as
    requires_grad_ pin_memory""".split()
)


@functools.lru_cache(maxsize=4096)
def may_return_an_operand(name: str) -> bool:
    """Whether a function or method of this name may; what torch does not know counts as such."""
    if name in _MAY or name.endswith("_") or "dropout" in name:
        return True
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return not (hasattr(torch, name) or hasattr(torch.nn.functional, name))
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
    aliases = (result.alias_info for one in schemas for result in one.returns)
    return any(alias is not None and not alias.is_write for alias in aliases)  # no ``out``
