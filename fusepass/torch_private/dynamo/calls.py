"""Hook torch calls that test, raise, or ask for the tensor object.

Dynamo hands ``torch._check`` and its relatives to the graph as assertions about symbols. A number
that was not read has no symbol to assert about, so its check is traced as the test and the raise it
consists of, and so is ``torch._assert``. Run on torch 2.11 to 2.15.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.variables import (
    BuiltinVariable,
    TensorVariable,
    TorchInGraphFunctionVariable,
    UserFunctionVariable,
)
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builder import SourcelessBuilder
from torch.fx.experimental import symbolic_shapes

from fusepass.torch_private.dynamo.stack import (
    constant,
    is_any_tensor,
    realized,
    traced_operator,
)
from fusepass.torch_private.patches import Patches, Theirs

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
CallHandler = Callable[[Any, str, list[Any], dict[str, Any], Callable[[], Any]], Any]
AskedHandler = Callable[[Any, Any, str], None]

_FUNCTIONS: dict[Any, str] = {
    torch._assert: "_assert",
    torch.allclose: "allclose",
    torch.equal: "equal",
    torch.Tensor.allclose: "allclose",
    torch.Tensor.equal: "equal",
    torch.max: "max",
    torch.min: "min",
    torch.masked_scatter: "masked_scatter",
    torch.Tensor.masked_scatter: "masked_scatter",
    torch.Tensor.masked_scatter_: "masked_scatter_",
    torch.std: "std",
    torch.var: "var",
    **CHECKS,
}
SETTER = "a setter"
KNOWN = "known: "  # before the name of a function that asks what torch knows about a number
_SETTERS = ("set_", "enable_", "preferred_")
_METHODS = ("allclose", "equal", "masked_scatter", "masked_scatter_", "max", "min", "std", "var")
# What a tensor is besides its contents, layout and device.
_OF_THE_OBJECT = frozenset("__class__ grad grad_fn is_leaf requires_grad retains_grad".split())


def hook_calls(patches: Patches, on_call: CallHandler) -> None:
    """Put a handler in front of ``_assert``, ``_check``, ``equal``, extrema and the like of torch.

    Args:
        patches: take the hooks out again.
        on_call: called as ``(translator, name, args, kwargs, call)``, the tensor of a method first
            among the arguments; must return a tracked value or ``call()``. The name is
            :data:`SETTER` for what changes a setting of torch, and begins with :data:`KNOWN` for a
            function that asks what torch knows about a number.
    """

    def call_function(theirs: Theirs, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        name = SETTER if is_setter(self.value) else _name(self.value) or question(self.value)
        call = functools.partial(theirs, self, tx, args, kwargs)
        return call() if name is None else on_call(tx, name, list(args), dict(kwargs), call)

    def call_method(theirs: Theirs, self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        call = functools.partial(theirs, self, tx, name, args, kwargs)
        if name not in _METHODS:
            return call()
        return on_call(tx, name, [self, *args], dict(kwargs), call)

    patches.put(TorchInGraphFunctionVariable, "call_function", call_function)
    patches.put(TensorVariable, "call_method", call_method)


def hook_questions(patches: Patches, on_asked: AskedHandler) -> None:
    """Put a handler in front of questions about a tensor that selecting its values can change.

    Args:
        patches: take the hooks out again.
        on_asked: called as ``(translator, tensor, what)`` before ``tensor.requires_grad``,
            ``is_leaf`` and the like; ``what`` is ``__class__`` also for ``type(tensor)`` and for
            ``isinstance`` with a class more special than Tensor.
    """
    read = "var_getattr" if hasattr(TensorVariable, "var_getattr") else "tp_getattro_impl"  # 2.14

    def attribute(theirs: Theirs, self: Any, tx: Any, name: str) -> Any:
        if name in _OF_THE_OBJECT:
            on_asked(tx, self, name)
        return theirs(self, tx, name)

    def call_function(theirs: Theirs, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if _asks_for_class(self.fn, args):
            on_asked(tx, realized(args[0]), "__class__")
        return theirs(self, tx, args, kwargs)

    patches.put(TensorVariable, read, attribute)
    patches.put(BuiltinVariable, "call_function", call_function)
    _hook_class(patches, on_asked)


def _hook_class(patches: Patches, on_asked: AskedHandler) -> None:
    """``tensor.__class__`` on 2.15, which is looked up in a table; before it is an attribute."""
    entry: Any = getattr(VariableTracker, "tp_getset", {}).get("__class__")
    if entry is None:
        return
    own = vars(TensorVariable).get("tp_getset", {})

    def getter(tensor: Any, tx: Any) -> Any:
        on_asked(tx, tensor, "__class__")
        return entry.getter(tensor, tx)

    table = {**own, "__class__": type(entry)(getter=getter, setter=entry.setter)}
    patches.set(TensorVariable, "tp_getset", table)


def _asks_for_class(function: Any, args: Any) -> bool:
    if function not in (type, isinstance) or not args or not is_any_tensor(realized(args[0])):
        return False
    return function is type or _is_special(args[-1])


def _is_special(classes: Any) -> bool:
    """Whether a class, or one of a tuple, is one that only some plain tensors are of."""
    try:
        given = realized(classes).as_python_constant()
    except Exception:  # noqa: BLE001  # no constant: be careful
        return True
    each = given if isinstance(given, tuple) else (given,)
    return any(
        not isinstance(kind, type) or (issubclass(kind, torch.Tensor) and kind is not torch.Tensor)
        for kind in each
    )


def is_assert(function: Any) -> bool:
    """Whether a function of torch's only tests something, and raises."""
    name = _name(function)
    return name == "_assert" or name in CHECKS.values()


