"""Dynamo: calls of torch that amount to a test or a raise. Run on torch 2.11, 2.13, 2.15."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

CallHandler = Callable[[Any, str, list[Any], dict[str, Any], Callable[[], Any]], Any]

_FUNCTIONS: dict[Any, str] = {
    torch._assert: "_assert",
    torch.allclose: "allclose",
    torch.equal: "equal",
    torch.Tensor.allclose: "allclose",
    torch.Tensor.equal: "equal",
}
_METHODS = ("allclose", "equal")


def hook_calls(on_call: CallHandler) -> Callable[[], None]:
    """Put a handler in front of ``torch._assert``, ``equal`` and ``allclose``, however spelled.

    Args:
        on_call: called as ``(translator, name, args, kwargs, call)``, the tensor of a method first
            among the arguments; must return a tracked value or ``call()``.

    Returns:
        The function that takes it out again.
    """
    from torch._dynamo.variables import TensorVariable, TorchInGraphFunctionVariable

    of_function = TorchInGraphFunctionVariable.call_function
    of_method = TensorVariable.call_method

    @functools.wraps(of_function)
    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        name = _name(self.value)
        if name is None:
            return of_function(self, tx, args, kwargs)
        call = functools.partial(of_function, self, tx, args, kwargs)
        return on_call(tx, name, list(args), dict(kwargs), call)

    @functools.wraps(of_method)
    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name not in _METHODS:
            return of_method(self, tx, name, args, kwargs)
        call = functools.partial(of_method, self, tx, name, args, kwargs)
        return on_call(tx, name, [self, *args], dict(kwargs), call)

    TorchInGraphFunctionVariable.call_function = call_function  # type: ignore[method-assign]
    TensorVariable.call_method = call_method  # type: ignore[method-assign]

    def undo() -> None:
        TorchInGraphFunctionVariable.call_function = of_function  # type: ignore[method-assign]
        TensorVariable.call_method = of_method  # type: ignore[method-assign]

    return undo


def is_assert(function: Any) -> bool:
    """Whether a function is torch's wrapper around ``assert``."""
    return _name(function) == "_assert"


def _name(function: Any) -> str | None:
    try:
        return _FUNCTIONS.get(function)
    except TypeError:  # not hashable
        return None


def traced_assert(translator: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Trace a call of ``torch._assert`` as the test and the raise it consists of."""
    from torch._dynamo.variables import UserFunctionVariable

    function: Any = written_out
    return translator.inline_user_function_return(UserFunctionVariable(function), args, kwargs)


def written_out(condition: Any, message: Any) -> None:
    """What ``torch._assert`` does, spelled so that Dynamo takes it for no ``assert``."""
    if condition:
        return
    error = AssertionError(message)
    raise error


def operand_count(translator: Any) -> int | None:
    """How many operands the call instruction being traced has, or None if it is no call."""
    instruction = translator.current_instruction
    return instruction.arg if instruction.opname in ("CALL", "CALL_KW") else None


def constant(value: Any) -> Any:
    """A tracked constant."""
    from torch._dynamo.variables import ConstantVariable

    return ConstantVariable.create(value)
