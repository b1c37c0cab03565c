"""Whether a file belongs to the program or to a library, by its path."""

from __future__ import annotations

import dis
import functools
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fusepass.report.version import PACKAGE

_LIBRARIES = ("site-packages", "dist-packages")


@functools.lru_cache(maxsize=4096)
def is_users_file(path: str) -> bool:
    """Whether a source file is neither Python's, nor torch's, nor ours, nor of an installed one.

    What has no file (``<stdin>``, a cell of a notebook) is the user's.
    """
    if path.startswith("<frozen"):
        return False
    if any(part in _LIBRARIES for part in Path(path).parts):
        return False
    return not path.startswith(_folders())


@functools.lru_cache(maxsize=4096)
def is_torchs_file(path: str) -> bool:
    """Whether a source file is part of torch."""
    return path.startswith(f"{Path(torch.__file__).parent}/")


@functools.lru_cache(maxsize=4096)
def defines_modules(path: str) -> bool:
    """Whether a source file of a library holds a model: a class of torch.nn.Module."""
    return not is_torchs_file(path) and any(
        isinstance(held, type)
        and issubclass(held, torch.nn.Module)
        and held.__module__ == module.__name__
        for module in list(sys.modules.values())
        if getattr(module, "__dict__", {}).get("__file__") == path
        for held in list(vars(module).values())
    )


@functools.cache
def _folders() -> tuple[str, ...]:
    homes = [str(Path(torch.__file__).parent), str(PACKAGE)]
    python = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    return tuple(f"{folder}/" for folder in (*homes, *python))


def is_users_function(function: types.FunctionType) -> bool:
    """Whether a function is part of a program."""
    return is_users_file(function.__code__.co_filename)


def is_users_module(module: types.ModuleType) -> bool:
    """Whether a module is part of a program."""
    path = vars(module).get("__file__")
    return is_users_file(path) if isinstance(path, str) else module.__name__ == "__main__"


def is_users_class(kind: type) -> bool:
    """Whether a class is part of a program."""
    module = sys.modules.get(kind.__module__)
    if module is not None and "__file__" in vars(module):
        return is_users_module(module)
    own = next(functions_of(kind), None)
    return kind.__module__ == "__main__" or (own is not None and is_users_function(own))


def functions_of(kind: type) -> Iterator[types.FunctionType]:
    """The functions that a class's own body defines, also those inside of properties."""
    for value in vars(kind).values():
        held = [value, getattr(value, "__func__", None), getattr(value, "func", None)]
        if isinstance(value, property):
            held = [value.fget, value.fset, value.fdel]
        for function in held:
            if isinstance(function, types.FunctionType):
                yield function


def names_in(code: types.CodeType) -> set[str]:
    """Globals and attributes that code and the functions nested in it name."""
    return set().union(*(one.co_names for one in _nested(code)))


def globals_stored(code: types.CodeType) -> set[str]:
    """Globals that code and the functions nested in it bind or delete."""
    steps = (step for one in _nested(code) for step in dis.get_instructions(one))
    return {step.argval for step in steps if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")}


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def slots_of(value: Any) -> dict[str, Any]:
    """What an object holds in slots."""
    names = [
        name
        for kind in type(value).__mro__
        for name, member in vars(kind).items()
        if isinstance(member, types.MemberDescriptorType)
    ]
    return {name: getattr(value, name) for name in names if hasattr(value, name)}
