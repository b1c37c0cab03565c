"""Watches a call on a CUDA device, and marks it so that a profiler's trace can be read by place.

Around every operation a marked range is put. What runs outside of one (text made of a tensor, a
tensor made of a list) tells of itself through torch's own warnings of synchronising calls; a mark
put there says that what came before it belongs to that place.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from fusepass.report.host_syncs import operations, residence
from fusepass.report.host_syncs.kinds import Kind
from fusepass.report.host_syncs.observe import Watch
from fusepass.report.host_syncs.place import ProgramPlace
from fusepass.report.host_syncs.trace import MARK
from fusepass.torch_private.fx.dispatch_watch import (
    explicit_waits,
    marked,
    operation_name,
    qualified_name,
)

_TORCH_SAYS = "synchronizing CUDA operation"


@dataclass
class Noted:
    """What stands at one mark.

    Attributes:
        operation: what ran.
        place: where in the program.
        kinds: why it makes the host wait, as far as it is known to; empty for most operations.
        warned: how often torch warned of a synchronising call in it.
        only_near: whether the place is that of what came next.
    """

    operation: str
    place: ProgramPlace
    kinds: tuple[Kind, ...] = ()
    warned: int = 0
    only_near: bool = False


class MarkedWatch(Watch):
    """A watch whose operations are marked; what waits is read off a trace afterwards."""

    def __init__(self, entered: tuple[CodeType, ...] = ()) -> None:
        super().__init__(entered)
        self.noted: dict[int, Noted] = {}
        self._numbers = itertools.count(1)
        self._warned = 0
        self._inside = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Torch's warnings of synchronising calls, and calls that ask for one, are noted."""
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(), explicit_waits(self._asked):
            warnings.simplefilter("always")
            warnings.showwarning = self._heard
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield
            finally:
                torch.cuda.set_sync_debug_mode(before)

    def _operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        number, outer = next(self._numbers), (self._inside, self._warned)
        self._inside, self._warned = True, 0
        try:
            with marked(f"{MARK}{number}"):
                out = func(*args, **kwargs)
        finally:
            warned = self._warned
            self._inside, self._warned = outer
        name = operation_name(func)
        found = operations.waits_of(name, args, kwargs, out, residence.really)
        kinds = tuple(kind for kind, _ in found)
        shown = qualified_name(func)
        self.noted[number] = Noted(shown, self.place(), kinds, warned)
        return out

    def _heard(self, message: Any, *_: Any, **__: Any) -> None:
        """A warning; those that are not about synchronising were heard when the program ran."""
        if _TORCH_SAYS not in str(message):
            return
        if self._inside:
            self._warned += 1
            return
        number = next(self._numbers)
        self.noted[number] = Noted("", self.place(), (), 1)
        with marked(f"{MARK}{number}"):
            pass

    @contextlib.contextmanager
    def _asked(self, name: str) -> Iterator[None]:
        """The program asks for a synchronisation, or gives memory back."""
        number, outer = next(self._numbers), self._inside
        kind = Kind.ALLOCATION if name.endswith("empty_cache") else Kind.SYNCHRONIZE
        self.noted[number] = Noted(name, self.place(), (kind,))
        self._inside = True
        try:
            with marked(f"{MARK}{number}"):
                yield
        finally:
            self._inside = outer
