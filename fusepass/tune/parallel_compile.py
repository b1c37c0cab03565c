"""Compiling candidates in threads."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import torch

from fusepass.tune.problems.base import Candidate

logger = logging.getLogger("fusepass")

_COMPILED_AT_ONCE = 4


def compile_in_parallel(
    candidates: Sequence[Candidate],
    inputs: tuple[torch.Tensor | None, ...],
    device: torch.device,
) -> None:
    """Call those that compile once, in threads: compilers let go of the interpreter meanwhile.

    What fails here fails again, and is reported, when it is called for itself.
    """
    waiting = [one for one in candidates if one.compiles]
    if len(waiting) < 2:
        return
    torch.cuda.synchronize(device)  # the stream of this thread is not that of the others

    def called(one: Candidate) -> None:
        with torch.cuda.device(device), torch.no_grad():
            torch.cuda.synchronize(device)  # a thread has no context before it asks for something
            one.run(*inputs)
            torch.cuda.synchronize(device)

    with ThreadPoolExecutor(_COMPILED_AT_ONCE) as pool:
        calls = [pool.submit(copy_context().run, called, one) for one in waiting]
    for one, done in zip(waiting, calls, strict=True):
        if done.exception() is not None:
            logger.debug("fusepass: %s, called in a thread: %r", one.name, done.exception())
