"""The normal form of one call: which operation, and every argument under its schema name.

``F.softmax(x, -1)``, ``torch.softmax(input=x, dim=-1)``, ``x.softmax(-1)`` and the ATen call have
one normal form. Arguments equal to their default are left out, so that giving a default and not
giving it are the same call; an in-place spelling is its operation with ``inplace`` set beside it.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusepass.graph.ops.op_names import REFLECTED_METHODS, op_name
from fusepass.graph.ops.schemas import (
    RECEIVER,
    REQUIRED,
    Arguments,
    as_hashable,
    bind_arguments,
    common_argument_name,
    is_default,
    is_number,
    is_tensor,
    parameters_of,
    schemas_of_op,
    schemas_of_target,
)
from fusepass.torch_private.fx.graphs import operator_name

_REFLECTED = {"sub": "rsub", "div": "rdiv", "floor_divide": "rfloor_divide", "remainder": "rrem"}
_PLAIN_OF = {reflected: op for op, reflected in _REFLECTED.items()}
_COMMUTES_WITH_NUMBER = frozenset("add mul eq ne bitwise_and bitwise_or bitwise_xor".split())
_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
_SWAPPED_OPERANDS = {op: op for op in _COMMUTES_WITH_NUMBER} | _REFLECTED | _MIRRORED
_SPELLINGS = {turned: op for op, turned in _SWAPPED_OPERANDS.items() if turned != op}
_IGNORED = frozenset("inplace _stacklevel".split())
_PROPERTIES = frozenset("T mT H mH real imag".split())


@dataclass(frozen=True)
class NormalCall:
    """A call in normal form.

    Attributes:
        op: canonical name; operators of other libraries keep their namespace (``lib::op``).
        args: parameter name to value (nodes, numbers, tuples), in the order of the schema and
            without those equal to their default.
        inplace: whether the call writes its first argument.
    """

    op: str
    args: Arguments
    inplace: bool = False


def normal_call(node: fx.Node) -> NormalCall | None:
    """Normal form of a node's call; None for anything but a call of a known operation."""
    if node.op not in ("call_function", "call_method"):
        return None
    args = tuple(map(as_hashable, node.args))
    kwargs = {name: as_hashable(value) for name, value in node.kwargs.items()}
    if node.target is getattr:
        known = len(args) > 1 and args[1] in _PROPERTIES
        return NormalCall(str(args[1]), ((RECEIVER, args[0]),)) if known else None
    registered = operator_name(node.target)
    if registered is not None and registered[0] not in ("aten", "prims"):
        named = bind_arguments(schemas_of_target(node.target), args, kwargs)
        return NormalCall("::".join(registered), named) if named is not None else None
    method = node.op == "call_method"
    name = op_name(node)
    if method and name in REFLECTED_METHODS and len(args) + len(kwargs) == 2:
        name, args = REFLECTED_METHODS[name], (*args, *kwargs.values())[::-1]
        method, kwargs = False, {}
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
    # A further argument applies to one side: 2 + 3 * x is no x + 3 * 2.
    turns = op in _SWAPPED_OPERANDS and not (op in _COMMUTES_WITH_NUMBER and kwargs)
    if turns and len(args) >= 2 and is_number(args[0]) and is_tensor(args[1]):
        op, args = _SWAPPED_OPERANDS[op], (args[1], args[0], *args[2:])
    named = bind_arguments(_schemas(op), args, kwargs, method=method)
    if named is not None and "pool" in op:
        named = _with_stride(named)
    if named is None:
        loose = [(str(position), value) for position, value in enumerate(args)]
        named = (*loose, *((common_argument_name(k), v) for k, v in sorted(kwargs.items())))
    return NormalCall(op, named, inplace)


def default_of(op: str, name: str) -> Any:
    """What an argument of an operation is when it is not given; :data:`REQUIRED` if it must be."""
    for schema in _schemas(op):
        for parameter in parameters_of(schema):
            if parameter.name == name and parameter.default is not REQUIRED:
                return parameter.default
    # ATen must be given what a function of torch.nn.functional has a default for: p of dropout.
    signature = _signature(getattr(torch.nn.functional, op, None))
    for key, value in signature.parameters.items() if signature is not None else ():
        if common_argument_name(key) == name and value.default is not value.empty:
            return value.default
    return REQUIRED


def call_names(op: str) -> frozenset[str]:
    """Canonical names of the calls whose normal form can be ``op``."""
    return frozenset({op, _SPELLINGS.get(op, op)})


def _schemas(op: str) -> tuple[Any, ...]:
    return schemas_of_op(_PLAIN_OF.get(op, op))


def _with_stride(named: Arguments) -> Arguments:
    """Windows of pooling move by their own size unless told otherwise."""
    given = dict(named)
    if "kernel_size" in given and not given.get("stride"):
        given["stride"] = given["kernel_size"]
    return tuple(sorted(given.items()))


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
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return None
    if any(
        p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and name in given
        for name, p in signature.parameters.items()
    ):
        rest = {k: v for k, v in kwargs.items() if not (k == "return_indices" and v is False)}
        return args, rest, False
    kept = {
        name: value
        for name, value in given.items()
        if name not in _IGNORED and not is_default(value, signature.parameters[name].default)
    }
    return (), kept, bool(given.get("inplace", False))
