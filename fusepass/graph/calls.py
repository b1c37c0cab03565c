"""The normal form of one call: which operation, and every argument under its schema name.

``F.softmax(x, -1)``, ``torch.softmax(input=x, dim=-1)``, ``x.softmax(-1)`` and the ATen call have
one normal form. Arguments equal to their default are left out, so that giving a default and not
giving it are the same call; an in-place spelling is its operation with ``inplace`` set beside it.
"""

from __future__ import annotations

import functools
import inspect
import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusepass import torch_private
from fusepass.graph.canonical import op_name

REQUIRED = object()
_NUMBERS = (int, float, complex, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
_REFLECTED = {"sub": "rsub", "div": "rdiv", "floor_divide": "rfloor_divide", "remainder": "rrem"}
_COMMUTES_WITH_NUMBER = frozenset("add mul eq ne bitwise_and bitwise_or bitwise_xor".split())
_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
_IGNORED = frozenset("inplace _stacklevel".split())
_RENAMED = {"input": "self", "training": "train", "self": "self"}
_PROPERTIES = frozenset("T mT H mH real imag".split())


@dataclass(frozen=True)
class SymbolicSize:
    """A symbolic number as an argument of a recorded call (FX holds no raw ``SymInt``)."""

    size: torch.SymInt | torch.SymFloat


@dataclass(frozen=True)
class Call:
    """A call in normal form.

    Attributes:
        op: canonical name; operators of other libraries keep their namespace (``lib::op``).
        args: parameter name to value (nodes, numbers, tuples), in the order of the schema and
            without those equal to their default.
        inplace: whether the call writes its first argument.
    """

    op: str
    args: tuple[tuple[str, Any], ...]
    inplace: bool = False


def call_of(node: fx.Node) -> Call | None:
    """Normal form of a node's call; None for anything but a call of a known operation."""
    if node.op not in ("call_function", "call_method"):
        return None
    args = tuple(map(_plain, node.args))
    kwargs = {name: _plain(value) for name, value in node.kwargs.items()}
    if node.target is getattr:
        known = len(args) > 1 and args[1] in _PROPERTIES
        return Call(str(args[1]), (("self", args[0]),)) if known else None
    registered = torch_private.operator_name(node.target)
    if registered is not None and registered[0] not in ("aten", "prims"):
        named = _by_schema(_schemas_of(node.target), args, kwargs)
        return Call("::".join(registered), named) if named is not None else None
    name = op_name(node)
    if name is None:
        return None
    inplace = name.endswith("_") and not name.endswith("__")
    op = name[:-1] if inplace else name.strip("_")
    signature = _signature(node.target) if node.op == "call_function" else None
    if signature is not None:
        given = _by_signature(signature, args, kwargs)
        if given is None:
            return None
        args, kwargs, flag = given
        inplace = inplace or flag
    if op in _COMMUTES_WITH_NUMBER | _REFLECTED.keys() | _MIRRORED.keys() and _number_first(args):
        op, args = _REFLECTED.get(op, _MIRRORED.get(op, op)), (args[1], args[0], *args[2:])
    named = _by_schema(_schemas(_plain_op(op)), args, kwargs)
    if named is not None and "pool" in op:
        named = _with_stride(named)
    if named is None:
        loose = [(str(position), value) for position, value in enumerate(args)]
        named = (*loose, *((_RENAMED.get(k, k), v) for k, v in sorted(kwargs.items())))
    return Call(op, named, inplace)


def _with_stride(named: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, Any], ...]:
    """Windows of pooling move by their own size unless told otherwise."""
    given = dict(named)
    if "kernel_size" in given and not given.get("stride"):
        given["stride"] = given["kernel_size"]
    return tuple(sorted(given.items()))


def default_of(op: str, name: str) -> Any:
    """What an argument of an operation is when it is not given; :data:`REQUIRED` if it must be."""
    for schema in _schemas(_plain_op(op)):
        for parameter, _, default, *_ in _parameters(schema):
            if parameter == name and default is not operator:
                return default
    return REQUIRED


def _plain_op(op: str) -> str:
    reflected = {reflected: plain for plain, reflected in _REFLECTED.items()}
    return reflected.get(op, op)


def _plain(value: Any) -> Any:
    """FX's immutable lists and dicts as tuples, so that values compare and hash."""
    if isinstance(value, slice):
        return ("slice", *map(_plain, (value.start, value.stop, value.step)))
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return tuple(map(_plain, value))
    return tuple(value) if isinstance(value, torch.Size) else value


def _number_first(args: tuple[Any, ...]) -> bool:
    return len(args) >= 2 and _is_number(args[0]) and _is_tensor(args[1])


def _is_number(value: Any) -> bool:
    if isinstance(value, fx.Node):
        value = value.meta.get("example_value", value.meta.get("val"))
    return isinstance(value, (*_NUMBERS, SymbolicSize))


def _is_tensor(value: Any) -> bool:
    if isinstance(value, fx.Node):
        held = value.meta.get("example_value", value.meta.get("val"))
        return held is None or isinstance(held, torch.Tensor)
    return isinstance(value, torch.Tensor)


