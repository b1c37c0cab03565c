"""Guards of compiled frames. Read and run on torch 2.11 to 2.15."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import torch._dynamo.guards


class Holds(Protocol):
    """Something that a compiled frame is only good for as long as it holds."""

    def holds(self) -> bool:
        """Whether it does; asked before each call, and in no more than a microsecond."""


def guard_on(translator: Any, name: str, thing: Holds) -> None:
    """Trace the frame being traced anew where ``thing`` does not hold any more.

    Args:
        translator: Dynamo's.
        name: of the thing, in the reason of a recompilation.
        thing: asked before each call. If it does not even hold when the frame is compiled, it is
            not asked: Dynamo takes a guard that fails at once for a fault of its own.
    """
    from torch._dynamo.guards import install_guard
    from torch._dynamo.source import GlobalSource

    source = GlobalSource(translator.output.install_global_by_id(name, thing))
    install_guard(source.make_guard(_fusepass_holds))


def _fusepass_holds(builder: Any, guard: Any) -> None:
    if builder.get(guard).holds():
        manager = builder.get_guard_manager(guard)
        manager.add_lambda_guard(_holds, [f"{guard.name}.holds()"], None)


def _holds(thing: Holds) -> bool:
    return thing.holds()


@contextlib.contextmanager
def guards_not_timed() -> Iterator[None]:
    """Dynamo does not time the guards of each frame it compiles, which is only for its metrics.

    It flushes the processor's caches for that: 20 ms a frame, as long as compiling a small one
    takes, and worse where several processes do it.
    """
    module: Any = torch._dynamo.guards
    timed = getattr(module, "profile_guard_manager", None)
    if timed is None:
        yield
        return
    module.profile_guard_manager = lambda *_: 0.0
    try:
        yield
    finally:
        module.profile_guard_manager = timed
