"""One call of a program, with what it says while it runs and the random numbers it takes."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fusepass.testing import call as base
from fusepass.testing.call import Scope
from tests.harness.transcript import Said, recorded


@dataclass
class Seen(base.Seen):
    """What one call did.

    Attributes:
        said: what it wrote, logged and warned of, in order, with what its backward said.
        faults: warnings of fusepass's own.
        rng: the states of the random generators.
    """

    said: list[Said] = field(default_factory=list)
    faults: list[Warning] = field(default_factory=list)
    rng: dict[str, Any] = field(default_factory=dict)


def call(
    target: Callable[..., Any],
    args: tuple[Any, ...],
    owner: Any = None,
    context: str = "plain",
    state: Callable[[Any], Any] | None = None,
    *,
    around: Scope = contextlib.nullcontext,
    warned: str = "always",
) -> Seen:
    """As :func:`fusepass.testing.call.call`; ``warned`` is for :func:`warnings.simplefilter`."""
    heard = Seen(args)

    @contextlib.contextmanager
    def listening() -> Iterator[None]:
        with recorded(warned) as transcript:
            yield
        heard.said, heard.faults = heard.said + transcript.said, heard.faults + transcript.faults
        heard.rng = heard.rng or _random_state()

    seen = base.call(target, args, owner, context, state, around=around, listening=listening)
    return replace(heard, **vars(seen))


def _random_state() -> dict[str, Any]:
    """The states of Python's generator, the CPU's and, once it is used, the current GPU's."""
    states = {"python": random.getstate(), "cpu": torch.get_rng_state().tolist()}
    if torch.cuda.is_initialized():  # compiling does it, also for the CPU
        states["cuda"] = torch.cuda.get_rng_state().tolist()
    return states
