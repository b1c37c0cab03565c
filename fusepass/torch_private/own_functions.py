"""Functions of Python that write lines, as they are until a program replaces them.

A program may put a function of its own in the place of ``print``, so that one process of several
writes, or of ``warnings.warn``. That is code like any other, with whatever effects it has.
"""

from __future__ import annotations

import builtins
import logging
import pprint
import types
import warnings
from typing import Any

FUNCTIONS = (types.BuiltinFunctionType, types.FunctionType)


def own_function(module: types.ModuleType, name: str) -> Any:
    """The function a module has under a name, if it is the module's own; None otherwise.

    Asked while fusepass is imported: somebody may have replaced the function before that.
    """
    found = getattr(module, name, None)
    if not isinstance(found, FUNCTIONS) or found.__name__ != name:
        return None
    if isinstance(found, types.FunctionType):
        maker = found.__globals__.get("__name__")
    else:
        maker = found.__module__
    of = module.__name__
    return found if maker in (of, f"_{of}", f"_py_{of}") else None


def _own_functions() -> dict[Any, tuple[str, str]]:
    kinds = [
        (builtins, "print", "print"),
        *((builtins, name, "text") for name in ("repr", "ascii")),
        *((pprint, name, "pprint") for name in ("pprint", "pp")),
        (warnings, "warn", "warn"),
        (logging, "getLogger", "logger"),
        *((logging, name, "log") for name in sorted(METHODS)),
    ]
    found = [(own_function(module, name), kind, name) for module, name, kind in kinds]
    known = {function: (kind, name) for function, kind, name in found if function is not None}
    return {**known, str: ("text", "str")}


METHODS = frozenset("debug info warning error critical fatal log".split())
OWN = _own_functions()
PRINT = own_function(builtins, "print")
_OF_LOGGER = {name: vars(logging.Logger).get(name) for name in (*METHODS, "_log")}


def is_own_method(name: str) -> bool:
    """Whether a method of ``logging.Logger`` that makes records is still the one of its module."""
    now = vars(logging.Logger)
    methods = [(now.get(each), _OF_LOGGER[each]) for each in (name, "_log")]
    return all(
        there is original and getattr(there, "__globals__", None) is vars(logging)
        for there, original in methods
    )
