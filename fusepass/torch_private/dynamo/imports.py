"""Hook ``import`` statements, which Dynamo executes while it traces them. Run on 2.11 to 2.15."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from fusepass.torch_private.dynamo.stack import realized


def import_hook(
    on_import: Callable[[Any, str], None], original: Callable[[Any, Any], None]
) -> Callable[[Any, Any], None]:
    """What stands for ``import`` in the tables of opcodes, with a handler in front.

    Args:
        on_import: called as ``(translator, name)`` if a module is going to be loaded.
        original: of the table.
    """

    def handler(translator: Any, instruction: Any) -> None:
        name = _not_loaded(translator, instruction)
        if name is not None:
            on_import(translator, name)
        original(translator, instruction)

    return handler


def _not_loaded(translator: Any, instruction: Any) -> str | None:
    """The first module that an ``import`` loads, or may load."""
    level, members = (realized(value).as_python_constant() for value in translator.stack[-2:])
    name = instruction.argval
    if level:
        package = translator.f_globals.get("__package__") or ""
        try:
            name = importlib.util.resolve_name("." * level + name, package)
        except ImportError:
            return str(name)
    if name not in sys.modules:
        return str(name)
    inside = sys.modules[name]
    for member in members or ():
        if member != "*" and not hasattr(inside, member):
            return f"{name}.{member}"
    return None