@functools.lru_cache(maxsize=2048)
def _signature(target: Any) -> inspect.Signature | None:
    """Signature of a function of ``torch.nn.functional`` written in Python, else None."""
    if not inspect.isfunction(target) or not str(target.__module__).startswith("torch."):
        return None
    try:
        return inspect.signature(target)
    except (TypeError, ValueError):
        return None


def _by_signature(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], bool] | None:
    """Arguments by name without those equal to the Python default, and the ``inplace`` flag."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return None
    if any(
        p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and name in bound.arguments
        for name, p in signature.parameters.items()
    ):
        rest = {k: v for k, v in kwargs.items() if not (k == "return_indices" and v is False)}
        return args, rest, False
    inplace = bool(bound.arguments.get("inplace", False))
    kept = {}
    for name, value in bound.arguments.items():
        default = signature.parameters[name].default
        if name not in _IGNORED and not (default is not inspect._empty and _same(value, default)):
            kept[name] = value
    return (), kept, inplace


def _same(value: Any, default: Any) -> bool:
    if isinstance(value, tuple) and isinstance(default, tuple):
        return len(value) == len(default) and all(map(_same, value, default))
    return value is default or (
        type(value) is type(default) and isinstance(value, (int, float, str)) and value == default
    )


@functools.lru_cache(maxsize=2048)
def _schemas(op: str) -> tuple[Any, ...]:
    """Schemas of the functional overloads of an ATen operation that take tensors."""
    for namespace in (torch.ops.aten, torch.ops.prims):
        packet = getattr(namespace, op, None)
        if packet is not None:
            return _usable(packet)
    return ()


def _schemas_of(target: Any) -> tuple[Any, ...]:
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


def _by_schema(
    schemas: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[str, Any], ...] | None:
    for schema in schemas:
        bound = _bind(schema, args, kwargs)
        if bound is not None:
            return bound
    return None


def _bind(
    schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[str, Any], ...] | None:
    parameters = _parameters(schema)
    positional = [p for p in parameters if not p[3]]
    values = list(args)
    for index, (_, kind, _, _, _) in enumerate(positional):
        if kind == "ints" and index < len(values) and not isinstance(values[index], tuple):
            rest = values[index:]
            if len(values) > len(positional) and all(not _is_tensor_node(v) for v in rest):
                values[index:] = [tuple(rest)]  # x.view(2, 3)
            break
    if len(values) > len(positional):
        return None
    given = {p[0]: v for p, v in zip(positional, values, strict=False)}
    names = {p[0] for p in parameters}
    for name, value in kwargs.items():
        key = name if name in names else _RENAMED.get(name, name)
        if key not in names or key in given:
            return None
        given[key] = value
    bound = []
    for name, kind, default, _, length in parameters:
        if name not in given:
            if default is operator:  # required
                return None
            continue
        value = given[name]
        if kind == "ints" and not isinstance(value, tuple) and value is not None:
            value = (value,)
        if kind == "ints" and length and value is not None and len(value) == 1:
            value = value * length  # one number for all dimensions
        if not _fits(kind, value):
            return None
        if not (default is not operator and (_same(value, default) or value is None is default)):
            bound.append((name, value))
    return tuple(bound)


def _is_tensor_node(value: Any) -> bool:
    return isinstance(value, fx.Node) and not _is_number(value)


def _parameters(schema: Any) -> list[tuple[str, str, Any, bool, int]]:
    """Name, kind, default, keyword-only, fixed length of each argument; read once per schema."""
    held = _PARAMETERS.get(id(schema))
    if held is None or held[0] is not schema:
        found = []
        for argument in schema.arguments:
            default = argument.default_value if argument.has_default_value() else operator
            if isinstance(default, list):
                default = tuple(default)
            name = _RENAMED.get(argument.name, argument.name)
            length = argument.N if isinstance(argument.N, int) else 0
            kind = _kind(str(argument.type))
            if kind == "ints" and length and isinstance(default, int):
                default = (default,)
            if kind == "ints" and length and isinstance(default, tuple) and len(default) == 1:
                default = default * length
            found.append((name, kind, default, argument.kwarg_only, length))
        held = _PARAMETERS[id(schema)] = (schema, found)
    return held[1]


_PARAMETERS: dict[int, tuple[Any, list[tuple[str, str, Any, bool, int]]]] = {}


def _kind(text: str) -> str:
    if "List[" in text:
        if "Tensor" in text:
            return "tensors"
        return "ints" if "int" in text else "other"
    if "Tensor" in text:
        return "tensor?" if "Optional" in text else "tensor"
    if text in ("number", "int", "float", "bool"):
        return "number"
    return "other"


def _fits(kind: str, value: Any) -> bool:
    if kind == "tensor":
        return _is_tensor(value)
    if kind == "tensor?":
        return value is None or _is_tensor(value)
    if kind == "number":
        return _is_number(value) or (isinstance(value, fx.Node) and not _is_tensor(value))
    if kind == "ints":
        return value is None or isinstance(value, tuple)
    return not (kind == "tensors" and not isinstance(value, (tuple, fx.Node)))
