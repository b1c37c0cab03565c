"""Let several threads register a backend in torch's table at once. Run on torch 2.11 to 2.15.

``lookup_backend`` looks whether a name is registered, imports what its entry point names and
registers it, all without a lock. An import of fusepass takes a while, so threads that compile for
the first time at once all come to the registration, and each but the first failed there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

_lock = threading.RLock()
_as_torch_has_it: list[FunctionType] = []  # one, once the code is exchanged


def allow_registering_twice() -> None:
    """Let a backend be registered again under its own name, which changes nothing.

    The function's code is exchanged, not the function: threads that wait for our import to end are
    about to call the very object they read before.
    """
    from torch._dynamo.backends.registry import register_backend

    with _lock:
        code = register_backend.__code__
        if _as_torch_has_it or code.co_varnames[:3] != ("compiler_fn", "name", "tags"):
            return
        scope, defaults = register_backend.__globals__, register_backend.__defaults__
        _as_torch_has_it.append(FunctionType(code, scope, "register_backend", defaults))
        register_backend.__code__ = _register_backend.__code__


def _register_backend(
    compiler_fn: Callable[..., Any] | None = None,
    name: str | None = None,
    tags: Sequence[str] = (),
) -> Any:
    # Runs with the globals of torch's module, so it names nothing of this one.
    from fusepass.torch_private.dynamo.backend_registry import registered

    return registered(compiler_fn, name, tags)


def registered(compiler_fn: Callable[..., Any] | None, name: str | None, tags: Any) -> Any:
    """What ``register_backend`` does, once for each name and function."""
    (register,) = _as_torch_has_it
    with _lock:
        held = register.__globals__["_COMPILER_FNS"].get(name)
        if held is not None and held is compiler_fn:
            return compiler_fn
        return register(compiler_fn, name, tags)
