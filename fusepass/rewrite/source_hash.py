"""What a rule's functions are made of, as a hash: part of the keys of Inductor's caches.

Code is hashed as bytecode with its constants, default values, closures and the helpers it names,
as far as they are not torch's own. A value that has no stable text (a tensor in a closure, an
object) makes the rule unhashable: caching is then bypassed rather than trusted.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import types
from typing import Any

import torch

from fusepass import torch_private
from fusepass.rewrite.rule import Rule

_PLAIN = (
    *(int, float, complex, bool, str, bytes, type(None), type(...)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
_OWN_VERSIONED = ("torch", "numpy", "triton", "math", "operator", "functools", "builtins")


class Unhashable(TypeError):
    """A rule refers to a value whose content cannot be told from its text."""


def rule_hash(rule: Rule) -> str:
    """Hash of everything that decides what a rule does.

    Raises:
        Unhashable: a function of it cannot be hashed.
    """
    seen: dict[int, Any] = {}  # kept alive, so that no id comes twice
    parts = [rule.name, rule.place, repr((rule.priority, rule.devices))]
    try:
        parts += [
            _text(function, seen) for function in (rule.pattern, rule.replacement, rule.check)
        ]
    except Unhashable as error:
        raise Unhashable(f"rule {rule.name!r} ({rule.location}) refers to {error}") from None
    for value in rule.inputs():
        if isinstance(value, torch.Tensor):
            parts.append(f"{value.dtype} {tuple(value.shape)}")
        else:
            parts.append(repr(value))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _text(value: Any, seen: dict[int, Any]) -> str:
    """A text that differs when the behaviour of ``value`` may."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if id(value) in seen:
        return f"again {list(seen).index(id(value))}"
    seen[id(value)] = value
    if isinstance(value, (tuple, list, set, frozenset)):
        texts = [_text(part, seen) for part in value]
        return repr(sorted(texts) if isinstance(value, (set, frozenset)) else texts)
    if isinstance(value, dict):
        return repr([(_text(k, seen), _text(v, seen)) for k, v in value.items()])
    if isinstance(value, types.ModuleType):
        if value.__name__.startswith("fusepass."):
            return _module_source(value.__name__)
        return f"module {value.__name__} {getattr(value, '__version__', '')}"
    if _is_versioned(value):
        return f"{value.__module__}.{getattr(value, '__qualname__', value)}"
    if isinstance(value, types.CodeType):
        return _code(value, seen)
    if isinstance(value, types.FunctionType):
        return _function(value, seen)
    if torch_private.operator_name(value) is not None:
        return str(value)
    inner = _inner(value)
    if inner is not None:
        return _text(inner, seen)
    if isinstance(value, type):
        return repr([(k, _text(v, seen)) for k, v in sorted(vars(value).items()) if callable(v)])
    raise Unhashable(f"{type(value).__name__} {value!r:.60}")


def _is_versioned(value: Any) -> bool:
    """Something of torch or Python, which the versions in the key stand for."""
    module = getattr(value, "__module__", None) or ""
    if not callable(value) or not isinstance(module, str) or _inner(value) is not None:
        return False
    return module.split(".")[0] in _OWN_VERSIONED and not isinstance(value, torch.nn.Module)


@functools.cache
def _module_source(name: str) -> str:
    """Our own modules are hashed whole: their constants and helpers change with them."""
    return hashlib.sha256(inspect.getsource(sys.modules[name]).encode()).hexdigest()


def _inner(value: Any) -> Any:
    """The function inside a partial, a bound method, a custom operator or a Triton kernel."""
    if isinstance(value, types.MethodType):
        return (value.__func__, getattr(value.__self__, "__dict__", ()))
    if hasattr(value, "func") and hasattr(value, "keywords"):
        return (value.func, tuple(value.args), dict(value.keywords))
    for inner in (torch_private.function_of_operator(value), torch_private.source_of_kernel(value)):
        if inner is not None:
            return inner
    return getattr(value, "__wrapped__", None)


def _function(function: types.FunctionType, seen: dict[int, Any]) -> str:
    cells = [_text(c.cell_contents, seen) for c in function.__closure__ or ()]
    defaults = _text((function.__defaults__, function.__kwdefaults__), seen)
    if (function.__module__ or "").startswith("fusepass."):
        own = f"{function.__qualname__} {_module_source(function.__module__)}"
        return "\n".join([own, repr(cells), defaults])
    names = _names(function.__code__)
    used = {name: function.__globals__[name] for name in names if name in function.__globals__}
    for module in [v for v in used.values() if isinstance(v, types.ModuleType)]:
        if module.__name__.split(".")[0] not in _OWN_VERSIONED:
            used |= {
                f"{module.__name__}.{n}": getattr(module, n) for n in names if hasattr(module, n)
            }
    helpers = [f"{name}={_text(value, seen)}" for name, value in sorted(used.items())]
    return "\n".join([_code(function.__code__, seen), repr(cells), defaults, *helpers])


def _names(code: types.CodeType) -> set[str]:
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _code(code: types.CodeType, seen: dict[int, Any]) -> str:
    constants = [_text(constant, seen) for constant in code.co_consts]
    return repr((code.co_code.hex(), constants, code.co_names, code.co_varnames, code.co_freevars))
