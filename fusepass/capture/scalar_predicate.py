"""A predicate of Python numbers read from tensors, as a tensor that compares as Python would.

``x.item() > 1e-8`` compares a Python float, a double, whatever the dtype of x; ``n.item() > 2.5``
an integer with a float, exactly. The tensors are converted to what Python would hold before they
are compared: float64 for floating point, int64 for integers; an integer is compared with a float
through the next integer. What could overflow, or raise, is refused.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fusepass import torch_private
from fusepass.capture.refusal import Refusal
from fusepass.graph.canonical import tensor_value
from fusepass.report.decision import Reason

_COMPARED: dict[Any, Callable[..., Any]] = {
    operator.gt: torch.gt,
    operator.ge: torch.ge,
    operator.lt: torch.lt,
    operator.le: torch.le,
    operator.eq: torch.eq,
    operator.ne: torch.ne,
}
_MIRRORED = {
    operator.gt: operator.lt,
    operator.lt: operator.gt,
    operator.ge: operator.le,
    operator.le: operator.ge,
    operator.eq: operator.eq,
    operator.ne: operator.ne,
}
_ARITHMETIC = {operator.add: torch.add, operator.sub: torch.sub, operator.mul: torch.mul}
_INT64 = 2**63
_EXACT = 2**53  # integers up to here are doubles


def is_read_back(node: fx.Node) -> bool:
    """Whether a node is ``item()`` of a tensor."""
    return node.op == "call_method" and node.target == "item"


def comes_from_items(node: fx.Node) -> bool:
    """Whether a number is made of ``item()`` calls alone."""
    if is_read_back(node):
        return True
    sources = node.all_input_nodes
    return node.op == "call_function" and bool(sources) and all(map(comes_from_items, sources))


def predicate_of(translator: Any, node: fx.Node) -> Any:
    """Record the tensor that says what a Python condition on read-back numbers would say.

    Raises:
        Refusal: the condition has no exact form on tensors.
    """
    return _Conversion(translator).tensor(node)[1]


class _Conversion:
    """Converts one condition, node by node, into recorded tensor calls."""

    def __init__(self, translator: Any) -> None:
        self.translator = translator

    def tensor(self, node: fx.Node) -> tuple[str, Any]:
        """``(kind, tracked tensor)``: kind is ``bool``, ``int`` or ``float`` as in Python."""
        if is_read_back(node):
            return self._item(node)
        arguments = node.args
        if node.target in _COMPARED and len(arguments) == 2:
            return "bool", self._compared(node.target, *arguments)
        if node.target in _ARITHMETIC and len(arguments) == 2:
            return "float", self._arithmetic(node)
        if node.target in (operator.neg, operator.abs, abs):
            kind, value = self.tensor(arguments[0])  # type: ignore[arg-type]
            if kind == "float":
                call = torch.neg if node.target is operator.neg else torch.abs
                return kind, self._record(call, value)
        if node.target in (torch.sym_not, operator.not_):
            return "bool", self._record(torch.logical_not, self.tensor(arguments[0])[1])  # type: ignore[arg-type]
        if node.target is torch.sym_float:
            return "float", self._record(torch.Tensor.double, self.tensor(arguments[0])[1])  # type: ignore[arg-type]
        if node.target is torch.sym_int:  # of a float it rounds, and raises for NaN
            kind, value = self.tensor(arguments[0])  # type: ignore[arg-type]
            if kind == "int":
                return kind, value
        name = getattr(node.target, "__name__", str(node.target))
        raise Refusal(
            Reason.PREDICATE, f"a number read back goes through {name} before it is tested"
        )

    def _item(self, node: fx.Node) -> tuple[str, Any]:
        source = node.args[0]
        held = tensor_value(source)
        if held is None or held.dtype.is_complex or held.dtype is torch.uint64:
            raise Refusal(Reason.PREDICATE, "a number read back has no exact form on the device")
        value = torch_private.proxy_of(self.translator, source)  # type: ignore[arg-type]
        if held.dtype is torch.bool:
            kind, name = "bool", "bool"
        else:
            kind, name = ("float", "double") if held.dtype.is_floating_point else ("int", "long")
        tracked = self._method("detach", value)
        tracked = self._method(name, tracked.as_proxy())
        return kind, self._method("reshape", tracked.as_proxy(), ()) if held.dim() else tracked

    def _compared(self, compare: Any, left: Any, right: Any) -> Any:
        if not isinstance(left, fx.Node):
            left, right, compare = right, left, _MIRRORED[compare]
        kind, value = self.tensor(left)
        if isinstance(right, fx.Node):
            other_kind, other = self.tensor(right)
            if kind != other_kind:
                raise Refusal(Reason.PREDICATE, "an integer and a float read back are compared")
            return self._record(_COMPARED[compare], value, other)
        if not isinstance(right, (int, float)):
            raise Refusal(Reason.PREDICATE, f"a number read back is compared with {right!r}")
        if kind == "float":
            if isinstance(right, int) and abs(right) > _EXACT:
                raise Refusal(Reason.PREDICATE, f"{right} is not a float")
            return self._record(_COMPARED[compare], value, float(right))
        if kind == "bool":
            value = self._method("long", value.as_proxy())
        return self._with_integer(compare, value, right)

    def _with_integer(self, compare: Any, value: Any, right: float) -> Any:
        if not isinstance(right, int) and math.isfinite(right) and not right.is_integer():
            rounded = {
                operator.gt: math.floor,
                operator.le: math.floor,
                operator.ge: math.ceil,
                operator.lt: math.ceil,
            }
            if compare not in rounded:
                raise Refusal(Reason.PREDICATE, f"an integer read back is compared with {right}")
            right = rounded[compare](right)
        if not math.isfinite(right) or abs(right) >= _INT64:
            raise Refusal(Reason.PREDICATE, f"an integer read back is compared with {right}")
        return self._record(_COMPARED[compare], value, int(right))

    def _arithmetic(self, node: fx.Node) -> Any:
        sides = []
        for side in node.args:
            kind, value = self.tensor(side) if isinstance(side, fx.Node) else ("float", side)
            whole = isinstance(side, int) and abs(side) > _EXACT
            if kind != "float" or whole or not (isinstance(side, (fx.Node, int, float))):
                raise Refusal(Reason.PREDICATE, "arithmetic of integers read back can overflow")
            sides.append(float(value) if not isinstance(side, fx.Node) else value)  # type: ignore[arg-type]
        return self._record(_ARITHMETIC[node.target], *sides)  # type: ignore[index]

    def _record(self, call: Any, *args: Any) -> Any:
        proxies = tuple(a.as_proxy() if hasattr(a, "as_proxy") else a for a in args)
        if call is torch.Tensor.double:
            return self._method("double", proxies[0])
        return torch_private.wrap_call(self.translator, "call_function", call, proxies, {})

    def _method(self, name: str, *args: Any) -> Any:
        return torch_private.wrap_call(self.translator, "call_method", name, args, {})
