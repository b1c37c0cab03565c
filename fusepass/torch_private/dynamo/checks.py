"""Trace ``torch._check`` and its relatives as a test and a raise. Run on torch 2.11 to 2.15.

Dynamo hands them to the graph as assertions about symbols. A number that was not read
has no symbol to assert about, so its check is traced as the test and the raise it consists of.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

_ERRORS: dict[str, type[Exception]] = {
    "_check": RuntimeError,
    "_check_index": IndexError,
    "_check_value": ValueError,
    "_check_type": TypeError,
    "_check_not_implemented": NotImplementedError,
    "_check_is_size": RuntimeError,
    "_check_tensor_all": RuntimeError,
}
_GIVEN = ("_check_with", "_check_tensor_all_with")  # the error comes first
CHECKS: dict[Any, str] = {
    function: name
    for name in (*_ERRORS, *_GIVEN)
    if (function := getattr(torch, name, None)) is not None
}


@dataclass(frozen=True)
class Check:
    """One call of a check.

    Attributes:
        name: of the function, one of :data:`CHECKS`.
        error: the tracked class of what it raises, None for the function's own.
        condition: tracked: a truth value, a size, or a tensor of truth values.
        message: tracked: a function that gives it, or None.
        text: the message where there is no function.
    """

    name: str
    error: Any
    condition: Any
    message: Any
    text: str

    @property
    def of_tensor(self) -> bool:
        """Whether the condition is a tensor, of which all elements have to be true."""
        return "tensor_all" in self.name


def check_of(name: str, args: list[Any], kwargs: dict[str, Any]) -> Check | None:
    """A call of a check; None for one that torch turns down, or with more to it.

    Args:
        name: of the function.
        args: tracked values.
        kwargs: tracked values by name.
    """
    names = ["i" if name == "_check_is_size" else "cond", "message"]
    names = ["error_type", *names] if name in _GIVEN else names
    given = dict(zip(names, args, strict=False))
    if len(args) > len(names) or given.keys() & kwargs.keys() or kwargs.keys() - set(names):
        return None
    given |= kwargs
    message, text = given.pop("message", None), None
    if message is not None and message.is_python_constant():
        value = message.as_python_constant()
        text = value if isinstance(value, str) and _takes_text() else None
        if text is None and value is not None and not callable(value):
            return None
        message = message if callable(value) else None
    if given.keys() != set(names) - {"message"}:
        return None
    text = _default_message() if text is None else text
    return Check(name, given.get("error_type"), given[names[-2]], message, text)


def trace_check(translator: Any, check: Check) -> Any:
    """Trace a check as the test and the raise it consists of."""
    from torch._dynamo.variables import ConstantVariable, UserFunctionVariable
    from torch._dynamo.variables.builder import SourcelessBuilder

    written: Any = _of_tensor if check.of_tensor else _of
    written = _of_size if check.name == "_check_is_size" else written
    error = check.error
    if error is None:
        error = SourcelessBuilder.create(translator, _ERRORS[check.name])
    text = ConstantVariable.create(check.text)
    message = ConstantVariable.create(None) if check.message is None else check.message
    arguments = [error, check.condition, message, text]
    return translator.inline_user_function_return(UserFunctionVariable(written), arguments, {})


@functools.cache
def _default_message() -> str:
    """What torch says where the program gives no message."""
    return _said()


@functools.cache
def _takes_text() -> bool:
    """Whether a message may be a text, as from torch 2.15 on; before it must be a function."""
    return _said("text") == "text"


def _said(*message: Any) -> str:
    try:
        torch._check(False, *message)
    except (RuntimeError, TypeError) as error:
        return str(error)
    return ""


def _of(kind: Any, condition: Any, message: Any, text: str) -> None:
    if condition:
        return
    error = kind(text if message is None else str(message()))
    raise error


def _of_size(kind: Any, size: Any, message: Any, text: str) -> None:
    if size >= 0:
        return
    error = kind(text if message is None else str(message()))
    raise error


def _of_tensor(kind: Any, condition: Any, message: Any, text: str) -> None:
    if condition.all():
        return
    error = kind(text if message is None else str(message()))
    raise error


WRITTEN_IN = _of.__code__.co_filename
