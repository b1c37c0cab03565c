"""Which names a function's code holds: what it can read, if it reads by names written in it."""

from __future__ import annotations

import builtins
import dis
import importlib.util
import types
from collections.abc import Iterator
from typing import Any

# Ways to read what no name in the code tells, as attributes or globals.
DYNAMIC = frozenset(
    (
        *("__dict__", "__globals__", "__builtins__", "__closure__", "__getattribute__"),
        *("__subclasses__", "__annotations__", "__code__", "__self__", "__import__"),
        *("attrgetter", "methodcaller", "import_module", "getmembers", "getattr_static"),
        *("f_globals", "f_locals", "format", "format_map"),
    )
)
_BUILTINS = frozenset(
    id(getattr(builtins, name))
    for name in (
        *("getattr", "hasattr", "vars", "dir", "globals", "locals", "eval", "exec", "compile"),
        *("__import__", "open", "input", "breakpoint"),
    )
)
_MODULES = frozenset(("importlib", "inspect", "gc", "ctypes", "pickle", "marshal", "runpy"))


def is_dynamic(value: Any) -> bool:
    """Whether a value reads what the names in the code that uses it do not tell."""
    if id(value) in _BUILTINS:
        return True
    if isinstance(value, types.ModuleType):
        return value.__name__.split(".")[0] in _MODULES
    home, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if home in ("operator", "_operator"):
        return name in DYNAMIC or type(value).__qualname__ in DYNAMIC
    return isinstance(home, str) and callable(value) and home.split(".")[0] in _MODULES


def names_of(code: types.CodeType) -> set[str]:
    """Globals and attributes that code and the functions nested in it name."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    names = set(code.co_names).union(*map(names_of, inner))
    if any(step.opname == "MATCH_CLASS" for step in dis.get_instructions(code)):
        tuples = [c for c in code.co_consts if isinstance(c, tuple)]
        names.update(c for held in tuples for c in held if isinstance(c, str))  # ``case C(a=x)``
    return names


def imports_of(
    code: types.CodeType, scope: dict[str, Any]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Absolute names of the modules that code imports when it runs, and what it takes of each."""
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from imports_of(inner, scope)
    before: list[Any] = []
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            level, wanted = before[-2:]  # put there by the two instructions in front
            name = str(step.argval)
            if level:
                package = scope.get("__package__") or str(scope["__name__"]).rpartition(".")[0]
                name = importlib.util.resolve_name("." * level + name, package)
            yield name, wanted or ()
        if step.opname != "EXTENDED_ARG":
            before.append(step.argval)
