"""Guards of compiled frames. Read and run on torch 2.11 to 2.15."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch._dynamo.guards


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
