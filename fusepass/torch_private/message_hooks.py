"""Dynamo: what is replaced while a message is traced. Run on 2.11 to 2.15."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def only_own_generators() -> list[tuple[Any, str, Callable[..., Any]]]:
    """Generators made before the message cannot be put back, so they must not be advanced."""
    from torch._dynamo.variables.functions import LocalGeneratorObjectVariable as Generator

    own: list[Any] = []

    def made(theirs: Any, generator: Any, *args: Any, **kwargs: Any) -> None:
        own.append(generator)
        theirs(generator, *args, **kwargs)

    def advanced(theirs: Any, generator: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(generator is one for one in own):
            raise unsupported("a generator made before is advanced")
        return theirs(generator, *args, **kwargs)

    names = [n for n in ("next_variable", "gen_send_ex2") if n in vars(Generator)]
    return [(Generator, "__init__", made), *((Generator, name, advanced) for name in names)]


def replace(owner: Any, name: str, ours: Callable[..., Any]) -> Callable[[], None]:
    """Put ``ours`` in front of a method, which it gets as its first argument."""
    own = vars(owner).get(name)
    theirs = getattr(owner, name)
    bound = isinstance(own, classmethod)

    def method(*args: Any, **kwargs: Any) -> Any:
        return ours(theirs, *(args[1:] if bound else args), **kwargs)

    setattr(owner, name, classmethod(method) if bound else method)
    if own is None:
        return functools.partial(delattr, owner, name)
    return functools.partial(setattr, owner, name, own)


def unsupported(what: str) -> Exception:
    """The error that ends the trace of a message."""
    from torch._dynamo import exc

    return exc.UserError(exc.UserErrorType.INVALID_INPUT, what)
