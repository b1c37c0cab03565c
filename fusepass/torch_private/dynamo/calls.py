"""Hook torch calls that test, raise, or ask for the tensor object.

Run on torch 2.11 to 2.15.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from fusepass.torch_private.dynamo.checks import CHECKS
from fusepass.torch_private.dynamo.scalars.statically_known import question
from fusepass.torch_private.dynamo.stack import is_any_tensor, realized
from fusepass.torch_private.patches import Patches, Theirs

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
    torch.std: "std",
    torch.var: "var",
    **CHECKS,
}
SETTER = "a setter"
_SETTERS = ("set_", "enable_", "preferred_")
_METHODS = ("allclose", "equal", "max", "min", "std", "var")
# What a tensor is besides its contents, layout and device.
_OF_THE_OBJECT = frozenset("__class__ grad grad_fn is_leaf requires_grad retains_grad".split())


def hook_calls(patches: Patches, on_call: CallHandler) -> None:
    """Put a handler in front of ``_assert``, ``_check``, ``equal``, extrema and the like of torch.

    Args:
        patches: take the hooks out again.
        on_call: called as ``(translator, name, args, kwargs, call)``, the tensor of a method first
            among the arguments; must return a tracked value or ``call()``. The name is
            :data:`SETTER` for what changes a setting of torch, or that of a question of
            :mod:`~fusepass.torch_private.dynamo.scalars.statically_known`.
    """
    from torch._dynamo.variables import TensorVariable, TorchInGraphFunctionVariable

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
    from torch._dynamo.variables import BuiltinVariable, TensorVariable

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
    from torch._dynamo.variables import TensorVariable
    from torch._dynamo.variables.base import VariableTracker

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


def subgraph_of(translator: Any, node: Any) -> torch.fx.GraphModule | None:
    """The graph behind an argument of a higher-order operator in the graph being traced."""
    name = getattr(node, "target", None)
    found = translator.output.nn_modules.get(name) if isinstance(name, str) else None
    return found if isinstance(found, torch.fx.GraphModule) else None


def traced_operator(translator: Any, function: Any, args: list[Any]) -> Any:
    """Trace a call of one of Python's operators, as ``operator.and_``."""
    from torch._dynamo.variables import BuiltinVariable

    return BuiltinVariable(function).call_function(translator, args, {})


def constant(value: Any) -> Any:
    """A tracked constant."""
    from torch._dynamo.variables import ConstantVariable

    return ConstantVariable.create(value)
