"""Functions of ours in front of torch's. Run on torch 2.11 to 2.15."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

Theirs = Callable[..., Any]  # a function of torch's that one of ours is put in front of
# Called with Dynamo's output graph: says whether the frame is compiled for fusepass.
IsOurs = Callable[[Any], bool]


class Patches(contextlib.ExitStack):
    """What was put in front of functions of torch's; to close it puts theirs back."""

    def put(self, owner: Any, name: str, ours: Callable[..., Any]) -> None:
        """Put ``ours`` in front of a function or method, which it gets as its first argument.

        Args:
            owner: a class or module.
            name: of the function there; a class method is bound to its class.
            ours: called as the function is.
        """
        theirs = getattr(owner, name)
        kind = type(inspect.getattr_static(owner, name))
        bound = kind is classmethod

        @functools.wraps(theirs)
        def call(*args: Any, **kwargs: Any) -> Any:
            return ours(theirs, *(args[1:] if bound else args), **kwargs)

        self.set(owner, name, kind(call) if kind in (classmethod, staticmethod) else call)

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute, which another class may have given the owner before."""
        if name in vars(owner):
            self.callback(setattr, owner, name, vars(owner)[name])
        else:
            self.callback(delattr, owner, name)
        setattr(owner, name, value)

    def put_into(self, table: Any, key: Any, ours: Callable[..., Any]) -> None:
        """The same for a function that a table holds under a key."""
        self.callback(table.__setitem__, key, table[key])
        table[key] = functools.partial(ours, table[key])


def once(install: Callable[[], None]) -> Callable[[], None]:
    """Run ``install`` at the first call only, also where several threads come at once."""
    lock, installed = threading.Lock(), list[bool]()

    @functools.wraps(install)
    def call() -> None:
        with lock:
            if not installed:
                install()
                installed.append(True)

    return call