def is_setter(function: Any) -> bool:
    """Whether a function of torch's changes a setting, which Dynamo has it do while it traces."""
    name = str(getattr(function, "__name__", "")).lstrip("_")
    return name.startswith(_SETTERS) and name != "set_" and "grad" not in name


def _name(function: Any) -> str | None:
    try:
        return _FUNCTIONS.get(function)
    except TypeError:  # not hashable
        return None


def question(function: Any) -> str | None:
    """The name of a function that looks into a number as it is traced, behind KNOWN, or None."""
    name = getattr(function, "__name__", None)
    if name is None or getattr(function, "__module__", None) != symbolic_shapes.__name__:
        return None
    return KNOWN + str(name)


def traced_assert(translator: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Trace a call of ``torch._assert`` as the test and the raise it consists of."""
    return inlined(translator, _assert_written_out, args, kwargs)


def inlined(
    translator: Any, function: Any, args: list[Any], kwargs: dict[str, Any] | None = None
) -> Any:
    """Trace a call of a function of ours as if the program had called it."""
    variable = UserFunctionVariable(function)
    return translator.inline_user_function_return(variable, args, kwargs or {})


def _assert_written_out(condition: Any, message: Any) -> None:
    """Do what ``torch._assert`` does, spelled so that Dynamo takes it for no ``assert``."""
    if condition:
        return
    error = AssertionError(message)
    raise error


def operand_count(translator: Any) -> int | None:
    """How many operands the call instruction being traced has, or None if it is no call."""
    instruction = translator.current_instruction
    return instruction.arg if instruction.opname in ("CALL", "CALL_KW") else None


def subgraph_of(translator: Any, node: Any) -> torch.fx.GraphModule | None:
    """The graph behind an argument of a higher-order operator in the graph being traced."""
    name = getattr(node, "target", None)
    found = translator.output.nn_modules.get(name) if isinstance(name, str) else None
    return found if isinstance(found, torch.fx.GraphModule) else None


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
    """Read a call of a check; None for one that torch turns down, or with more to it."""
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
    error, condition = check.error, check.condition
    if error is None:
        error = SourcelessBuilder.create(translator, _ERRORS[check.name])
    if check.of_tensor:
        condition = realized(condition).call_method(translator, "all", [], {})
    elif check.name == "_check_is_size":
        condition = traced_operator(translator, operator.ge, [condition, constant(0)])
    message = constant(None) if check.message is None else check.message
    return inlined(
        translator, _check_written_out, [error, condition, message, constant(check.text)], {}
    )


def _check_written_out(kind: Any, condition: Any, message: Any, text: str) -> None:
    if condition:
        return
    error = kind(text if message is None else str(message()))
    raise error


WRITTEN_IN = _check_written_out.__code__.co_filename


@functools.cache
def _default_message() -> str:
    """The message of torch where the program gives none."""
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
