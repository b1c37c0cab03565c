"""One name for one operation, however it was spelled.

``torch.add(a, b)``, ``a + b``, ``a.add(b)`` and ``torch.ops.aten.add.Tensor(a, b)`` all have the
canonical name ``"add"``. Tables elsewhere (totality, effects, backward safety) are keyed by it.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch
from torch import fx

from fusepass.torch_private.fx import graphs
from fusepass.torch_private.fx.graphs import is_builtin

_OPERATOR_NAMES = {
    "truediv": "div",
    "matmul": "matmul",
    "getitem": "getitem",
    "inv": "bitwise_not",
    "invert": "bitwise_not",
    "and_": "bitwise_and",
    "or_": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "and": "bitwise_and",
    "or": "bitwise_or",
}
# Under some versions of torch an operator arrives as the method Python calls for it.
_OPERATOR_METHODS = {
    f"__{name}__": _OPERATOR_NAMES.get(name, name)
    for name in (
        "add sub mul truediv floordiv mod pow matmul neg eq ne lt le gt ge and or xor invert "
        "lshift rshift"
    ).split()
}
# Methods that Python calls for an operator with a number in front of a tensor.
REFLECTED_METHODS = {
    f"__r{name}__": _OPERATOR_NAMES.get(name, name)
    for name in "add sub mul truediv div floordiv mod pow matmul and or xor lshift rshift".split()
}
_SYNONYMS = {
    "multiply": "mul",
    "subtract": "sub",
    "divide": "div",
    "true_divide": "div",
    "absolute": "abs",
    "negative": "neg",
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "not_equal": "ne",
    "clip": "clamp",
    "fix": "trunc",
    "arccos": "acos",
    "arcsin": "asin",
    "arctan": "atan",
    "arctan2": "atan2",
    "arccosh": "acosh",
    "arcsinh": "asinh",
    "arctanh": "atanh",
    "moveaxis": "movedim",
    "swapaxes": "transpose",
    "swapdims": "transpose",
    "concat": "cat",
    "concatenate": "cat",
    "special_erf": "erf",
    "special_erfc": "erfc",
    "special_erfinv": "erfinv",
    "special_exp2": "exp2",
    "special_expit": "sigmoid",
    "special_expm1": "expm1",
    "special_log1p": "log1p",
    "special_log_softmax": "log_softmax",
    "special_logit": "logit",
    "special_logsumexp": "logsumexp",
    "special_round": "round",
    "special_sinc": "sinc",
    "special_softmax": "softmax",
}
_TORCH_MODULES = ("torch", "_operator", "operator", "math", "builtins")
IN_PLACE_OPERATORS = frozenset(
    getattr(operator, name)
    for name in (
        "iadd isub imul itruediv ifloordiv imod ipow imatmul iand ior ixor ilshift irshift"
    ).split()
)


def op_name(node: fx.Node) -> str | None:
    """Canonical name of the operation of a call node, or None when it is not one of torch's.

    In-place spellings keep a trailing underscore (``add_``), so that they never look pure.
    A view as another dtype, which is no reshape, is ``view_dtype``.
    """
    if node.op == "call_method":
        name: str | None = _OPERATOR_METHODS.get(str(node.target), str(node.target))
        name = _SYNONYMS.get(str(name), name)
    elif node.op == "call_function":
        name = _function_name(node.target)
    else:
        return None
    given = (*node.args, *node.kwargs.values()) if name == "view" else ()
    if any(isinstance(arg, torch.dtype) for arg in given):
        return "view_dtype"
    return name


_DISPLAY_NAMES = {
    "getitem": "`x[…]`",
    "setitem": "`x[…] = y`",
    "__getitem__": "`x[…]`",
    "__setitem__": "`x[…] = y`",
    "_get_data_attr": "`.data`",
}


def display_name(name: str | None) -> str:
    """What a reason calls an operation: as the program spells it."""
    if name is None:
        return "a call"
    if name.startswith("wrapped_"):  # a function of NumPy's, as Dynamo has it in a graph
        return f"NumPy's {name.removeprefix('wrapped_')}"
    return _DISPLAY_NAMES.get(name, name)


@functools.lru_cache(maxsize=4096)  # every pass over a graph asks again
def _function_name(target: Any) -> str | None:
    if target in IN_PLACE_OPERATORS:
        plain = str(target.__name__)[1:]
        return _OPERATOR_NAMES.get(plain, plain) + "_"
    registered = graphs.operator_name(target)
    if registered is not None:
        namespace, operator_name = registered
        own = namespace in ("aten", "prims")
        return _SYNONYMS.get(operator_name, operator_name) if own else None
    name = getattr(target, "__name__", None)
    module = getattr(target, "__module__", None) or ""
    if not isinstance(name, str):
        return None
    if module.split(".")[0] not in _TORCH_MODULES and not is_builtin(target):
        return None
    if module in ("_operator", "operator"):
        name = _OPERATOR_NAMES.get(name, name)
    return _SYNONYMS.get(name, name)


def tensor_value(node: Any) -> torch.Tensor | None:
    """The fake tensor that stands for a node's result, or None."""
    if not isinstance(node, fx.Node):
        return None
    value = node.meta.get("example_value", node.meta.get("val"))
    return value if isinstance(value, torch.Tensor) else None


def argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    """An argument of a call by position or keyword."""
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, default)


def where_parts(node: fx.Node) -> tuple[Any, Any, Any] | None:
    """``(condition, value where true, value where false)`` of a ``where``, function or method.

    The method is called on the value where true. None for any other call, and for ``where`` with a
    condition alone.
    """
    if op_name(node) != "where":
        return None
    method = node.op == "call_method" or node.target is torch.Tensor.where
    order = ("input", "condition", "other") if method else ("condition", "input", "other")
    given = dict(zip(order, node.args, strict=False)) | dict(node.kwargs)
    if method and "self" in given:
        given["input"] = given.pop("self")
    if given.keys() != set(order):
        return None
    return given["condition"], given["input"], given["other"]
